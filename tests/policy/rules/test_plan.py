"""PLAN: what it expects, how it behaves where its grid ends, and its coarser tables for forecasts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from segue.policy.rules.plan import Plan, QuickPlan, table_for
from segue.policy.rules.plan_table import Table
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Job, Mode
from segue.simulation.forecast import planned_policy
from segue.simulation.rows import Contender, outcome_on, synthetic_rows
from segue.simulation.simulator import Harshness, simulate
from tests.policy.rules.test_heuristics import HOUR, IDLE, ON_DEMAND, SPOT, view
from tests.simulation.test_forecast import here, job_ahead, spec

JOB = Job(total_seconds=20 * HOUR, work_seconds=10 * HOUR, changeover_seconds=360.0)


def start(job: Job, **fields):
    return view(job=job, remaining_seconds=job.total_seconds, work_seconds=job.work_seconds, **fields)


@pytest.mark.matrix
def test_it_expects_to_pay_between_the_price_of_spot_and_that_of_on_demand():
    shares = [Plan().cost_share(start(replace(JOB, total_seconds=hours * HOUR))) for hours in (10.5, 12, 15, 20, 40)]
    assert all(1 / 3 < later < sooner <= 1.1 for sooner, later in pairwise(shares))


def test_what_it_expects_is_what_the_simulator_charges_on_spot_as_published():
    from segue.simulation.traces import synthetic_availability

    up = synthetic_availability(np.random.default_rng(5), runs=400, seconds=JOB.total_seconds + 600, tick_seconds=600.0)
    job = replace(JOB, knowledge="free")
    paid = simulate(Plan(), job, up, tick_seconds=600.0).cost.mean() / (3 * (JOB.work_seconds + 360.0))
    plan = Plan()
    expected = np.mean([plan.cost_share(start(job, is_up=is_up, age_seconds=HOUR)) for is_up in up[:, 0]])
    assert paid == pytest.approx(expected, rel=0.06)


@pytest.mark.matrix
def test_work_that_deaths_lose_is_expected_as_the_simulator_charges_it():
    from segue.simulation.traces import synthetic_availability

    up = synthetic_availability(np.random.default_rng(6), runs=400, seconds=JOB.total_seconds + 600, tick_seconds=600.0)
    job = replace(JOB, knowledge="free", lost_by_a_death_seconds=900.0)
    lossy = Harshness(lost_by_a_death_seconds=900.0)
    knows, does_not = (
        simulate(Plan(), asked, up, tick_seconds=600.0, harshness=lossy).cost.mean() / (3 * (JOB.work_seconds + 360.0))
        for asked in (job, replace(job, lost_by_a_death_seconds=0.0))
    )
    plan = Plan()
    expected = np.mean([plan.cost_share(start(job, is_up=is_up, age_seconds=HOUR)) for is_up in up[:, 0]])
    assert knows == pytest.approx(expected, rel=0.06)
    assert knows < does_not


def test_it_waits_in_a_short_down_interval_and_takes_on_demand_in_a_long_one_that_uses_the_slack():
    tight = replace(JOB, total_seconds=11 * HOUR, handover=False, knowledge="free")
    chosen = Plan().choose(start(tight, is_up=False, age_seconds=[60.0, 15 * HOUR]))
    assert list(chosen) == [IDLE, ON_DEMAND]


def test_it_leaves_on_demand_for_spot_with_much_work_left_and_not_for_the_last_minutes():
    late = view(job=JOB, remaining_seconds=8 * HOUR, work_seconds=[6 * HOUR, 300.0], mode=ON_DEMAND, age_seconds=HOUR)
    assert list(Plan().choose(late)) == [SPOT, ON_DEMAND]
    assert list(Plan().choose(replace(late, job=replace(JOB, knowledge="none")))) == [ON_DEMAND, ON_DEMAND]


def test_a_run_that_decides_at_long_intervals_does_not_wait_to_the_last_moment():
    """Ticks as long as the slack permits once: a run that waits through one must still be able to use on-demand."""
    job = Job(total_seconds=24 * HOUR / 0.95, work_seconds=24 * HOUR, changeover_seconds=0.4 * HOUR, knowledge="free")
    up = np.ones((1, 200), bool)
    up[:, :13] = False
    made = simulate(Plan(), job, up, tick_seconds=600.0)
    assert made.cost[0] < 0.6 * 3 * (job.work_seconds + job.changeover_seconds)
    assert not made.is_late[0]


def test_with_hand_over_on_demand_is_left_for_spot_and_never_to_wait():
    rich = replace(JOB, total_seconds=60 * HOUR)
    asked = start(rich, mode=ON_DEMAND, is_up=False, age_seconds=[60.0, HOUR, 10 * HOUR])
    assert list(Plan().choose(asked)) == [ON_DEMAND] * 3
    assert IDLE in list(Plan().choose(replace(asked, job=replace(rich, handover=False))))


def test_observing_spot_while_on_on_demand_is_worth_its_price():
    from segue.simulation.traces import synthetic_availability

    up = synthetic_availability(np.random.default_rng(3), runs=150, seconds=14 * HOUR, tick_seconds=600.0)
    job = replace(JOB, total_seconds=13 * HOUR, handover=False)
    paid = {
        knowledge: simulate(Plan(), replace(job, knowledge=knowledge), up, tick_seconds=600.0).cost.mean()
        for knowledge in ("free", "sentinel", "none")
    }
    assert paid["free"] < paid["sentinel"] < paid["none"]


def test_its_own_long_down_intervals_make_it_expect_more_cost():
    tight = replace(JOB, total_seconds=12 * HOUR)
    calm = start(tight, is_up=False, age_seconds=1800.0)
    torn = replace(calm, observed=replace(calm.observed, down_ends=np.zeros(1), down_expected=np.full(1, 40.0)))
    quick = replace(calm, observed=replace(calm.observed, down_ends=np.full(1, 40.0), down_expected=np.full(1, 5.0)))
    assert Plan().cost_share(torn) > Plan().cost_share(calm) > Plan().cost_share(quick)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("total", "work", "changeover"),
    [(1e-3, 1e-3, 0.0), (14 * 24 * HOUR, 300.0, 120.0), (3600.0, 3599.0, 60.0), (60.0, 20.0, 5.0), (9e6, 8e6, 7200.0)],
)
def test_any_job_has_a_table_of_bounded_size_and_an_answer(total, work, changeover):
    job = Job(total, work, changeover)
    assert table_for(job, 1.0, 1.0).wishes.size < 2e7
    asked = start(job, mode=[IDLE, SPOT, ON_DEMAND], age_seconds=HOUR)
    assert set(Plan().choose(asked)) <= set(Mode)
    share = Plan().cost_share(asked)
    assert share is None or 0 < share < 2


def test_a_small_job_with_much_time_begins_at_once():
    job = Job(total_seconds=14 * 24 * HOUR, work_seconds=300.0, changeover_seconds=20.0)
    assert list(Plan().choose(start(job))) == [SPOT]


def test_what_lies_beyond_the_horizon_does_not_change_the_choice():
    job = Job(total_seconds=60 * 24 * HOUR, work_seconds=5 * HOUR, changeover_seconds=360.0)
    assert table_for(job, 1.0, 1.0).horizon_seconds < job.total_seconds
    assert list(Plan().choose(start(job, is_up=False, age_seconds=10 * HOUR))) == [IDLE]


@pytest.mark.parametrize(("name", "value"), [("prior_weight", math.nan), ("reach", math.inf), ("reach", 0.5)])
def test_bad_numbers_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} of plan"):
        named_policy("plan", {name: value})


DAY = 24 * HOUR


def job(total: float, work: float, changeover: float = 120.0) -> Job:
    return Job(total_seconds=total, work_seconds=work, changeover_seconds=changeover)


def quick_table(asked: Job, up_factor: float, down_factor: float) -> Table:
    return table_for(asked, up_factor, down_factor, most_cells=QuickPlan.most_cells)


@pytest.mark.parametrize("total", [3 * HOUR, 34 * HOUR])
def test_the_forecast_of_a_short_job_uses_the_tables_of_the_run(total):
    asked = job(total, 0.7 * total)
    quick, own = quick_table(asked, 1.0, 1.5), table_for(asked, 1.0, 1.5)
    assert quick.step_seconds == own.step_seconds
    assert np.array_equal(quick.wishes, own.wishes)


@pytest.mark.parametrize(
    "asked",
    [job(7 * DAY, DAY), job(11 * DAY, DAY), job(30 * DAY, 7 * DAY), job(365 * DAY, HOUR), job(30 * DAY, DAY, 2 * DAY)],
)
def test_the_tables_of_a_forecast_are_bounded_in_size(asked):
    steps, _, slacks = quick_table(asked, 1.0, 1.0).wishes.shape
    assert steps * slacks < 55_000


@pytest.mark.matrix
def test_a_forecasts_tables_cost_almost_nothing_more_than_the_runs_own():
    asked = job(7 * DAY, 4 * DAY)
    rows = synthetic_rows(asked, runs=60, random=np.random.default_rng(3), is_quick=True)
    quick, own = (outcome_on(rows, Contender("plan", policy, asked)) for policy in (QuickPlan(), Plan()))
    whole = asked.price_ratio * (asked.work_seconds + asked.changeover_seconds)
    assert not np.array_equal(quick.cost, own.cost)
    assert abs(quick.cost.mean() - own.cost.mean()) / whole < 0.005
    assert not quick.is_late.any()


def test_a_forecast_keeps_the_parameters_of_the_spec():
    asked = spec(policy={"name": "plan", "parameters": {"reach": 2.0}})
    policy = planned_policy(asked, here(asked), job_ahead(asked, here(asked))).policy
    assert isinstance(policy, QuickPlan)
    assert (policy.reach, policy.prior_weight) == (2.0, 16.0)
