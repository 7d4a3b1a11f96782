"""A heartbeat timeout: tells a living process from a dead one by a counter that moves."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class HeartbeatTimeout:
    """A counter that moves, judged by the reader's own monotonic clock.

    While the store is away nobody sees the counter, and nobody can move it. So a gap between two looks, however long,
    counts as half a heartbeat timeout at most; the other half is for the other side, to beat again.
    """

    heartbeat_timeout_seconds: float
    _counter: int | None = None
    _still_seconds: float = field(default=0.0)
    _looked_at: float = field(default=0.0)

    def saw(self, counter: int | None, *, at: float) -> None:
        """Note what the counter shows; None when there is none yet."""
        counter = counter or 0
        if counter == self._counter:
            self._still_seconds += min(at - self._looked_at, self.heartbeat_timeout_seconds / 2)
        else:
            self._counter, self._still_seconds = counter, 0.0
        self._looked_at = at

    @property
    def still_seconds(self) -> float:
        """How long the counter has stood still, as far as was looked."""
        return self._still_seconds

    @property
    def is_expired(self) -> bool:
        return self._still_seconds > self.heartbeat_timeout_seconds
