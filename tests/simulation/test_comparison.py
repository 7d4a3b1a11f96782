"""Policies compared: costs that can be counted by hand, pairs on the same spot, figures that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from segue.errors import SpecError, TraceError
from segue.policy.rules.view import Job
from segue.simulation.comparison import (
    Contender,
    Rows,
    as_published,
    compare,
    contender,
    outcome_on,
    synthetic_rows,
    tick_seconds_for,
    traced_rows,
)
from segue.simulation.traces import Trace

HOUR = 3600.0
# An hour of work, ten minutes to start, four hours of time in ticks of ten minutes, on-demand three times as dear.
JOB = Job(total_seconds=4 * HOUR, work_seconds=HOUR, changeover_seconds=600.0, knowledge="free", handover=False)
ON_DEMAND_COST = 3 * (3600.0 + 600.0)
SPOT_COST = 3600.0 + 600.0
TICKS = 25


def rows(*up: int) -> list[Rows]:
    """One run: spot is up in these first ticks and down in all later ones."""
    return [Rows("hand", 600.0, np.array([[*up] + [0] * (TICKS - len(up))], bool))]


UP, DOWN = rows(*[1] * TICKS), rows()


@pytest.mark.parametrize("name", ["plan", "greedy", "spot_only", "uniform_progress", "time_sliced", "slack_age"])
def test_with_spot_always_up_every_policy_pays_spot_alone(name):
    outcome = outcome_on(UP, contender(name, JOB))
    assert (outcome.cost[0], outcome.preemptions[0], outcome.is_late[0]) == (SPOT_COST, 0, False)
    assert outcome.finished_seconds[0] == SPOT_COST


@pytest.mark.parametrize("name", ["plan", "greedy", "spot_only", "threshold", "slack_age", "on_demand_only"])
def test_with_spot_never_up_every_policy_is_in_time_and_pays_on_demand_alone(name):
    outcome = outcome_on(DOWN, contender(name, JOB))
    assert outcome.cost[0] == pytest.approx(ON_DEMAND_COST)
    assert not outcome.is_late[0]


def test_uniform_progress_leaves_on_demand_when_it_is_ahead_and_pays_for_each_new_start():
    outcome = outcome_on(DOWN, contender("uniform_progress", JOB))
    assert outcome.cost[0] == pytest.approx(3 * (3600 + 3 * 600))
    assert not outcome.is_late[0]


def test_on_demand_only_costs_the_same_whatever_spot_does():
    assert [outcome_on(r, contender("on_demand_only", JOB)).cost[0] for r in (UP, DOWN, rows(1, 0, 1))] == [
        ON_DEMAND_COST
    ] * 3


def test_what_was_done_before_a_preemption_is_kept():
    # Ten minutes to start and twenty of work on spot; the other forty, and a start, on on-demand.
    outcome = outcome_on(rows(1, 1, 1), contender("greedy", JOB))
    assert outcome.cost[0] == pytest.approx(1800 + 3 * (2400 + 600))
    assert (outcome.preemptions[0], outcome.spot_seconds[0], outcome.on_demand_seconds[0]) == (1, 1800, 3000)


def test_figures_are_shares_of_on_demand_only_on_the_same_rows():
    both = [Rows("x", 600.0, np.concatenate([UP[0].up, DOWN[0].up]))]
    contenders = [contender(name, JOB) for name in ("greedy", "on_demand_only", "uniform_progress")]
    figures, shares = compare(contenders, both, job=JOB, random=np.random.default_rng(0), with_optimum=True)
    greedy, on_demand, uniform = figures
    assert list(shares["greedy"]) == pytest.approx([1 / 3, 1.0])
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
    asked, _ = compare(contenders, made, job=job, random=np.random.default_rng(3), with_optimum=True)
    plain, _ = compare(contenders, made, job=job, random=np.random.default_rng(3))
    assert [item.to_optimum for item in plain] == [None] * 3
    assert all(item.to_optimum > 0.99 for item in asked)
    assert [replace(item, to_optimum=None) for item in asked] == plain


def test_the_difference_in_cost_has_its_sign():
    job = Job(total_seconds=12 * HOUR, work_seconds=8 * HOUR, changeover_seconds=360.0)
    made = synthetic_rows(job, runs=100, random=np.random.default_rng(2))
    contenders = [contender(name, job) for name in ("plan", "on_demand_only")]
    (plan, on_demand), _ = compare(contenders, made, job=job, random=np.random.default_rng(0))
    assert plan.to_uniform_progress < 0 < on_demand.to_uniform_progress_low
    assert plan.to_uniform_progress_low < plan.to_uniform_progress < plan.to_uniform_progress_high
    assert plan.cost_share_p5 < plan.cost_share_low < plan.cost_share < plan.cost_share_high < plan.cost_share_p95


def test_baselines_run_as_published_and_segues_own_policies_as_requested():
    unaware = replace(JOB, knowledge="none", handover=True)
    assert as_published("greedy", unaware) == JOB
    assert contender("plan", unaware).job == unaware
    assert contender("slack_age", unaware).job == unaware


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


@pytest.mark.parametrize(
    ("hours", "work", "tick"), [(100, 60, 600.0), (20, 10, 360.0), (20, 19.5, 180.0), (500, 300, 1200.0)]
)
def test_ticks_are_ten_minutes_or_finer_where_time_or_slack_is_short(hours, work, tick):
    job = Job(total_seconds=hours * HOUR, work_seconds=work * HOUR, changeover_seconds=60.0)
    assert tick_seconds_for(job) == pytest.approx(tick)


@pytest.mark.parametrize(("hours", "tick"), [(20, 360.0), (100, 720.0), (240, 1200.0), (600, 1440.0)])
def test_a_quick_look_at_a_long_job_takes_coarser_ticks(hours, tick):
    job = Job(total_seconds=hours * HOUR, work_seconds=hours * HOUR / 2, changeover_seconds=60.0)
    assert tick_seconds_for(job, is_quick=True) == pytest.approx(tick)


def test_runs_are_divided_among_the_traces_that_are_long_enough():
    job = replace(JOB, total_seconds=4 * HOUR)
    traces = [Trace(name, 600.0, np.ones(count, bool)) for name, count in (("a", 30), ("short", 20), ("b", 60))]
    given, short = traced_rows(traces, job, runs=7, random=np.random.default_rng(0))
    assert [(r.name, len(r.up)) for r in given] == [("a", 4), ("b", 3)]
    assert [trace.name for trace in short] == ["short"]
    assert all(r.tick_seconds * (r.up.shape[1] - 1) >= job.total_seconds for r in given)
    with pytest.raises(TraceError):
        traced_rows(traces[1:2], job, runs=7, random=np.random.default_rng(0))


def test_rows_of_one_tick_are_simulated_together_and_returned_in_their_order():
    random = np.random.default_rng(4)
    shapes = (("a", 600.0, 25), ("b", 300.0, 50), ("c", 600.0, 25), ("d", 600.0, 40))
    given = [Rows(name, tick, random.random((3, ticks)) < 0.6) for name, tick, ticks in shapes]
    one = contender("greedy", JOB)
    together = outcome_on(given, one)
    apart = [outcome_on([row], one) for row in given]
    assert together.cost.tolist() == np.concatenate([part.cost for part in apart]).tolist()
    assert together.preemptions.tolist() == np.concatenate([part.preemptions for part in apart]).tolist()
    assert len(set(together.cost)) > 3
