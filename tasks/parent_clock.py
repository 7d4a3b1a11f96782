"""The clock of the parent that the calling code belongs to: `segue serve` gives each of its parents one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from segue.clock import Clock, SystemClock
from segue.stores.retry import OUTAGE_SECONDS, patiently

T = TypeVar("T")

_CLOCK: ContextVar[Clock | None] = ContextVar("segue_parent_clock", default=None)


def parent_clock() -> Clock:
    """The clock of this parent; the machine's own, unless the parent shares its process with others.

    A context variable, because a flow gets nothing else from who starts it than its parameters, which the server has.
    """
    return _CLOCK.get() or SystemClock()


def as_parent(ask: Callable[[], T], *, what: str) -> T:
    """What `ask` returns, retried by the parent's clock while the store fails; attempts go on training meanwhile.

    Raises:
        StoreReadError, StoreWriteError: it still does after 15 minutes. Recovery then starts the parent again.
    """
    return patiently(ask, what=what, patience_seconds=OUTAGE_SECONDS, clock=parent_clock())


@contextmanager
def with_clock(clock: Clock) -> Iterator[None]:
    """A block in whose flows and tasks `parent_clock` is this one."""
    before = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(before)
