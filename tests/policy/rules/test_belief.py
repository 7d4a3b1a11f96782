"""What can be believed of spot while nobody sees it."""

from __future__ import annotations

import numpy as np
import pytest

from segue.policy.rules.belief import BELIEFS, belief_at, fades, likely
from segue.policy.rules.hazards import BINS, age_bin
from segue.policy.rules.plan_table import moves

HOUR = 3600.0
CHANCES = moves(600.0, up_factor=1.0, down_factor=1.0)
LIKELY = likely(CHANCES, 600.0)


def up_chance(*, is_up: bool, seen_age: float, unseen: float) -> float:
    at = belief_at(np.array([is_up]), np.array([seen_age + unseen]), np.array([unseen]))
    return float(LIKELY[at[0], :BINS].sum())


def test_every_belief_adds_up_to_one_and_leads_to_one():
    assert LIKELY.shape == (BELIEFS, 2 * BINS)
    assert np.allclose(LIKELY.sum(axis=1), 1)
    assert np.allclose(fades(600.0).sum(axis=1), 1)


def test_what_was_just_seen_is_likely_still_so():
    assert up_chance(is_up=True, seen_age=6 * HOUR, unseen=0.0) > 0.9
    assert up_chance(is_up=False, seen_age=6 * HOUR, unseen=0.0) < 0.1


def test_long_after_it_no_longer_matters_what_was_seen():
    after = [up_chance(is_up=is_up, seen_age=600.0, unseen=48 * HOUR) for is_up in (True, False)]
    assert after[0] == pytest.approx(after[1], abs=0.1)
    assert up_chance(is_up=False, seen_age=20 * HOUR, unseen=2 * HOUR) < after[1]


def test_the_time_since_goes_on_and_what_was_seen_stays():
    at = int(belief_at(np.array([False]), np.array([2 * HOUR]), np.array([HOUR]))[0])
    belief = np.zeros(BELIEFS)
    belief[at] = 1.0
    for _ in range(60):
        belief = belief @ fades(600.0)
    reached = np.flatnonzero(belief > 1e-12)
    assert set(reached // BINS) == {BINS + age_bin(HOUR)}
    assert reached.max() % BINS >= age_bin(8 * HOUR)
    assert belief[at] < 1e-3


@pytest.mark.parametrize("hours", [0.3, 1.5, 6.0])
def test_beliefs_are_what_happens_to_spot_that_nobody_watches(hours):
    """Against many made stretches: how often spot is up so long after it went down."""
    from segue.simulation.synthetic import made_up

    random = np.random.default_rng(7)
    up = made_up(random, runs=3000, seconds=30 * HOUR, tick_seconds=600.0)
    ended = up[:, 59] & ~up[:, 60]  # It went down ten hours in: age 0.
    later = up[ended, 60 + round(hours * 6)]
    believed = up_chance(is_up=False, seen_age=0.0, unseen=hours * HOUR)
    assert believed == pytest.approx(later.mean(), abs=3 * 0.5 / np.sqrt(len(later)) + 0.07)
