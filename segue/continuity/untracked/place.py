"""Describes the places of values: the path, a function that reads the value again, and the expression in the user's
code.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Get = Callable[[], Any]


class Leaf(NamedTuple):
    """A value, with a function that reads it again."""

    path: str
    place: str
    """The kind of the place, e.g. closure variable or attribute."""
    root: str
    """The component or the recipe field from which the value was first reached."""
    get: Get
    is_registered: bool = False
    """Whether the root is a component."""
    at: ValuePlace | None = None
    """The place of the value, with the places around it. The value is None if this process did not reach the value."""


def fetched(function: str, name: str) -> str:
    """Return the expression for a variable of a function. The text is empty if the function has no expression."""
    return f'segue.Variables({function}, "{name}").get("{name}")' if function else ""


MODULE_VARIABLE = "module variable"


class ValuePlace(NamedTuple):
    """The place of a value, as known during the walk."""

    path: str
    what: str
    get: Get
    expression: str = ""
    """The expression for the value in the user's code. The text is empty if there is no such expression."""
    holder: str = ""
    """The expression for the holder of the variable `name`: a function, a module, a class or an object."""
    name: str = ""
    """Name of the variable in its holder."""
    outer: ValuePlace | None = None

    def part(self, name: str, what: str, get: Get, *, expression: str = "", holder: str | None = None) -> ValuePlace:
        """Return the place of a part of this object.

        The holder of the part is this object, unless `holder` is given.
        """
        return ValuePlace(
            f"{self.path}.{name}" if self.path else name,
            what,
            get,
            expression,
            self.expression if holder is None else holder,
            name,
            self,
        )

    def within(self, get: Get, expression: str) -> ValuePlace:
        """Return the place of the wrapped object. It has the same path as the wrapper."""
        return self._replace(get=get, expression=expression)

    def dotted(self, name: str) -> str:
        """The expression for an attribute of this object."""
        if not self.expression:
            return ""
        return f"{self.expression}.{name}" if name.isidentifier() else f'{self.expression}.get_submodule("{name}")'
