"""The only place in segue that reads the time."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall time for what people read, monotonic time for what the code decides by."""

    def now(self) -> datetime:
        """The wall-clock time, aware, in UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; never goes back, means nothing on another machine."""
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
