"""Runs that their budget stops at a checkpoint, or does not let begin, and the cap over all runs of a month."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.local_run import run_here
from segue.controller.standbys.messages import StandbyCommand, StandbyStatus, put_command, put_status
from segue.controller.steps import check_start, decide_next, open_run
from segue.errors import BudgetError
from segue.records import StopReason, VerdictKind
from segue.reports.cost_report import cost_report
from segue.runlog import keys
from segue.runlog.entries import SpendingEntry
from segue.runlog.history import read_history
from segue.spec import RunSpec
from segue.testing.clock import FakeClock
from tests.controller.test_steps import Run

START = datetime(2026, 1, 1, tzinfo=UTC)
HOUR = 3600.0
PRICES = {"spot_price": 1.0, "on_demand_price": 3.0, "currency": "EUR"}
POLICY = {"step_seconds": 60, "changeover_seconds": 60, "max_lost_in_place": 99}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


def bound(seconds: float) -> Any:
    """The bound of an attempt for which there is money for so many seconds: its end takes some of them."""
    return pytest.approx(seconds - min(5, seconds / 20))


def begin(make_spec: Any, clock: FakeClock, **fields: Any) -> Run:
    common = {"steps": 100, "pools": PRICES, "policy": POLICY, "segment": {"count": 1}}
    return Run(make_spec(**common | fields), clock)


def work(run: Run, seconds: float, *, commit: int) -> None:
    """An attempt of the run that trains for some time."""
    plan = run.decide()
    claim = run.claim(plan)
    run.clock.advance(seconds)
    run.commit(claim, commit)
    run.report(plan, claim, StopReason.BOUND, seconds=seconds, to_step=commit, train_steps=10, train_seconds=600)


def end(run: Run) -> str:
    """The action of the run's next decision, which must end it."""
    decision = decide_next(run.log, run.spec, clock=run.clock)
    assert decision.plan is None, decision
    return decision.action


# One second of spot costs one unit, so that a budget of 12 lasts for twelve seconds.
@pytest.mark.soak
def test_a_run_is_stopped_by_its_budget_at_a_checkpoint_and_goes_on_with_more_money(make_spec):
    facts: dict[str, Any] = {
        "steps": 300,
        "config": {"pause_seconds": 0.06},
        "pools": {"spot_price": HOUR, "on_demand_price": 3 * HOUR, "currency": "EUR"},
        "policy": {"changeover_seconds": 0.5},
    }
    spec = make_spec(**facts, budget=12.0)
    runlog = open_run(spec, clock=SystemClock())
    ended = run_here(spec, runlog, on_line=lambda _: None)
    history = read_history(runlog)
    assert ended.action == "budget", ended
    assert "the budget is used up: " in ended.reason
    assert 0 < history.committed_step < 300
    assert history.last_reports()[-1].stop_reason is StopReason.BOUND
    assert history.last_reports()[-1].lost_steps == 0
    assert (
        cost_report(spec, history).cost <= 1.1 * 12.0
    )  # On a busy machine the last save takes longer than it used to.
    with pytest.raises(BudgetError, match=r"the budget is used up"):
        open_run(spec, clock=SystemClock())
    more = make_spec(**facts, budget=800.0)
    stopped_at, resumed = history.committed_step, open_run(more, clock=SystemClock())
    assert run_here(more, resumed, on_line=lambda _: None).action == "finished"
    last = read_history(resumed).attempts[-1]
    assert (last.verdict.kind, last.report.from_step, last.report.to_step) == (VerdictKind.EXACT, stopped_at, 300)


def test_a_run_that_is_expected_to_cost_more_is_refused_and_leaves_nothing_behind(make_spec, clock):
    spec = make_spec(steps=100, pools=PRICES, policy=POLICY, budget={"per_run": 1.0, "on_exceeded": "refuse"})
    with pytest.raises(BudgetError) as raised:
        open_run(spec, clock=clock)
    assert str(raised.value).startswith("run tiny: refused: 1.")
    assert "EUR are expected for the rest, and 1.00 EUR are left" in str(raised.value)
    assert str(raised.value).endswith('set budget.on_exceeded = "warn".')
    assert not Path(spec.store.url, spec.run_id).exists()
    open_run(spec.model_copy(update={"budget": spec.budget.model_copy(update={"per_run": 3.0})}), clock=clock)


def test_a_budget_that_pays_for_no_start_is_refused_whatever_the_action(make_spec, clock):
    for action in ("stop", "refuse"):
        with pytest.raises(BudgetError, match="the budget is used up"):
            check_start(
                make_spec(pools=PRICES, policy=POLICY, budget={"per_run": 0.01, "on_exceeded": action}), clock=clock
            )
    check_start(make_spec(pools=PRICES, policy=POLICY, budget={"per_run": 0.01, "on_exceeded": "warn"}), clock=clock)


