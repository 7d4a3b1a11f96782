"""What PLAN over pools chooses: how long to wait, which pools to ask and when, and where to move."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from segue.policy.rules.pool_plan import PoolPlan, _solved, in_tuples
from segue.policy.rules.pool_table import Pools
from tests.policy.rules.test_pool_table import ALWAYS, HOUR, NEVER_ENDS, pools_of

UNKNOWN = math.inf


def plan_of(pools: Pools, *, hours: float = 10.0, work: float = 6.0) -> PoolPlan:
    return PoolPlan(pools, remaining_seconds=hours * HOUR, work_seconds=work * HOUR)


def down(*seconds: float) -> np.ndarray:
    return np.array(seconds)


def test_with_slack_a_run_waits_as_long_as_it_may_and_without_slack_it_does_not_wait():
    pools = pools_of(1.0, 1.2)
    assert plan_of(pools).waits(down(600, 600), longest_seconds=1800.0).longest_seconds == 1800.0
    tight = plan_of(pools, work=9.8).waits(down(600, 600), longest_seconds=1800.0)
    assert (tight.longest_seconds, list(tight.after_seconds.values())[:1]) in [(0.0, [0.0]), (0.0, [])]


def test_a_pool_that_was_not_asked_for_a_while_is_asked_even_if_the_run_has_no_time_to_wait():
    waits = plan_of(pools_of(1.0, 1.2), work=9.6).waits(down(UNKNOWN, 600), longest_seconds=1800.0)
    assert waits.longest_seconds == 300.0  # One changeover.
    assert 0 in waits.after_seconds


def test_the_less_slack_is_left_the_shorter_is_the_wait():
    found = [
        plan_of(pools_of(1.0, 1.2), hours=8.0, work=work)
        .waits(down(3600, 3600), longest_seconds=1800.0)
        .longest_seconds
        for work in np.arange(6.0, 7.55, 0.1)
    ]
    assert found == sorted(found, reverse=True)
    assert len(set(found)) > 3


def test_pools_of_one_price_are_asked_at_once_and_a_dearer_one_later():
    plan = plan_of(pools_of(1.0, 1.0, 2.0))
    after = plan.waits(down(UNKNOWN, UNKNOWN, UNKNOWN), longest_seconds=1800.0).after_seconds
    assert list(after) == [0, 1, 2]
    assert (after[0], after[1]) == (0.0, 0.0)
    assert after[2] >= 300.0


def test_a_cheaper_pool_that_has_probably_no_machine_gets_no_head_start():
    pools = replace(pools_of(1.0, 1.3), shares=(0.01, 0.9))
    after = plan_of(pools, hours=8.0, work=6.7).waits(down(UNKNOWN, UNKNOWN), longest_seconds=1800.0).after_seconds
    assert after == {0: 0.0, 1: 0.0}
    likely = replace(pools, shares=(0.99, 0.9))
    after = plan_of(likely, hours=8.0, work=6.7).waits(down(UNKNOWN, UNKNOWN), longest_seconds=1800.0).after_seconds
    assert after == {0: 0.0, 1: 300.0}


def test_a_pool_dearer_than_on_demand_is_not_asked():
    after = plan_of(pools_of(1.0, 3.5)).waits(down(UNKNOWN, UNKNOWN), longest_seconds=1800.0).after_seconds
    assert list(after) == [0]


def test_a_move_saves_money_if_the_pool_is_clearly_cheaper_and_enough_work_is_left():
    plan = plan_of(pools_of(1.0, 1.05, 2.5))
    saved = plan.savings(2, 600.0, down(3600, 3600, 0))
    assert saved[0] > saved[1] > 0.5
    assert saved[2] == -math.inf
    assert plan.savings(1, 20 * HOUR, down(0, 0, 0))[0] < 0.3
    almost_done = plan_of(pools_of(1.0, 1.05, 2.5), work=0.05)
    assert (almost_done.savings(2, 600.0, down(3600, 3600, 0)) < 0.02).all()


def test_a_pool_that_has_been_up_for_long_saves_more_than_one_that_came_up_now():
    plan = plan_of(pools_of(1.0, 1.2))
    young, half, old = (plan.savings(None, 0.0, down(up, up))[0] for up in (0.0, 900.0, 1800.0))
    assert young < half < old
    assert plan.savings(None, 0.0, down(50_000, 50_000))[0] == old


def test_a_run_keeps_its_machine_unless_the_machine_surely_dies():
    assert plan_of(pools_of(1.0, 1.2)).keeps(0, 60.0)
    bad = pools_of(2.9, 2.9, up_rates=ALWAYS, lost_by_a_death_seconds=600.0, down_rates=NEVER_ENDS, shares=(0.0, 0.0))
    assert not plan_of(bad, hours=7.0).keeps(0, 60.0)


def test_a_table_is_used_again_while_time_passes():
    _solved.cache_clear()
    pools = pools_of(1.0, 1.2)
    for seconds in range(0, 3600, 300):
        PoolPlan(pools, remaining_seconds=30 * HOUR - seconds, work_seconds=20 * HOUR)
    assert _solved.cache_info().misses <= 2


@pytest.mark.parametrize(
    ("hours", "work"),
    [(0.001, 0.0005), (0.02, 0.01), (1.0, 1.0), (1.0, 2.0), (48.0, 0.01), (5000.0, 30.0), (5000.0, 4990.0)],
)
def test_any_length_of_a_run_has_finite_answers(hours, work):
    boot = min(300.0, hours * 360)
    pools = pools_of(1.0, 2.0, changeover_seconds=boot, least_slack_seconds=2 * boot, lost_by_a_death_seconds=boot)
    plan = plan_of(pools, hours=hours, work=work)
    waits = plan.waits(down(UNKNOWN, 60), longest_seconds=min(1800.0, hours * HOUR))
    assert 0.0 <= waits.longest_seconds <= 1800.0
    assert np.isfinite(plan.savings(None, 0.0, down(0, 0))).all()


def test_the_store_of_a_checkpoint_in_another_region_makes_a_pool_dearer():
    pools = pools_of(1.0, 1.05)
    way = in_tuples([[0.8, 0.0]] * 3)
    near = plan_of(replace(pools, transfer=way)).waits(down(UNKNOWN, UNKNOWN), longest_seconds=1800.0).after_seconds
    assert next(iter(near)) == 1


def test_a_run_waits_for_the_best_pool_even_if_no_machine_now_costs_less_than_to_wait():
    # Half a year of slack: on-demand would be dearer than any wait.
    plan = plan_of(pools_of(1.0, 1.05), hours=365 * 24, work=180 * 24)
    waits = plan.waits(down(600, 600), longest_seconds=1800.0)
    assert waits.longest_seconds > 0
    assert 0 in waits.after_seconds
    slow = pools_of(0.3, 0.854, on_demand=1.0, changeover_seconds=7200.0, least_slack_seconds=7800.0)
    waits = plan_of(slow, hours=24.0, work=1 / 6).waits(down(UNKNOWN, UNKNOWN), longest_seconds=900.0)
    assert (waits.longest_seconds, list(waits.after_seconds)[:1]) == (900.0, [0])


@pytest.mark.parametrize("seconds", [36.0, 72.0, 108.0, 600.0])
@pytest.mark.parametrize("boot", [120.0, 1800.0, 3600.0])
def test_the_last_minutes_of_work_are_also_done_on_spot_if_there_is_time(seconds, boot):
    pools = pools_of(1.0, 1.0, changeover_seconds=boot, least_slack_seconds=2 * boot)
    waits = plan_of(pools, hours=24.0, work=seconds / HOUR).waits(down(UNKNOWN, UNKNOWN), longest_seconds=900.0)
    assert waits.longest_seconds > 0


def test_without_a_changeover_a_pool_is_asked_too():
    pools = pools_of(1.0, 1.2, changeover_seconds=0.0, least_slack_seconds=60.0)
    waits = plan_of(pools, hours=10.0, work=9.8).waits(down(UNKNOWN, UNKNOWN), longest_seconds=900.0)
    assert waits.longest_seconds > 0
    assert 0 in waits.after_seconds


def test_a_long_wait_does_not_change_when_the_pools_are_asked():
    found = []
    for longest in (7200.0, 36_000.0, 86_400.0):
        plan = PoolPlan(pools_of(1.0, 1.1), remaining_seconds=24 * HOUR, work_seconds=20 * HOUR, ahead_seconds=longest)
        found.append(plan.waits(down(UNKNOWN, UNKNOWN), longest_seconds=longest).after_seconds)
    assert found[0] == found[1] == found[2]
    assert found[0][1] in (0.0, 300.0)
