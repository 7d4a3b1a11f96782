"""A clock for tests, whose time changes only if a test advances it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta


class FakeClock:
    """Wall-clock time and monotonic time that only `advance` and `sleep` change."""

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC)) -> None:
        self._start = start
        self._elapsed_seconds = 0.0

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._elapsed_seconds)

    def monotonic(self) -> float:
        return self._elapsed_seconds

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both times forward by `seconds`."""
        self._elapsed_seconds += seconds
