"""The properties that every kind of fault has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.world import World

Undo = Callable[[], None]
"""A function that ends a fault, and that is called only once."""

MOMENT = (0.0, 0.0)
"""Duration of a fault that takes effect at once and does not last."""


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    what: str
    seconds: tuple[float, float]
    """Shortest and longest duration that is drawn for this kind of fault."""
    apply: Callable[[World, Fault], Undo]
    """A function that makes the fault. If there is no target, the function changes nothing and raises `NotNowError`."""


def nothing() -> None:
    """End a fault that does not last, by doing nothing."""
