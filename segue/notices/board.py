"""The board on which notices are left and read. Leaving one is safe from a signal handler and from any thread."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

from segue.clock import Clock
from segue.records import Notice

NO_KILL_COMING_SECONDS = 3600.0
"""Grace period of a notice without a kill after it: a recall, or an orphaned trainer."""


class _Left(NamedTuple):
    """A notice in force; times are the clock's monotonic ones."""

    kind: str
    at: float
    kill_at: float
    phase: str | None


WITHDRAWABLE = frozenset({"azure"})
"""Kinds of notices that their provider may take back."""


class NoticeBoard:
    """Holds one notice of each kind; the one with the nearest deadline is read.

    A hint is no notice: it recommends to save and gives no deadline, so nothing stops for it.
    """

    # Sources write while the loop reads. Every access to a dict below is one operation, which no signal handler and no
    # other thread can interrupt; a lock could be held by the very code that a handler interrupts.

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left: dict[str, _Left] = {}
        self._hints: dict[str, float] = {}
        self._is_held = False
        self._withdrawing = threading.Lock()
        self.phase_of: Callable[[], str | None] = lambda: None
        """Returns what the attempt does now. Called where a notice is left, even in a signal handler: it only reads."""

    def leave(self, kind: str, *, grace_seconds: float) -> None:
        """Record that this process will be stopped `grace_seconds` from now. Uses no lock, no log, no I/O.

        A second notice of a kind counts only if it leaves less time than the first.
        """
        at = self._clock.monotonic()
        known = self._left.get(kind)
        if known is None:
            self._left[kind] = _Left(kind, at, at + grace_seconds, self.phase_of())
        elif at + grace_seconds < known.kill_at:
            self._left[kind] = known._replace(kill_at=at + grace_seconds)

    def restate(self, kind: str, *, grace_seconds: float) -> None:
        """Record the deadline that the provider states now, which may be later than the previous one.

        Once the notice is held, a later deadline is ignored. Not for signal handlers.
        """
        at = self._clock.monotonic()
        with self._withdrawing:
            known = self._left.get(kind)
            if known is None or self._is_held:
                self.leave(kind, grace_seconds=grace_seconds)
            else:
                self._left[kind] = known._replace(kill_at=at + grace_seconds)

    def withdraw(self, kind: str) -> bool:
        """Remove the notice of this kind, unless it is held; return whether there was one. Not for signal handlers."""
        with self._withdrawing:
            return not self._is_held and self._left.pop(kind, None) is not None

    def hold(self) -> None:
        """Keep every notice from now on, because the attempt ends on it. Not for signal handlers."""
        with self._withdrawing:
            self._is_held = True

    def read(self) -> Notice | None:
        """The notice with the nearest deadline, if there is one."""
        nearest = self._nearest()
        if nearest is None:
            return None
        # The difference of two points in time may differ in its last bits from the period that was added to the first.
        grace_seconds = round(max(nearest.kill_at - nearest.at, 0.0), 3)
        return self._notice(nearest.kind, at=nearest.at, grace_seconds=grace_seconds, phase=nearest.phase)

    def nearest(self) -> tuple[str, float] | None:
        """Kind and seconds left of the notice with the nearest deadline; None without a notice."""
        nearest = self._nearest()
        return None if nearest is None else (nearest.kind, nearest.kill_at - self._clock.monotonic())

    def seconds_left(self) -> float | None:
        """Seconds until the kill, as far as is known; None without a notice."""
        nearest = self.nearest()
        return None if nearest is None else nearest[1]

    @property
    def first_kind(self) -> str | None:
        """Kind of the notice that came first; None without a notice."""
        first = min(list(self._left.values()), key=lambda left: left.at, default=None)
        return None if first is None else first.kind

    def hint(self, kind: str) -> None:
        """Record that the provider recommends to save soon."""
        self._hints[kind] = self._clock.monotonic()

    @property
    def is_empty(self) -> bool:
        """Whether it holds neither a notice nor a hint."""
        return not self._left and not self._hints

    def take_hints(self) -> list[Notice]:
        """The hints since the last call, without a known end: their grace period is infinite."""
        taken = [(kind, self._hints.pop(kind)) for kind in list(self._hints)]
        return [self._notice(kind, at=at, grace_seconds=math.inf) for kind, at in taken]

    def _nearest(self) -> _Left | None:
        return min(list(self._left.values()), key=lambda left: (left.kill_at, left.at), default=None)

    def _notice(self, kind: str, *, at: float, grace_seconds: float, phase: str | None = None) -> Notice:
        ago = timedelta(seconds=self._clock.monotonic() - at)
        return Notice(kind=kind, received_at=self._clock.now() - ago, grace_seconds=grace_seconds, phase=phase)
