"""What every kind of fault has."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.chaos.schedule import Fault
from benchmarks.chaos.world import World

Undo = Callable[[], None]
"""Ends a fault; may be called once."""

MOMENT = (0.0, 0.0)
"""Time of faults that do not last."""


class Kind(NamedTuple):
    """One kind of fault."""

    name: str
    what: str
    seconds: tuple[float, float]
    """Shortest and longest time that is drawn for it."""
    apply: Callable[[World, Fault], Undo]
    """Makes the fault; raises `NotNowError`, having changed nothing, when there is nothing to hit."""


def nothing() -> None:
    """The end of a fault that does not last."""
