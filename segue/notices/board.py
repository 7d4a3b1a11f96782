"""The board on which notices are left and read. Leaving one is safe from a signal handler and from any thread."""

from __future__ import annotations

from datetime import timedelta

from segue.clock import Clock
from segue.records import Notice

NO_KILL_COMING_SECONDS = 3600.0
"""Grace period of a notice that no kill follows: a recall, or an orphaned trainer."""


class NoticeBoard:
    """Holds the first notice; later ones do not replace it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: tuple[str, float, float] | None = None

    def leave(self, kind: str, *, grace_seconds: float) -> None:
        """Record that this process will be stopped `grace_seconds` from now. Uses no lock, no log, no I/O."""
        if self._left is None:
            self._left = (kind, self._clock.monotonic(), grace_seconds)

    def read(self) -> Notice | None:
        """The notice, if one was left."""
        if self._left is None:
            return None
        kind, at, grace_seconds = self._left
        ago = timedelta(seconds=self._clock.monotonic() - at)
        return Notice(kind=kind, received_at=self._clock.now() - ago, grace_seconds=grace_seconds)

    def seconds_left(self) -> float | None:
        """Seconds until the kill, as far as is known; None without a notice."""
        if self._left is None:
            return None
        _, at, grace_seconds = self._left
        return grace_seconds - (self._clock.monotonic() - at)
