"""Policies on rows of spot: costs that can be counted by hand, ticks, rows from traces."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from segue.errors import TraceError
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Job
from segue.simulation.rows import Contender, Rows, as_published, outcome_on, tick_seconds_for, traced_rows
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


def contender(name: str) -> Contender:
    return Contender(name, named_policy(name), as_published(name, JOB))


UP, DOWN = rows(*[1] * TICKS), rows()


@pytest.mark.parametrize("name", ["plan", "greedy", "spot_only", "uniform_progress", "time_sliced", "slack_age"])
def test_with_spot_always_up_every_policy_pays_spot_alone(name):
    outcome = outcome_on(UP, contender(name))
    assert (outcome.cost[0], outcome.preemptions[0], outcome.is_late[0]) == (SPOT_COST, 0, False)
    assert outcome.finished_seconds[0] == SPOT_COST


@pytest.mark.parametrize("name", ["plan", "greedy", "spot_only", "threshold", "slack_age", "on_demand_only"])
def test_with_spot_never_up_every_policy_is_in_time_and_pays_on_demand_alone(name):
    outcome = outcome_on(DOWN, contender(name))
    assert outcome.cost[0] == pytest.approx(ON_DEMAND_COST)
    assert not outcome.is_late[0]


def test_uniform_progress_leaves_on_demand_when_it_is_ahead_and_pays_for_each_new_start():
    outcome = outcome_on(DOWN, contender("uniform_progress"))
    assert outcome.cost[0] == pytest.approx(3 * (3600 + 3 * 600))
    assert not outcome.is_late[0]


def test_on_demand_only_costs_the_same_whatever_spot_does():
    assert [outcome_on(r, contender("on_demand_only")).cost[0] for r in (UP, DOWN, rows(1, 0, 1))] == [
        ON_DEMAND_COST
    ] * 3


def test_what_was_done_before_a_preemption_is_kept():
    # Ten minutes to start and twenty of work on spot; the other forty, and a start, on on-demand.
    outcome = outcome_on(rows(1, 1, 1), contender("greedy"))
    assert outcome.cost[0] == pytest.approx(1800 + 3 * (2400 + 600))
    assert (outcome.preemptions[0], outcome.spot_seconds[0], outcome.on_demand_seconds[0]) == (1, 1800, 3000)


def test_baselines_run_as_published_and_segues_own_policies_as_requested():
    unaware = replace(JOB, knowledge="none", handover=True)
    assert as_published("greedy", unaware) == JOB
    assert as_published("plan", unaware) == as_published("slack_age", unaware) == unaware


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
    one = contender("greedy")
    together = outcome_on(given, one)
    apart = [outcome_on([row], one) for row in given]
    assert together.cost.tolist() == np.concatenate([part.cost for part in apart]).tolist()
    assert together.preemptions.tolist() == np.concatenate([part.preemptions for part in apart]).tolist()
    assert len(set(together.cost)) > 3
