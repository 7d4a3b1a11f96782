"""Availability without data files, from hazards."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.policy.rules.hazards import BINS, DOWN_RATES, UP_RATES, age_bin
from segue.simulation.traces import synthetic_availability

DAY = 86400.0


def ends_by_age(rows: np.ndarray, tick: float, *, up: bool) -> tuple[np.ndarray, np.ndarray]:
    """Ends and ticks observed by age bin, of intervals whose start was observed."""
    ends, observed = np.zeros(BINS), np.zeros(BINS)
    age = np.full(len(rows), np.nan)
    for here, there in zip(rows.T[:-1], rows.T[1:], strict=True):
        these = (here == up) & ~np.isnan(age)
        bins = age_bin(age[these])
        observed += np.bincount(bins, minlength=BINS)
        ends += np.bincount(bins, weights=here[these] != there[these], minlength=BINS)
        age = np.where(here != there, 0.0, age + tick)
    return ends, observed


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**32 - 1),
    factors=st.tuples(st.floats(0.3, 3.0), st.floats(0.3, 3.0)),
    tick=st.sampled_from([300.0, 600.0, 900.0]),
)
def test_synthetic_traces_have_the_hazards_requested(seed, factors, tick):
    rows = synthetic_availability(
        np.random.default_rng(seed), 300, 8 * DAY, tick, up_factor=factors[0], down_factor=factors[1]
    )
    for up, rates in ((True, UP_RATES * factors[0]), (False, DOWN_RATES * factors[1])):
        ends, observed = ends_by_age(rows, tick, up=up)
        chance = -np.expm1(-rates * tick)
        spread = np.sqrt(observed * chance * (1 - chance)) + 1
        assert (np.abs(ends - observed * chance) < 6 * spread).all()
        assert observed.sum() > 1000


def test_synthetic_traces_start_at_a_random_moment():
    rows = synthetic_availability(np.random.default_rng(1), 6000, 4 * DAY, 600.0)
    shares = rows[:, [0, 144, 288, -1]].mean(axis=0)
    assert 0.1 < shares[0] < 0.9
    assert np.abs(shares - shares[0]).max() < 6 * 0.5 / np.sqrt(6000)
    # Nor is a change likelier right after the start than later.
    changes = rows[:, 1:] != rows[:, :-1]
    assert abs(changes[:, :6].mean() - changes[:, -6:].mean()) < 0.01


def test_the_same_seed_gives_the_same_rows_of_the_length_requested():
    first, again = (synthetic_availability(np.random.default_rng(3), 5, 3601.0, 600.0) for _ in range(2))
    assert first.shape == (5, 8)
    assert (first == again).all()


@pytest.mark.parametrize(("factor", "rises"), [("up_factor", False), ("down_factor", True)])
def test_factors_make_spot_rarer_or_more_frequent(factor, rises):
    usual, other = (
        synthetic_availability(np.random.default_rng(5), 2000, DAY, 600.0, **{factor: f}).mean() for f in (1.0, 3.0)
    )
    assert bool(other > usual) is rises
