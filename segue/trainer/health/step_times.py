"""The durations of an attempt's newest steps, and the decision whether this machine is slow.

A machine is slow if more than three quarters of its newest 48 steps took more than 1.15 times the usual duration of a
step. The usual duration is that of the run's earlier attempts on like hardware. A count of slow steps, unlike a mean or
a standard error, does not depend on the distribution of the noise.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from statistics import median

log = logging.getLogger(__name__)

WINDOW_STEPS, _EVERY_STEPS = 48, 2
_MOST_MEDIANS = 1000
SLOW_RATIO, _SLOW_SHARE = 1.15, 0.75


class StepTimes:
    """The durations of one attempt's steps. Only the training thread adds durations."""

    def __init__(self, usual_seconds: float | None) -> None:
        """`usual_seconds` is the usual duration of a step; None if the run has too few attempts on like hardware."""
        self.usual_seconds = usual_seconds
        self.slowness: float | None = None
        """Duration of the newest steps divided by the usual duration, if this machine is slow now; otherwise None."""
        self._newest: deque[float] = deque(maxlen=WINDOW_STEPS)
        self._medians: deque[float] = deque(maxlen=_MOST_MEDIANS)
        self._count, self._is_named = 0, False

    def add(self, seconds: float) -> None:
        """Add the duration of a step."""
        self._newest.append(seconds)
        self._count += 1
        if self._count % WINDOW_STEPS == 0:
            self._medians.append(median(self._newest))
        if self.usual_seconds is None or self._count % _EVERY_STEPS or self._count < WINDOW_STEPS:
            return
        self.slowness = slowness_of(self._newest, self.usual_seconds)
        if self.slowness is not None and not self._is_named:
            self._is_named = True
            log.warning("this machine is slow: its steps take %.2f times as long as usual", self.slowness)

    @property
    def newest_seconds(self) -> float:
        """Median duration of the newest steps; 0 before the first step."""
        return median(self._newest or (0.0,))

    @property
    def median_seconds(self) -> float | None:
        """Median duration of a step of this attempt; None before 48 steps."""
        return median(self._medians) if self._medians else None


def slowness_of(seconds: Sequence[float], usual_seconds: float) -> float | None:
    """If a machine or a rank with these durations is slow, return the median duration divided by the usual duration;
    otherwise None."""
    limit_seconds = SLOW_RATIO * usual_seconds
    is_slow = sum(each > limit_seconds for each in seconds) > _SLOW_SHARE * len(seconds)
    return median(seconds) / usual_seconds if is_slow else None
