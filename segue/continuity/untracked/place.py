"""Places of values: where each is, and how to read it again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Get = Callable[[], Any]

RANDOM = "random generator"
"""The kind of an owner that is a generator of random numbers."""
GONE = (LookupError, AttributeError, ValueError, ReferenceError)
"""What reading a value again raises where it is no longer there."""


class Leaf(NamedTuple):
    """One value, and how to read it again."""

    path: str
    place: str
    """What kind of place holds it: a closure variable, an attribute, ..."""
    root: str
    """The component or the field of the recipe from which it was reached first."""
    owner: str
    """Path of the nearest object around it that has a state_dict, or its own path."""
    kind: str
    """Of the owner: its class."""
    get: Get
    is_registered: bool = False
    """Whether the root is a component."""


MODULE_VARIABLE = "module variable"


class Place(NamedTuple):
    """Where a value is, as far as it is known on the way down."""

    path: str
    what: str
    get: Get
    owner: str = ""
    kind: str = ""

    def part(self, name: str, what: str, get: Get) -> Place:
        """The place of something within the object here."""
        return self._replace(path=f"{self.path}.{name}" if self.path else name, what=what, get=get)

    def code(self) -> Place:
        """The same place, where what follows belongs to code and no longer to the object around it."""
        return self._replace(owner="", kind="")
