"""PLAN on quickly made tables: the same where they are small, near it in cost and bounded in size where not."""

from __future__ import annotations

import numpy as np
import pytest

from segue.policy.rules.plan import Plan, table_for
from segue.policy.rules.quick import QuickPlan
from segue.policy.rules.view import Job
from segue.simulation.comparison import Contender, made_rows, outcome_on
from segue.simulation.forecast import planned_policy
from tests.simulation.test_forecast import here, job_ahead, spec

HOUR = 3600.0
DAY = 24 * HOUR


def job(total: float, work: float, changeover: float = 120.0) -> Job:
    return Job(total_seconds=total, work_seconds=work, changeover_seconds=changeover)


@pytest.mark.parametrize("total", [3 * HOUR, 34 * HOUR])
def test_a_short_job_is_decided_by_the_tables_of_the_run(total):
    asked = job(total, 0.7 * total)
    quick, own = QuickPlan().solved(asked, 1.0, 1.5), table_for(asked, 1.0, 1.5)
    assert quick.step_seconds == own.step_seconds
    assert np.array_equal(quick.wishes, own.wishes)


@pytest.mark.parametrize(
    "asked",
    [job(7 * DAY, DAY), job(11 * DAY, DAY), job(30 * DAY, 7 * DAY), job(365 * DAY, HOUR), job(30 * DAY, DAY, 2 * DAY)],
)
def test_a_table_is_never_larger_than_a_quick_look_allows(asked):
    steps, _, slacks = QuickPlan().solved(asked, 1.0, 1.0).wishes.shape
    assert steps * slacks < 55_000


def test_it_costs_next_to_nothing_more_than_the_runs_own_tables():
    asked = job(7 * DAY, 4 * DAY)
    rows = made_rows(asked, runs=60, random=np.random.default_rng(3), is_quick=True)
    quick, own = (outcome_on(rows, Contender("plan", policy, asked)) for policy in (QuickPlan(), Plan()))
    whole = asked.price_ratio * (asked.work_seconds + asked.changeover_seconds)
    assert not np.array_equal(quick.cost, own.cost)
    assert abs(quick.cost.mean() - own.cost.mean()) / whole < 0.005
    assert not quick.is_late.any()


def test_a_forecast_keeps_the_parameters_that_were_asked_for():
    asked = spec(policy={"name": "plan", "parameters": {"reach": 2.0}})
    policy = planned_policy(asked, here(asked), job_ahead(asked, here(asked))).policy
    assert isinstance(policy, QuickPlan)
    assert (policy.reach, policy.prior_weight) == (2.0, 16.0)
