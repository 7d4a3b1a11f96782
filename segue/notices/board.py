"""The board for notices, to which a signal handler and any thread may write."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from segue.clock import Clock
from segue.records import Notice

NO_KILL_COMING_SECONDS = 3600.0
"""Grace period in seconds of a notice that no kill follows: a recall, or the end of the parent."""


class _Left(NamedTuple):
    """A notice that was not withdrawn. Its times are monotonic seconds."""

    kind: str
    at: float
    kill_at: float
    phase: str | None


WITHDRAWABLE = frozenset({"azure"})
"""Kinds of notices that the provider may withdraw."""


class NoticeBoard:
    """A board with at most one notice of each kind. `read` returns the notice with the nearest deadline.

    A hint is not a notice. A hint recommends to save, and has no deadline, so training does not stop because of a hint.
    """

    # Sources write while the loop reads. Every access to a dict below is one operation, which no signal handler and no
    # other thread can interrupt. A lock would not work, because a signal handler may interrupt the code that holds the
    # lock.

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, _Left] = {}
        self._hints: dict[str, float] = {}
        self._is_held = False
        self.zone: str | None = None
        """Zone of this machine. Before the first answer of the cloud's metadata service, the value is None."""
        self._withdrawing = threading.Lock()
        self.phase_of: Callable[[], str | None] = lambda: None
        """A function that returns the attempt's current phase. The function must only read, because a signal handler
        calls it."""

    def leave(self, kind: str, *, grace_seconds: float) -> None:
        """Record that this process will be killed in `grace_seconds`. Use no locks, logs, input or output.

        If the board already has a notice of this kind, the deadline can only become earlier.
        """
        at = self._clock.monotonic()
        known = self._left.get(kind)
        if known is None:
            self._left[kind] = _Left(kind, at, at + grace_seconds, self.phase_of())
        elif at + grace_seconds < known.kill_at:
            self._left[kind] = known._replace(kill_at=at + grace_seconds)

    def restate(self, kind: str, *, grace_seconds: float) -> None:
        """Record the provider's newest deadline, which may be later than the previous one.

        After `hold`, ignore a later deadline. A signal handler must not call this method.
        """
        at = self._clock.monotonic()
        with self._withdrawing:
            known = self._left.get(kind)
            if known is None or self._is_held:
                self.leave(kind, grace_seconds=grace_seconds)
            else:
                self._left[kind] = known._replace(kill_at=at + grace_seconds)

    def withdraw(self, kind: str) -> bool:
        """Remove the notice of this kind, except after `hold`. Return True if a notice was removed.

        A signal handler must not call this method.
        """
        with self._withdrawing:
            return not self._is_held and self._left.pop(kind, None) is not None

    def hold(self) -> None:
        """From now on, keep every notice, because the attempt ends on a notice.

        A signal handler must not call this method.
        """
        with self._withdrawing:
            self._is_held = True

    def read(self) -> Notice | None:
        """Return the notice with the nearest deadline. If there is no notice, return None."""
        nearest = self._nearest()
        if nearest is None:
            return None
        # The seconds are rounded, because the difference of two times may differ from the added period in the last
        # bits.
        grace_seconds = round(max(nearest.kill_at - nearest.at, 0.0), 3)
        return self._notice(nearest.kind, at=nearest.at, grace_seconds=grace_seconds, phase=nearest.phase)

    def nearest(self) -> tuple[str, float] | None:
        """Return the kind and the remaining seconds of the notice with the nearest deadline.

        If there is no notice, return None.
        """
        nearest = self._nearest()
        return None if nearest is None else (nearest.kind, nearest.kill_at - self._clock.monotonic())

    def seconds_left(self) -> float | None:
        """Return the number of seconds until this process will be killed. If there is no notice, return None."""
        nearest = self.nearest()
        return None if nearest is None else nearest[1]

    @property
    def first_kind(self) -> str | None:
        """Kind of the first notice. If there is no notice, the value is None."""
        first = min(list(self._left.values()), key=lambda left: left.at, default=None)
        return None if first is None else first.kind

    def hint(self, kind: str) -> None:
        """Record the provider's recommendation to save soon."""
        self._hints[kind] = self._clock.monotonic()

    @property
    def is_empty(self) -> bool:
        """Whether the board has neither notices nor hints."""
        return not self._left and not self._hints

    def take_hints(self) -> list[Notice]:
        """Return the hints since the last call.

        The grace period of a hint is infinite, because a hint has no deadline.
        """
        taken = [(kind, self._hints.pop(kind)) for kind in list(self._hints)]
        return [self._notice(kind, at=at, grace_seconds=math.inf) for kind, at in taken]

    def _nearest(self) -> _Left | None:
        return min(list(self._left.values()), key=lambda left: (left.kill_at, left.at), default=None)

    def _notice(self, kind: str, *, at: float, grace_seconds: float, phase: str | None = None) -> Notice:
        ago = timedelta(seconds=self._clock.monotonic() - at)
        return Notice(kind=kind, received_at=self._clock.now() - ago, grace_seconds=grace_seconds, phase=phase)
