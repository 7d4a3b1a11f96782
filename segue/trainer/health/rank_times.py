"""The own times of all ranks of an attempt, and the decision which ranks are slow.

A rank is slow if more than three quarters of its newest 48 own times are more than 1.15 times the usual own time. The
usual own time is the median of the other ranks' medians.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from statistics import median

from segue.records import Machine, SlowRank
from segue.trainer.health.step_times import SLOW_RATIO, WINDOW_STEPS, slowness_of

log = logging.getLogger(__name__)

_EVERY_STEPS, _RANKS_PER_STEP = 4, 8
"""The ranks are compared every fourth step, or less often if there are many, so that the cost for each step is
small."""


class RankTimes:
    """The newest own times of each rank. Only the training thread of the leader adds own times."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        """`machines` has the machine of each rank, in order of rank."""
        self.slow: tuple[SlowRank, ...] = ()
        """The ranks that are slow now."""
        self.excess_seconds = 0.0
        """Seconds by which the own time of the slowest rank exceeds that of the other ranks."""
        self._machines = machines
        self._newest = [deque[float](maxlen=WINDOW_STEPS) for _ in machines]
        self._every = max(_EVERY_STEPS, len(machines) // _RANKS_PER_STEP)
        self._count = 0
        self._named: set[int] = set()

    def add(self, own_seconds: Sequence[float]) -> None:
        """Add the own time of each rank in a step, in order of rank. If a rank has no own time, add nothing."""
        if len(own_seconds) < len(self._newest):
            return
        for newest, seconds in zip(self._newest, own_seconds, strict=True):
            newest.append(seconds)
        self._count += 1
        if self._count >= WINDOW_STEPS and self._count % self._every == 0:
            self._compare()

    def _compare(self) -> None:
        middles = [median(newest) for newest in self._newest]
        found, lowest, self.excess_seconds = [], min(middles), 0.0
        for rank, middle in enumerate(middles):
            if middle <= SLOW_RATIO * lowest:
                continue  # A quick answer for nearly all ranks.
            usual = median(middles[:rank] + middles[rank + 1 :])
            slowness = slowness_of(self._newest[rank], usual)
            if slowness is not None:
                found.append(SlowRank(rank=rank, machine=self._machines[rank], slowness=round(slowness, 4)))
                self.excess_seconds = max(self.excess_seconds, middle - usual)
        self.slow = tuple(found)
        for each in found:
            if each.rank not in self._named:
                self._named.add(each.rank)
                log.warning("a rank is slow: %s", each.in_words)
