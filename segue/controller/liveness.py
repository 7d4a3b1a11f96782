"""Implements the heartbeat timeout: a process is alive as long as its heartbeat counter changes."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HeartbeatTimeout:
    """Determines from repeated reads of a heartbeat counter whether its writer is alive.

    Times are from the reader's monotonic clock. While the store is unreachable, the counter can be neither read nor
    written. Therefore the class counts the time between two reads as at most half a heartbeat timeout. The other half
    remains for the writer's next heartbeat.
    """

    heartbeat_timeout_seconds: float
    _counter: int | None = None
    _unchanged_seconds: float = field(default=0.0)
    _read_at: float = field(default=0.0)

    def update(self, counter: int | None, *, at: float) -> None:
        """Record a read of the counter. The counter is None if the writer has not written it yet."""
        counter = counter or 0
        if counter == self._counter:
            self._unchanged_seconds += min(at - self._read_at, self.heartbeat_timeout_seconds / 2)
        else:
            self._counter, self._unchanged_seconds = counter, 0.0
        self._read_at = at

    @property
    def unchanged_seconds(self) -> float:
        """Return the seconds for which reads have shown no change of the counter."""
        return self._unchanged_seconds

    @property
    def is_expired(self) -> bool:
        return self._unchanged_seconds > self.heartbeat_timeout_seconds
