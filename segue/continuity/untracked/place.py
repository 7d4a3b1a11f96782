"""Places of values: where each is, how to read it again, and how the user's own code would write it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Get = Callable[[], Any]


class Leaf(NamedTuple):
    """One value, and how to read it again."""

    path: str
    place: str
    """What kind of place holds it: a closure variable, an attribute, ..."""
    root: str
    """The component or the field of the recipe from which it was reached first."""
    get: Get
    is_registered: bool = False
    """Whether the root is a component."""
    at: ValuePlace | None = None
    """Its place, with those around it; None for one that this process has not reached."""


def fetched(function: str, name: str) -> str:
    """How code writes a variable of a function that has no name where the recipe is made."""
    return f'segue.Variables({function}, "{name}").get("{name}")' if function else ""


MODULE_VARIABLE = "module variable"


class ValuePlace(NamedTuple):
    """Where a value is, as far as it is known on the way down."""

    path: str
    what: str
    get: Get
    expression: str = ""
    """How code of the user's writes the value here; empty if it has no name for it."""
    holder: str = ""
    """How it writes what holds the variable `name`: a function, a module, a class, an object."""
    name: str = ""
    """Of the variable, within its holder."""
    outer: ValuePlace | None = None

    def part(self, name: str, what: str, get: Get, *, expression: str = "", holder: str | None = None) -> ValuePlace:
        """The place of something within the object here, which is its holder unless another one is given."""
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
        """The place of what the object here wraps, under the same path."""
        return self._replace(get=get, expression=expression)

    def dotted(self, name: str) -> str:
        """How code writes an attribute of the object here."""
        if not self.expression:
            return ""
        return f"{self.expression}.{name}" if name.isidentifier() else f'{self.expression}.get_submodule("{name}")'
