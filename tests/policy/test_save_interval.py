"""How often a run commits: the cost of a save, the rule, its bounds, and the last save before a notice takes effect."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.policy.save_interval import (
    CostMeter,
    Life,
    SaveCost,
    as_asked,
    interval_seconds,
    mean_life_seconds,
    should_save_on_notice,
    young_daly_seconds,
)

QUICK = SaveCost(stall_seconds=0.4, slowdown_seconds=0.09, save_seconds=3.0)
SLOW = SaveCost(stall_seconds=30.0, slowdown_seconds=0.0, save_seconds=60.0)
LONG = SaveCost(stall_seconds=0.1, slowdown_seconds=0.0, save_seconds=120.0)
TINY = SaveCost(stall_seconds=2e-5, slowdown_seconds=0.0, save_seconds=0.002)
UNSEEN = Life()


def cadence(cost=QUICK, *, life=UNSEEN, cap=1800.0, shortest=1.0):
    return interval_seconds(cost, life=life, max_work_at_risk_seconds=cap, shortest_seconds=shortest)


def save(meter, *, stall=0.5, took=10.0, size=1_000_000_000, busy_steps=20, busy_seconds=0.15, idle_steps=30):
    """Some steps with the writer idle, a stall, some with the writer busy, a commit."""
    for _ in range(idle_steps):
        meter.step_done(0.1, writer_busy=False)
    for _ in range(busy_steps):
        meter.step_done(busy_seconds, writer_busy=True)
    meter.save_done(stall, took, size)


def test_before_the_first_save_nothing_is_known():
    meter = CostMeter()
    meter.step_done(0.1, writer_busy=False)
    assert (meter.estimate, meter.cost_seconds, meter.save_seconds, meter.bytes_per_second) == (None,) * 4


def test_a_save_costs_its_stall_and_what_its_busy_steps_took_beyond_idle_ones():
    meter = CostMeter()
    save(meter)
    assert meter.estimate.stall_seconds == 0.5
    assert meter.estimate.slowdown_seconds == pytest.approx(20 * (0.15 - 0.1))
    assert meter.cost_seconds == pytest.approx(1.5)
    assert (meter.save_seconds, meter.bytes_per_second) == (10.0, 1e8)


def test_the_first_save_counts_until_there_is_a_second():
    meter = CostMeter()
    save(meter, stall=5.0, took=90.0, busy_seconds=0.9)
    assert meter.cost_seconds == pytest.approx(5.0 + 20 * 0.8)
    for _ in range(2):
        save(meter)
        assert meter.cost_seconds == pytest.approx(1.5)
        assert (meter.save_seconds, meter.bytes_per_second) == (10.0, 1e8)


def test_one_save_on_a_slow_disk_and_one_slow_step_do_not_change_the_estimate():
    meter = CostMeter()
    for _ in range(4):
        save(meter)
    meter.step_done(60.0, writer_busy=False)
    save(meter, stall=30.0, took=400.0, busy_seconds=3.0)
    assert meter.cost_seconds == pytest.approx(1.5)
    assert (meter.save_seconds, meter.bytes_per_second) == (10.0, 1e8)


def test_the_estimate_follows_a_lasting_change_within_eight_saves_and_64_idle_steps():
    meter = CostMeter()
    for _ in range(20):
        save(meter)
    for _ in range(64):
        meter.step_done(0.2, writer_busy=False)
    for _ in range(8):
        save(meter, stall=2.0, took=20.0, busy_seconds=0.25, idle_steps=0)
    assert meter.cost_seconds == pytest.approx(2.0 + 20 * 0.05)
    assert (meter.save_seconds, meter.bytes_per_second) == (20.0, 5e7)


def test_busy_steps_that_were_no_slower_cost_nothing_and_without_idle_ones_the_stall_alone_counts():
    quick, never_idle = CostMeter(), CostMeter()
    save(quick, busy_seconds=0.09)
    save(never_idle, idle_steps=0)
    assert quick.cost_seconds == never_idle.cost_seconds == 0.5


def test_a_save_too_quick_for_the_clock_still_has_a_rate():
    (meter := CostMeter()).save_done(0.0, 0.0, 4096)
    assert math.isfinite(meter.bytes_per_second)
    assert cadence(meter.estimate).interval_seconds == 1.0


@pytest.mark.parametrize(
    ("up", "preemptions", "weight", "mean"),
    [
        (0.0, 0, 1.0, 7200.0),
        (7200.0, 0, 1.0, 14_400.0),  # Uptime without preemptions is evidence before the first one.
        (1800.0, 4, 1.0, 1800.0),
        (1800.0, 4, 4.0, 3825.0),
    ],
)
def test_the_mean_life_starts_at_the_prior_and_moves_to_what_was_observed(up, preemptions, weight, mean):
    assert mean_life_seconds(up, preemptions, prior_weight=weight) == mean
    assert Life(up, preemptions, prior_weight=weight).mean_seconds == mean


def test_the_estimate_of_the_mean_life_is_right_for_lives_cut_short_by_the_end_of_the_run():
    lives = np.random.default_rng(1).exponential(1000.0, 20_000)
    seen = mean_life_seconds(np.minimum(lives, 700.0).sum(), int((lives < 700.0).sum()))
    assert seen == pytest.approx(1000.0, rel=0.02)


@pytest.mark.parametrize("cost_share", [1e-6, 1e-4, 1e-2, 0.1, 0.5, 1.0, 1.9, 2.0, 2.1, 3.0, 20.0])
def test_young_daly_keeps_all_but_two_permille_of_the_most_that_can_be_kept(cost_share):
    # A stretch of work and its save lasts out an exponential life of mean 1 with chance e^-(w + c).
    def kept(work):
        return work / np.expm1(work + cost_share)

    best = kept(np.geomspace(1e-4, 5.0, 200_000)).max()
    assert kept(young_daly_seconds(cost_seconds=cost_share, mean_life_seconds=1.0)) >= 0.998 * best


def test_young_daly_grows_with_the_cost_and_with_the_life_also_where_the_series_ends():
    shares = np.linspace(0.01, 3.0, 3000)
    by_life = [young_daly_seconds(cost_seconds=2.0, mean_life_seconds=share) for share in shares]
    by_cost = [young_daly_seconds(cost_seconds=2 * share, mean_life_seconds=1.0) for share in shares]
    assert (np.diff(by_life) >= -1e-12).all()
    assert (np.diff(by_cost) >= -1e-12).all()


def rule(cost, *, life="2.0 h", seen="none observed yet"):
    return f"Young/Daly for a save cost of {cost} and {life} between preemptions (prior 2.0 h, {seen})"


STEADY = {"life": None, "cap": 300}
SEEN_FOUR = {"life": Life(up_seconds=10_800, preemptions=4)}
CAPPED = "max_work_at_risk_seconds = 300 less"
END_TO_END = "one save takes that long end to end"


@pytest.mark.parametrize(
    ("cost", "known", "seconds", "reason"),
    [
        (None, {}, 60, "after 60 s: first save, to measure its cost"),
        (None, {"life": None, "cap": 20}, 20, "after 20 s: first save, to measure its cost"),
        (QUICK, {}, 83.67, f"every 84 s: {rule('0.49 s')}"),
        (
            replace(QUICK, evaluate_seconds=20.0),
            {},
            529.62,
            f"every 8.8 min: {rule('20 s (0.49 s for the save and 20 s for `evaluate`)')}",
        ),
        (QUICK, SEEN_FOUR, 59.07, f"every 59 s: {rule('0.49 s', life='60 min', seen='4 observed')}"),
        (SLOW, {"cap": 300}, 240, f"every 4 min: {rule('30 s')} gives 11 min, limited by {CAPPED} 60 s for the save"),
        (LONG, {}, 120, f"every 2 min: {END_TO_END}; {rule('0.1 s')} gives 38 s"),
        (TINY, {}, 1, f"every 1 s: the shortest interval allowed; {rule('0.02 ms')} gives 0.54 s"),
        (QUICK, STEADY, 297, f"every 5 min: no preemptions expected, so limited only by {CAPPED} 3 s for the save"),
    ],
)
def test_the_interval_and_its_reason(cost, known, seconds, reason):
    made = cadence(cost, **known)
    assert (made.interval_seconds, made.reason) == (pytest.approx(seconds, abs=0.01), reason)


@pytest.mark.parametrize("life", [UNSEEN, None])
@pytest.mark.parametrize(("save_seconds", "says_so"), [(149.0, False), (150.0, False), (151.0, True), (400.0, True)])
def test_a_save_too_slow_for_the_work_at_risk_is_repeated_at_once_and_the_reason_says_so(save_seconds, says_so, life):
    made = cadence(SaveCost(30.0, 0.0, save_seconds), life=life, cap=300.0)
    assert made.interval_seconds == max(300.0 - save_seconds, save_seconds)
    assert ("of work are at risk, more than max_work_at_risk_seconds = 300" in made.reason) is says_so


@pytest.mark.parametrize(
    ("asked", "seconds", "reason"),
    [
        ({"every_steps": 500}, None, "every 500 steps, as configured"),
        ({"every_seconds": 60.0}, 60.0, "every 60 s, as configured"),
        (
            {"every_steps": 500, "every_seconds": 0.5},
            0.5,
            "every 500 steps or 0.5 s, whichever comes first, as configured",
        ),
    ],
)
def test_a_cadence_set_in_the_run_spec_is_used_as_it_is(asked, seconds, reason):
    made = as_asked(**asked)
    assert (made.interval_seconds, made.every_steps, made.reason) == (seconds, asked.get("every_steps"), reason)


def test_the_numbers_behind_a_cadence_are_named_and_those_that_are_not_known_are_left_out():
    numbers = cadence().numbers
    assert numbers["interval_seconds"] == numbers["young_daly_seconds"] == 83.674
    assert (numbers["work_at_risk_seconds"], numbers["mean_life_seconds"], numbers["preemptions"]) == (86.674, 7200, 0)
    assert (numbers["stall_seconds"], numbers["slowdown_seconds"], numbers["save_seconds"]) == (0.4, 0.09, 3.0)
    assert cadence(None, life=None).numbers == {"interval_seconds": 60.0}


seconds = st.floats(0.001, 1e6)
costs = st.builds(SaveCost, stall_seconds=st.floats(0, 1e5), slowdown_seconds=st.floats(0, 1e5), save_seconds=seconds)
lives = st.builds(Life, up_seconds=st.floats(0, 1e8), preemptions=st.integers(0, 10**6))


@given(cost=st.none() | costs, life=st.none() | lives, cap=seconds, shortest=seconds)
def test_an_interval_is_finite_above_zero_and_over_the_cap_only_when_the_save_is(cost, life, cap, shortest):
    made = cadence(cost, life=life, cap=cap, shortest=shortest).interval_seconds
    assert 0 < made < math.inf
    save_seconds = cost.save_seconds if cost else 0.0
    assert save_seconds <= made <= max(cap - save_seconds, save_seconds)
    assert made >= min(shortest, cap - save_seconds) or cost is None


@given(cost=costs, life=lives, cap=seconds, more=seconds)
def test_a_costlier_save_or_a_longer_life_never_makes_the_interval_shorter(cost, life, cap, more):
    made = cadence(cost, life=life, cap=cap).interval_seconds
    dearer = replace(cost, stall_seconds=cost.stall_seconds + more)
    longer = replace(life, up_seconds=life.up_seconds + more)
    assert cadence(dearer, life=life, cap=cap).interval_seconds >= made * (1 - 1e-9)
    assert cadence(cost, life=longer, cap=cap).interval_seconds >= made * (1 - 1e-9)


def lost_share(intervals, cost, lives):
    """Share of spot time that became no kept work, when saves come every `intervals` and are committed after `cost`."""
    saves = np.floor(lives / (intervals + cost))
    return 1 - (saves * intervals).sum(axis=-1) / lives.sum(axis=-1)


@pytest.mark.parametrize("mean_life", [900.0, 7200.0, 40_000.0])
@pytest.mark.parametrize("cost_seconds", [0.5, 5.0, 60.0])
def test_with_the_estimate_as_it_grows_little_more_is_lost_than_at_the_best_fixed_interval(mean_life, cost_seconds):
    lives = np.random.default_rng(7).exponential(mean_life, 2000)
    cost = SaveCost(cost_seconds, 0.0, cost_seconds)
    up_before = np.cumsum(lives) - lives
    adaptive = np.array([cadence(cost, life=Life(up, n), cap=1e6).interval_seconds for n, up in enumerate(up_before)])
    fixed = math.sqrt(2 * cost_seconds * mean_life) * np.geomspace(0.2, 5.0, 200)[:, None]
    assert lost_share(adaptive, cost_seconds, lives) <= 1.03 * lost_share(fixed, cost_seconds, lives).min()


@pytest.mark.parametrize("mean_life", [900.0, 7200.0, 40_000.0])
def test_a_run_of_ten_lives_keeps_97_per_cent_of_what_a_run_keeps_that_knew_their_mean(mean_life):
    lives = np.random.default_rng(11).exponential(mean_life, (100, 10))
    cost = SaveCost(stall_seconds=5.0, slowdown_seconds=0.0, save_seconds=5.0)
    knowing = young_daly_seconds(cost_seconds=5.0, mean_life_seconds=mean_life)
    learning = np.empty_like(lives)
    for run, at in np.ndindex(lives.shape):
        learning[run, at] = cadence(cost, life=Life(lives[run, :at].sum(), at), cap=1e6).interval_seconds
    kept = [1 - lost_share(intervals, 5.0, lives).mean() for intervals in (learning, np.full_like(lives, knowing))]
    assert kept[0] >= 0.97 * kept[1]


def on_notice(seconds_left, *, size=500_000_000, rate=50e6, save_seconds=9.0, in_flight=None):
    return should_save_on_notice(
        size_bytes=size,
        bytes_per_second=rate,
        save_seconds=save_seconds,
        seconds_left=seconds_left,
        in_flight_seconds_left=in_flight,
    )


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, 10.0),
        ({"rate": None}, 9.0),
        ({"rate": None, "save_seconds": None}, 5.0),
        ({"in_flight": 4.0}, 14.0),
        ({"in_flight": -3.0}, 10.0),  # One that takes longer than it was expected to.
    ],
)
def test_a_last_save_is_taken_if_it_fits_in_seven_tenths_of_what_is_left(known, expected):
    for margin, fits in ((-0.01, False), (0.0, True), (0.01, True)):
        made = on_notice((expected + margin) / 0.7, **known)
        assert (made.save, made.expected_seconds) == (fits, pytest.approx(expected))


NO_RATE = {"rate": None}
BUSY = {"in_flight": 4}
AFTER = "it needs 10 s (500 MB at 50 MB/s) after 4 s for the save in flight"
BIG = {"size": 2_500_000_000, "rate": 125e6}
UNMEASURED = {"size": 3_000_000, "rate": None, "save_seconds": None}
KEPT = "the newest commit is kept"


@pytest.mark.parametrize(
    ("left", "known", "saves", "reason"),
    [
        (30, {}, True, "it needs 10 s (500 MB at 50 MB/s), within 70% of the 30 s left"),
        (60, BIG, True, "it needs 20 s (2.5 GB at 125 MB/s), within 70% of the 60 s left"),
        (8, UNMEASURED, True, "it needs 0.03 s (assumed: no save was made yet), within 70% of the 8 s left"),
        (8, NO_RATE, False, f"it needs 9 s (as long as earlier saves), more than 70% of the 8 s left; {KEPT}"),
        (-5, {}, False, f"it needs 10 s (500 MB at 50 MB/s), more than 70% of the 0 s left; {KEPT}"),
        (30, BUSY, True, f"{AFTER}, within 70% of the 30 s left"),
        (15, BUSY, False, f"{AFTER}, more than 70% of the 15 s left; the save in flight can finish"),
        (3, BUSY, False, f"{AFTER}, more than 70% of the 3 s left; the save in flight may not finish either"),
    ],
)
def test_the_reason_names_what_is_done_and_what_is_kept(left, known, saves, reason):
    made = on_notice(left, **known)
    assert (made.save, made.reason) == (saves, f"{'one' if saves else 'no'} last save: {reason}")