def test_a_time_limit_that_is_too_short_for_a_start_is_refused_and_its_fix_helps(make_spec, clock):
    with pytest.raises(BudgetError, match=r"budget\.max_hours = 0\.01.*Fix: set a higher budget\.max_hours\."):
        check_start(make_spec(policy=POLICY, budget={"max_hours": 0.01}), clock=clock)
    check_start(make_spec(policy=POLICY, budget={"max_hours": 1}), clock=clock)


def test_a_parent_that_starts_again_is_not_refused_and_its_next_decision_ends_the_run(make_spec, clock):
    run = begin(make_spec, clock, budget=0.5)
    work(run, 1790, commit=10)
    open_run(run.spec, clock=clock)
    assert end(run) == "budget"
    with pytest.raises(BudgetError):
        open_run(run.spec, clock=clock)


def test_a_run_that_was_stopped_by_its_budget_is_opened_with_a_higher_one(make_spec, clock):
    run = begin(make_spec, clock, budget=0.5)
    work(run, 1790, commit=10)
    assert end(run) == "budget"
    more = run.spec.model_copy(update={"budget": run.spec.budget.model_copy(update={"per_run": 1.0})})
    decision = decide_next(open_run(more, clock=clock), more, clock=clock)
    assert (decision.action, decision.plan.parent.step) == ("run", 10)
    assert decision.plan.max_seconds == bound(HOUR - 1790)


def test_the_months_cap_counts_all_runs_of_the_store(make_spec, clock):
    budget = {"per_month": 1.0}
    first = begin(make_spec, clock, run_id="first", budget=budget)
    work(first, 0.75 * HOUR, commit=10)
    second = begin(make_spec, clock, run_id="second", budget=budget)
    plan = second.decide()
    assert plan.max_seconds == bound(0.25 * HOUR)
    declare_lost(second.log, plan, why="killed by the test")
    clock.advance(61)
    plan = first.decide()  # The first one trains again, and the other one sees what that has cost so far.
    claim = first.claim(plan)
    clock.advance(0.24 * HOUR)
    first.beat(claim, step=12)
    decision = decide_next(second.log, second.spec, clock=clock)
    assert decision.action == "budget"
    assert decision.reason.startswith("the budget is used up: 0.9900 EUR of 1.00 EUR for all runs in 2026-01 are spent")
    with pytest.raises(BudgetError, match="for all runs in 2026-01"):
        begin(make_spec, clock, run_id="third", budget=budget)
    clock.advance((datetime(2026, 2, 1, 1, tzinfo=UTC) - clock.now()).total_seconds())
    begin(make_spec, clock, run_id="third", budget=budget)


def test_the_sum_over_a_stores_runs_is_not_made_for_each_of_many_failing_attempts(make_spec, clock):
    run = begin(make_spec, clock, budget={"per_month": 100.0})
    for _ in range(3):
        declare_lost(run.log, run.decide(), why="killed by the test")
        clock.advance(25)
    run.decide()
    read_history(run.log.reload())
    assert sum(isinstance(slot.entry, SpendingEntry) for slot in run.log.slots_from(0)) == 2


def test_without_a_budget_and_without_standbys_the_log_has_no_records_of_spending(make_spec, clock):
    for fields in ({}, {"budget": 5.0}):
        run = begin(make_spec, clock, **fields)
        declare_lost(run.log, run.decide(), why="killed by the test")
        run.decide()
        read_history(run.log.reload())
        assert not any(isinstance(slot.entry, SpendingEntry) for slot in run.log.slots_from(0))


def test_standbys_of_the_run_are_paid_from_its_budget(make_spec, clock):
    run = begin(make_spec, clock, budget=2.0)
    name = keys.standby_id(0)
    command = {"counter": 1, "action": "wait", "why": "test", "deployment": "segment/spot", "segment": 0, "attempt": 1}
    put_command(run.log.store, "tiny", StandbyCommand(standby=name, **command))
    beat_at = START + timedelta(seconds=HOUR)
    status = StandbyStatus(standby=name, counter=1, phase="gone", held_seconds=HOUR / 2, beat_at=beat_at)
    put_status(run.log.store, "tiny", status)
    clock.advance(2 * HOUR)
    assert run.decide().max_seconds == bound(1.5 * HOUR)


def test_a_budget_that_only_warns_is_logged_at_each_decision(make_spec, clock, caplog):
    run = begin(make_spec, clock, budget={"per_run": 0.01, "on_exceeded": "warn"})
    run.decide()
    assert "the budget will be exceeded" in caplog.text


def test_a_raised_budget_is_no_drift(make_spec, clock):
    before, after = make_spec(budget=1.0), make_spec(budget={"per_run": 2.0, "per_month": 9.0})
    assert isinstance(before, RunSpec)
    assert before.identity() == after.identity()
