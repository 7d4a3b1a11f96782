"""Clocks: the only place in segue that reads the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall-clock time, which people read, and monotonic time, which decisions use."""

    def now(self) -> datetime:
        """Wall-clock time, with the time zone UTC."""
        ...

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary start.

        The value never decreases, and means nothing on another machine.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Block for `seconds`."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
