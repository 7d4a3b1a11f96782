"""Models how availability intervals end.

The module corrects published hazards by a run's own observations, and is pure. The hazard of an interval decreases with
its age. The prior is the share of intervals that end within ten minutes, by age, in the availability traces of "Can't
Be Late" (NSDI 2024). A run's own intervals scale the prior. Ends follow a Poisson process whose rate is the prior's
rate multiplied by an unknown factor with a gamma prior. After some intervals, the mean of the unknown factor is (weight
+ ends observed) / (weight + ends expected).
"""

from __future__ import annotations

import numpy as np

from segue.policy.rules.view import Floats, Intervals

HOUR = 3600.0
AGE_EDGES_SECONDS = np.array([0.25, 0.58, 1.08, 2.08, 4.08, 8.08, 16.08]) * HOUR
"""The edges between the age bins in seconds. The last bin has no upper edge."""
BINS = len(AGE_EDGES_SECONDS) + 1
_PER = 600.0
UNKNOWN_AGE_SECONDS = 3600.0
"""Assumed age in seconds of an interval whose start the run did not observe.

The assumed age is long, because a random moment is more likely to fall into a long interval.
"""
UP_ENDS = np.array([0.278, 0.194, 0.143, 0.080, 0.045, 0.036, 0.024, 0.018])
"""Share of up intervals that end within ten minutes, by age."""
DOWN_ENDS = np.array([0.350, 0.162, 0.102, 0.068, 0.046, 0.031, 0.021, 0.006])
"""Share of down intervals that end within ten minutes, by age."""
UP_RATES = -np.log1p(-UP_ENDS) / _PER
"""Number of ends of up intervals per second, by age."""
DOWN_RATES = -np.log1p(-DOWN_ENDS) / _PER


def age_bin(seconds: Floats) -> np.ndarray:
    """Return the bin of each age."""
    return np.searchsorted(AGE_EDGES_SECONDS, seconds, side="right")


def factors(observed: Intervals, *, weight: float) -> tuple[Floats, Floats]:
    """Return the hazards of this run's up and down intervals as multiples of the published hazards.

    `weight` is the weight of the prior, in ends.
    """
    up = (weight + observed.up_ends) / (weight + observed.up_expected)
    down = (weight + observed.down_ends) / (weight + observed.down_expected)
    return up, down


def expected_ends(rates: Floats, seconds: float) -> float:
    """Return the number of ends that the given hazards predict in the first `seconds` of an interval."""
    inside = np.clip(seconds - _STARTS, 0.0, np.append(np.diff(_STARTS), np.inf))
    return float(rates @ inside)


def mean_left_seconds(ages: Floats) -> tuple[Floats, Floats]:
    """Return the mean remaining seconds of an up interval and of a down interval, by age.

    Above the last edge, the values do not depend on the age.
    """
    bins = age_bin(ages)
    start = np.maximum(ages - _STARTS[bins], 0.0)
    return tuple(_mean_left(rates, bins, start) for rates in (UP_RATES, DOWN_RATES))  # type: ignore[return-value]


_STARTS = np.concatenate([[0.0], AGE_EDGES_SECONDS])


def _mean_left(rates: Floats, bins: np.ndarray, into: Floats) -> Floats:
    # The hazard is constant within a bin: the mean is 1/rate, or the rest of the bin and then the mean of the next bin.
    left = np.empty(BINS)
    left[-1] = 1 / rates[-1]
    for at in range(BINS - 2, -1, -1):
        survives = np.exp(-rates[at] * (_STARTS[at + 1] - _STARTS[at]))
        left[at] = (1 - survives) / rates[at] + survives * left[at + 1]
    ends = np.append(_STARTS[1:], np.inf)
    rest = np.where(bins < BINS - 1, ends[bins] - _STARTS[bins] - into, 0.0)
    survives = np.exp(-rates[bins] * rest)
    nexts = np.append(left[1:], left[-1])[bins]
    return np.asarray(np.where(bins < BINS - 1, (1 - survives) / rates[bins] + survives * nexts, left[-1]))
