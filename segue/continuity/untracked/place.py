"""Places of values: the path of each, how to read it again, and how the user's own code would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Get = Callable[[], Any]


class Leaf(NamedTuple):
    """One value, and how to read it again."""

    path: str
    place: str
    """The kind of place that holds it: a closure variable, an attribute, ..."""
    root: str
    """The component or the field of the recipe from which it was reached first."""
    get: Get
    is_registered: bool = False
    """Whether the root is a component."""
    at: ValuePlace | None = None
    """Its place, with the places around it; None for a value that this process has not reached."""


def fetched(function: str, name: str) -> str:
    """How code writes a variable of a function if the function has no name at the place where the recipe is made."""
    return f'segue.Variables({function}, "{name}").get("{name}")' if function else ""


MODULE_VARIABLE = "module variable"


class ValuePlace(NamedTuple):
    """The place of a value, as far as it is known during the walk."""

    path: str
    what: str
    get: Get
    expression: str = ""
    """How code of the user's writes the value here; empty if it has no name for it."""
    holder: str = ""
    """How that code writes the holder of the variable `name`: a function, a module, a class, an object."""
    name: str = ""
    """Name of the variable within its holder."""
    outer: ValuePlace | None = None

    def part(self, name: str, what: str, get: Get, *, expression: str = "", holder: str | None = None) -> ValuePlace:
        """The place of a part of this object, which is the part's holder unless another holder is given."""
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
        """The place of the object that this object wraps, under the same path."""
        return self._replace(get=get, expression=expression)

    def dotted(self, name: str) -> str:
        """How code writes an attribute of this object."""
        if not self.expression:
            return ""
        return f"{self.expression}.{name}" if name.isidentifier() else f'{self.expression}.get_submodule("{name}")'
