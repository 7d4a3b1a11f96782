"""Decides when a wait reads the store. The wait reads a remote store rarely, because each read costs time and money."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from segue.clock import Clock


class LookSchedule:
    """The times at which a wait checks the store.

    The first check comes as soon as possible. A further check comes after each period, or earlier if an action is due.
    """

    def __init__(self, clock: Clock, *, period_seconds: float) -> None:
        self._clock, self._period_seconds = clock, period_seconds
        self._pause_seconds = period_seconds
        self._next_at = clock.monotonic()

    @property
    def is_due(self) -> bool:
        return self._clock.monotonic() >= self._next_at

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Treat the `with` block as a check. If the check raises an exception, the next check is due at once."""
        at, self._pause_seconds = self._clock.monotonic(), self._period_seconds
        yield
        self._next_at = at + self._pause_seconds

    def within(self, seconds: float) -> None:
        """Schedule the next check within `seconds`, because an action is then due."""
        self._pause_seconds = min(self._pause_seconds, max(seconds, 0.0))
