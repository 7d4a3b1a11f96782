"""The clock of the parent that the calling code belongs to: `segue serve` gives each of its parents one of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from segue.clock import Clock, SystemClock

_CLOCK: ContextVar[Clock | None] = ContextVar("segue_parent_clock", default=None)


def parent_clock() -> Clock:
    """The clock of this parent; the machine's own, unless the parent shares its process with others.

    A context variable, because a flow gets nothing else from who starts it than its parameters, which the server has.
    """
    return _CLOCK.get() or SystemClock()


@contextmanager
def with_clock(clock: Clock) -> Iterator[None]:
    """A block in whose flows and tasks `parent_clock` is this one."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)
