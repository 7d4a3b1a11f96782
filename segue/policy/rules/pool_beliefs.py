"""Estimates the hazards of the availability intervals of several spot pools, and how often a pool grants a request.

The module is pure. The prior is that of PLAN on one pool: hazards by age from the traces of "Can't Be Late" (NSDI
2024), with the last age bin divided at 32 hours. For each pool, one unknown factor scales the hazards of young
intervals, and a second factor scales the hazards of old intervals. Both factors have gamma priors. Two factors are
necessary, because pools differ more in the length of their long intervals than in the length of their short intervals.

An interval that lasts is evidence that the unknown factor is small. The hazard at age a is therefore

    base(a) (w + ends) / (w / g + expected + H(a))

H(a) is the number of ends that the base predicts until age a, w is the weight of the prior in ends, and g is the mean
factor of all pools of the run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from segue.policy.rules import hazards
from segue.policy.rules.hazards import HOUR
from segue.policy.rules.view import Floats

AGE_EDGES_SECONDS = np.append(hazards.AGE_EDGES_SECONDS, 32 * HOUR)
BINS = len(AGE_EDGES_SECONDS) + 1
UP_RATES = np.append(hazards.UP_RATES[:-1], np.array([0.1, 0.04]) / HOUR)
DOWN_RATES = np.append(hazards.DOWN_RATES[:-1], np.array([0.06, 0.02]) / HOUR)
"""Number of ends of down intervals per second, by age. The traces have few intervals of more than 16 hours."""
UNKNOWN_AGE_SECONDS = 1800.0
"""Assumed age in seconds of an interval whose start the run did not observe.

The assumed age is shorter than on one pool. An end in the first minutes of a machine is therefore the end of a young
interval, and shows that machines of the pool die early.
"""

_STARTS = np.concatenate([[0.0], AGE_EDGES_SECONDS])
_WIDTHS = np.append(np.diff(_STARTS), np.inf)
_MIDDLES = np.append((_STARTS[:-1] + _STARTS[1:]) / 2, 48 * HOUR)
_IS_YOUNG = np.arange(BINS) < 3
"""The age bins up to about an hour."""


def age_bin(seconds: float) -> int:
    """Return the bin of an age."""
    return int(np.searchsorted(AGE_EDGES_SECONDS, seconds, side="right"))


def expected_ends(rates: Floats, seconds: float) -> Floats:
    """Return the number of ends that the rates predict until an age, as an array of (young, old)."""
    each = rates * np.clip(seconds - _STARTS, 0.0, _WIDTHS)
    return np.array([each[_IS_YOUNG].sum(), each[~_IS_YOUNG].sum()])


def survival(rates: Floats, begin_seconds: float, seconds: float) -> Floats:
    """Return, for each pool, the share of intervals of age `begin_seconds` that do not end within `seconds`."""
    after, before = (np.clip(age - _STARTS, 0.0, _WIDTHS) for age in (begin_seconds + seconds, begin_seconds))
    return np.asarray(np.exp(-(rates * (after - before)).sum(axis=-1)))


class Weights(NamedTuple):
    """Weights of the priors.

    `up` and `down` count ended intervals, for young and for old intervals. `share` counts requests.
    """

    up: tuple[float, float] = (3.0, 1.0)
    down: tuple[float, float] = (3.0, 1.5)
    share: float = 2.0
    prior_share: float = 0.65
    """The prior of the share of requests that a pool grants."""


@dataclass
class Ends:
    """The observed up intervals or down intervals of each pool."""

    base: Floats
    weight: Floats
    ends: Floats
    expected: Floats

    @classmethod
    def none(cls, base: Floats, weight: tuple[float, float], pools: int) -> Ends:
        return cls(base, np.array(weight), np.zeros((pools, 2)), np.zeros((pools, 2)))

    def add(self, pool: int, begin_seconds: float, seconds: float, *, has_ended: bool) -> None:
        """Add an interval whose observation began at the age `begin_seconds`."""
        age = begin_seconds + seconds
        self.expected[pool] += expected_ends(self.base, age) - expected_ends(self.base, begin_seconds)
        self.ends[pool, 0 if _IS_YOUNG[age_bin(age)] else 1] += has_ended

    def rates(self) -> Floats:
        """Return the hazards, as an array of (pool, age)."""
        mean = (self.weight + self.ends.sum(axis=0)) / (self.weight + self.expected.sum(axis=0))
        above, below = self.weight + self.ends, self.weight / mean + self.expected
        until = np.array([expected_ends(self.base, age) for age in _MIDDLES])
        group = np.where(_IS_YOUNG, 0, 1)
        lasted = until[np.arange(BINS), group]
        return np.asarray(self.base * above[:, group] / (below[:, group] + lasted))


class Beliefs:
    """The observations of one run."""

    def __init__(self, pools: int, weights: Weights) -> None:
        self._weights = weights
        self.up = Ends.none(UP_RATES, weights.up, pools)
        self.down = Ends.none(DOWN_RATES, weights.down, pools)
        self._granted, self._refused = np.zeros(pools), np.zeros(pools)

    def asked(self, pool: int, *, is_granted: bool) -> None:
        """Add a request to a pool without a recent request."""
        (self._granted if is_granted else self._refused)[pool] += 1

    def shares(self) -> Floats:
        """Return the probability that a pool without a recent request grants a request."""
        weight, granted, refused = self._weights.share, self._granted, self._refused
        pooled = weight + granted.sum() + refused.sum()
        mean = (weight * self._weights.prior_share + granted.sum()) / pooled
        return np.asarray((weight * mean + granted) / (weight + granted + refused))

    @property
    def version(self) -> tuple[bytes, ...]:
        """A value that changes with each observed end and each request, but not with time."""
        return tuple(each.tobytes() for each in (self.up.ends, self.down.ends, self._granted, self._refused))
