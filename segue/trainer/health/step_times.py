"""The durations of an attempt's newest steps, and the decision whether this machine is slow.

A machine is slow if the median of the newest 48 steps is more than 1.15 times the usual duration of a step, by more
than four standard errors of that median. The usual duration is that of the run's earlier attempts on like hardware. The
standard error comes from the spread of the steps, so that noise gives no false alarm.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Sequence
from statistics import median

log = logging.getLogger(__name__)

WINDOW_STEPS, _EVERY_STEPS = 48, 2
_MOST_MEDIANS = 1000
_SLOW_RATIO, _STANDARD_ERRORS = 1.15, 4.0
_SIGMAS_PER_DEVIATION, _ERROR_OF_MEDIAN = 1.4826, 1.2533
"""For normal noise: the standard deviation per median absolute deviation, and the standard error of a median per
standard error of a mean."""


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
    def median_seconds(self) -> float | None:
        """Median duration of a step of this attempt; None before 48 steps."""
        return median(self._medians) if self._medians else None


def slowness_of(seconds: Sequence[float], usual_seconds: float) -> float | None:
    """Return the median of these durations divided by the usual duration, if the machine is slow; otherwise None."""
    middle = median(seconds)
    deviation = median(abs(each - middle) for each in seconds)
    error = _ERROR_OF_MEDIAN * _SIGMAS_PER_DEVIATION * deviation / math.sqrt(len(seconds))
    return middle / usual_seconds if middle - _STANDARD_ERRORS * error > _SLOW_RATIO * usual_seconds else None
