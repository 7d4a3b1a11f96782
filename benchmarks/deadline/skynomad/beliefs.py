"""What a run knows of its pools from its own attempts: how intervals end, and how often a request is granted. Pure.

The prior is PLAN's on one pool: hazards by age from the traces of "Can't Be Late", the last bin parted at 32 hours.
Each pool has an unknown factor on the hazards of its young intervals and one on those of its old ones, with gamma
priors: pools differ much more in how long their long intervals last than in how short the short ones are. If a factor
is not known, an interval that lasts shows that its factor is small, so the hazard that counts at age a is

    base(a) (w + ends) / (w / g + expected + H(a))

H(a) are the ends that the base expects until that age, w is the prior's weight in ends, and g the mean factor of all
pools of this run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.deadline.skynomad.cases import HOUR
from segue.policy.rules import hazards
from segue.policy.rules.view import Floats

AGE_EDGES_SECONDS = np.append(hazards.AGE_EDGES_SECONDS, 32 * HOUR)
BINS = len(AGE_EDGES_SECONDS) + 1
UP_RATES = np.append(hazards.UP_RATES[:-1], np.array([0.1, 0.04]) / HOUR)
DOWN_RATES = np.append(hazards.DOWN_RATES[:-1], np.array([0.06, 0.02]) / HOUR)
"""Ends per second, by age; beyond 16 hours from the same traces, which have few such intervals."""
UNKNOWN_AGE_SECONDS = hazards.UNKNOWN_AGE_SECONDS

_STARTS = np.concatenate([[0.0], AGE_EDGES_SECONDS])
_WIDTHS = np.append(np.diff(_STARTS), np.inf)
_MIDDLES = np.append((_STARTS[:-1] + _STARTS[1:]) / 2, 48 * HOUR)
_IS_YOUNG = np.arange(BINS) < 3
"""The ages up to about an hour."""


def age_bin(seconds: float) -> int:
    """The bin of an age."""
    return int(np.searchsorted(AGE_EDGES_SECONDS, seconds, side="right"))


def expected_ends(rates: Floats, seconds: float) -> Floats:
    """Ends that these rates expect until this age: those of young and those of old ages."""
    each = rates * np.clip(seconds - _STARTS, 0.0, _WIDTHS)
    return np.array([each[_IS_YOUNG].sum(), each[~_IS_YOUNG].sum()])


def survival(rates: Floats, begin_seconds: float, seconds: float) -> Floats:
    """The share of intervals of this age that last so much longer, for the rates of each pool."""
    after, before = (np.clip(age - _STARTS, 0.0, _WIDTHS) for age in (begin_seconds + seconds, begin_seconds))
    return np.asarray(np.exp(-(rates * (after - before)).sum(axis=-1)))


class Weights(NamedTuple):
    """Weights of the priors: in ends for the factors, young and old; in requests for the share of granted ones."""

    up: tuple[float, float] = (3.0, 1.0)
    down: tuple[float, float] = (3.0, 1.5)
    share: float = 2.0
    prior_share: float = 0.65
    """The share of requests that are granted, before any was made."""


@dataclass
class _Ends:
    """The intervals of one kind that each pool has shown."""

    base: Floats
    weight: Floats
    ends: Floats
    expected: Floats

    @classmethod
    def none(cls, base: Floats, weight: tuple[float, float], pools: int) -> _Ends:
        return cls(base, np.array(weight), np.zeros((pools, 2)), np.zeros((pools, 2)))

    def add(self, pool: int, begin_seconds: float, seconds: float, *, has_ended: bool) -> None:
        age = begin_seconds + seconds
        self.expected[pool] += expected_ends(self.base, age) - expected_ends(self.base, begin_seconds)
        self.ends[pool, 0 if _IS_YOUNG[age_bin(age)] else 1] += has_ended

    def rates(self) -> Floats:
        """Hazards that count, by pool and age."""
        mean = (self.weight + self.ends.sum(axis=0)) / (self.weight + self.expected.sum(axis=0))
        above, below = self.weight + self.ends, self.weight / mean + self.expected
        until = np.array([expected_ends(self.base, age) for age in _MIDDLES])
        group = np.where(_IS_YOUNG, 0, 1)
        lasted = until[np.arange(BINS), group]
        return np.asarray(self.base * above[:, group] / (below[:, group] + lasted))


class Beliefs:
    """What one run has seen."""

    def __init__(self, pools: int, weights: Weights) -> None:
        self._weights = weights
        self.up = _Ends.none(UP_RATES, weights.up, pools)
        self.down = _Ends.none(DOWN_RATES, weights.down, pools)
        self._granted, self._refused = np.zeros(pools), np.zeros(pools)

    def asked(self, pool: int, *, is_granted: bool) -> None:
        """Take note of a request to a pool that was not seen for a while."""
        (self._granted if is_granted else self._refused)[pool] += 1

    def shares(self) -> Floats:
        """The probability that a pool grants a request, if it was not seen for a while."""
        weight, granted, refused = self._weights.share, self._granted, self._refused
        pooled = weight + granted.sum() + refused.sum()
        mean = (weight * self._weights.prior_share + granted.sum()) / pooled
        return np.asarray((weight * mean + granted) / (weight + granted + refused))

    @property
    def version(self) -> tuple[bytes, ...]:
        """Changes with what was seen to end or to be refused, not with time alone."""
        return tuple(each.tobytes() for each in (self.up.ends, self.down.ends, self._granted, self._refused))
