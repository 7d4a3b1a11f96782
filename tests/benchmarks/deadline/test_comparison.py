"""Policies compared: pairs on the same spot, figures that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.deadline.comparison import compare, contender
from segue.errors import SpecError
from segue.policy.rules.view import Job
from segue.simulation.rows import Contender, Rows, synthetic_rows

HOUR = 3600.0
# An hour of work, ten minutes to start, four hours of time in ticks of ten minutes, on-demand three times as dear.
JOB = Job(total_seconds=4 * HOUR, work_seconds=HOUR, changeover_seconds=600.0, knowledge="free", handover=False)
ON_DEMAND_COST = 3 * (3600.0 + 600.0)
SPOT_COST = 3600.0 + 600.0
UP_AND_DOWN = [Rows("hand", 600.0, np.array([[True] * 25, [False] * 25]))]


def test_figures_are_shares_of_on_demand_only_on_the_same_rows():
    contenders = [contender(name, JOB) for name in ("greedy", "on_demand_only", "uniform_progress")]
    greedy, on_demand, uniform = compare(
        contenders, UP_AND_DOWN, job=JOB, random=np.random.default_rng(0), with_optimum=True
    )
    assert greedy.cost_share == pytest.approx(2 / 3)
    assert (greedy.cost_share_low, greedy.cost_share_high) == pytest.approx((1 / 3, 1.0))
    assert (on_demand.cost_share, on_demand.cost_share_low, on_demand.cost_share_p95) == (1.0, 1.0, 1.0)
    assert (uniform.to_uniform_progress, uniform.to_uniform_progress_low) == (0.0, 0.0)
    assert greedy.to_optimum == pytest.approx(1.0)
    assert on_demand.to_optimum == pytest.approx(2 * ON_DEMAND_COST / (SPOT_COST + ON_DEMAND_COST))
    assert (greedy.missed, greedy.runs, on_demand.preemptions) == (0, 2, 0)


def test_the_optimum_is_computed_only_on_request_and_no_policy_beats_it():
    job = Job(total_seconds=9 * HOUR, work_seconds=6 * HOUR, changeover_seconds=360.0)
    made = synthetic_rows(job, runs=40, random=np.random.default_rng(2))
    contenders = [contender(name, job) for name in ("plan", "greedy", "uniform_progress")]
    asked = compare(contenders, made, job=job, random=np.random.default_rng(3), with_optimum=True)
    plain = compare(contenders, made, job=job, random=np.random.default_rng(3))
    assert [item.to_optimum for item in plain] == [None] * 3
    assert all(item.to_optimum > 0.99 for item in asked)
    assert [replace(item, to_optimum=None) for item in asked] == plain


def test_the_difference_in_cost_has_its_sign():
    job = Job(total_seconds=12 * HOUR, work_seconds=8 * HOUR, changeover_seconds=360.0)
    made = synthetic_rows(job, runs=100, random=np.random.default_rng(2))
    contenders = [contender(name, job) for name in ("plan", "on_demand_only")]
    plan, on_demand = compare(contenders, made, job=job, random=np.random.default_rng(0))
    assert plan.to_uniform_progress < 0 < on_demand.to_uniform_progress_low
    assert plan.to_uniform_progress_low < plan.to_uniform_progress < plan.to_uniform_progress_high
    assert plan.cost_share_p5 < plan.cost_share_low < plan.cost_share < plan.cost_share_high < plan.cost_share_p95


def test_a_policy_is_given_with_its_parameters():
    asked = contender("threshold:preemptions=5,slack_share=0.2", JOB)
    assert isinstance(asked, Contender)
    assert (asked.policy.preemptions, asked.policy.slack_share) == (5, 0.2)
    assert asked.label == "threshold:preemptions=5,slack_share=0.2"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("patient", "'patient': no such policy; known are plan, slack_age"),
        ("greedy:x=1", "greedy has no parameter 'x'"),
        ("threshold:preemptions", "'preemptions' is not parameter=value"),
        ("threshold:preemptions=few", "preemptions must be a number"),
        ("threshold:preemptions=1.5", "preemptions of threshold must be a positive int"),
    ],
)
def test_a_policy_that_is_none_is_refused_with_the_fix(text, message):
    with pytest.raises(SpecError, match=message):
        contender(text, JOB)
