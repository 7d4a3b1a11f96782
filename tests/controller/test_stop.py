"""Stopping a run by hand: the attempt commits and ends, no further one is started, and the run can be resumed."""

from __future__ import annotations

import threading

import pytest

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.local_run import run_here
from segue.controller.steps import decide_next, open_run, request_stop
from segue.errors import RunOverError, StalePlanError
from segue.records import StopReason
from segue.reports.summary import state_of
from segue.runlog.history import read_history
from tests.controller.test_wait import Watched


@pytest.fixture
def run(make_spec) -> Watched:
    return Watched(make_spec(steps=100))


def test_the_attempt_that_trains_is_recalled_and_no_other_follows(run):
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(10, lambda: request_stop(run.another_log(), reason="no more money"))
    run.reports(13, plan, claim, StopReason.BOUND)
    assert run.wait(plan).stop_reason is StopReason.BOUND
    assert run.log.store.size(f"tiny/attempts/{claim.attempt_id}/recall.json")
    decision = decide_next(run.log, run.spec, clock=run.clock)
    assert (decision.action, decision.reason, decision.plan) == ("stopped", "no more money", None)


def test_an_attempt_that_starts_after_the_stop_trains_nothing_though_no_parent_lives(run):
    plan = run.decide()
    request_stop(run.log, reason="by hand")
    with pytest.raises(StalePlanError, match="the run was stopped"):
        run.claim(plan)


def test_an_attempt_that_waits_for_capacity_is_cancelled(run):
    plan = run.decide()
    run.clock.at(10, lambda: request_stop(run.another_log(), reason="by hand"))
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity, report.note) == (StopReason.CANCELLED, False, "by hand")
    assert run.child.asked == ["cancel: by hand"]
    assert decide_next(run.log, run.spec, clock=run.clock).action == "stopped"


def test_an_attempt_that_does_not_answer_a_stop_has_time_for_a_last_checkpoint_and_is_then_lost(run):
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(10, lambda: request_stop(run.another_log(), reason="by hand"))
    report = run.wait(plan)
    assert report.stop_reason is StopReason.LOST
    assert "did not end within" in report.note
    assert run.clock.monotonic() > 10 + run.spec.liveness.heartbeat_timeout_seconds


def test_a_second_stop_changes_nothing_and_one_of_a_run_that_ended_is_refused(run):
    plan, claim = run.started()
    request_stop(run.log, reason="first")
    slots = run.log.next_slot
    request_stop(run.log, reason="second")
    assert run.log.next_slot == slots
    run.commit(claim, 100)
    run.report(plan, claim, StopReason.FINISHED)
    again = open_run(run.spec, clock=run.clock)
    assert decide_next(again, run.spec, clock=run.clock).action == "finished"
    with pytest.raises(RunOverError, match=r"already ended \(finished at step 100\)"):
        request_stop(again, reason="too late")


def test_a_parent_that_waited_in_a_queue_does_not_undo_a_stop_that_came_after_its_request(run):
    requested_at = open_run(run.spec, clock=run.clock).next_slot
    request_stop(run.log, reason="by hand")
    late = open_run(run.spec, clock=run.clock, requested_at_slot=requested_at)
    assert decide_next(late, run.spec, clock=run.clock).action == "stopped"
    changed = run.spec.model_copy(update={"grace_seconds": 9.0})
    late = open_run(changed, clock=run.clock, requested_at_slot=requested_at)
    assert decide_next(late, changed, clock=run.clock).action == "stopped"
    again = open_run(run.spec, clock=run.clock)
    assert decide_next(again, run.spec, clock=run.clock).action == "run"


def test_a_run_that_was_stopped_and_opened_again_can_be_stopped_again(run):
    run.decide()
    request_stop(run.log, reason="first")
    again = open_run(run.spec, clock=run.clock)
    assert read_history(again).is_over is False
    assert not state_of(read_history(again)).startswith("stopped")
    request_stop(again, reason="second")
    assert read_history(again).stop.reason == "second"


def test_what_the_stopped_attempt_reported_does_not_count_for_the_resumed_run(run):
    plan, claim = run.started()
    run.commit(claim, 10)
    request_stop(run.log, reason="by hand")
    run.report(plan, claim, StopReason.BOUND)
    assert read_history(open_run(run.spec, clock=run.clock)).fresh_reports == ()


def test_an_attempt_from_before_the_stop_whose_cancelled_end_is_found_later_does_not_end_the_resumed_run(run):
    plan = run.decide()
    request_stop(run.log, reason="the parent's flow run was cancelled")
    open_run(run.spec, clock=run.clock)
    assert decide_next(run.log, run.spec, clock=run.clock).plan == plan
    declare_lost(run.log, plan, why="its flow run ended as Cancelled without a report", reason=StopReason.CANCELLED)
    decision = decide_next(run.log, run.spec, clock=run.clock)
    assert (decision.action, decision.plan.attempt) == ("run", plan.attempt + 1)


@pytest.mark.parametrize(("requested_after", "action"), [(True, "run"), (False, "cancelled")])
def test_a_start_that_was_asked_for_after_a_segment_was_cancelled_trains_though_no_parent_ended_the_run(
    run, requested_after, action
):
    plan, claim = run.started()
    run.commit(claim, 10)
    asked_at = run.log.next_slot
    run.report(plan, claim, StopReason.CANCELLED)
    requested = asked_at if not requested_after else None
    for _ in range(2):  # The command opens the run, and then its parent.
        opened = open_run(run.spec, clock=run.clock, requested_at_slot=requested)
    decision = decide_next(opened, run.spec, clock=run.clock)
    assert decision.action == action
    assert [entry.action for entry in read_history(opened).decisions] == ["run", "cancelled", "run"][
        : 2 + requested_after
    ]


def test_a_late_correction_of_an_earlier_attempt_to_cancelled_does_not_end_the_one_that_trains(run):
    plan, claim = run.started()
    run.report(plan, claim, StopReason.NOTICE)
    following = run.decide()
    run.report(plan, claim, StopReason.CANCELLED)
    assert read_history(open_run(run.spec, clock=run.clock)).open_plan == following


@pytest.mark.matrix
def test_a_stopped_run_resumes_from_its_last_checkpoint_when_it_is_started_again(make_spec):
    spec = make_spec(steps=4000, checkpoints={"every_steps": 50})
    runlog = open_run(spec, clock=SystemClock())
    asked = threading.Event()

    def watch(trainer, log, plan) -> None:
        if not asked.is_set() and read_history(log).committed_step >= 50:
            asked.set()
            request_stop(log, reason="by hand")

    assert run_here(spec, runlog, watch=watch, on_line=lambda line: None).action == "stopped"
    stopped_at = read_history(runlog).committed_step
    assert 50 <= stopped_at < 4000
    shorter = spec.model_copy(update={"steps": spec.steps})
    again = open_run(shorter, clock=SystemClock())
    plan = decide_next(again, shorter, clock=SystemClock()).plan
    assert plan.parent.step == stopped_at


@pytest.fixture
def timed(make_spec) -> Watched:
    """A run whose time is 100 s, and that answers a recall within 3 s: a heartbeat, a step and no save."""
    policy = {"step_seconds": 1.0, "changeover_seconds": 1.0}
    return Watched(
        make_spec(steps=1000, budget={"max_hours": 100 / 3600}, policy=policy, liveness={"heartbeat_seconds": 2.0})
    )


def test_an_attempt_is_recalled_before_the_time_of_the_run_is_used_up_and_no_other_follows(timed):
    plan, claim = timed.started()
    timed.beats_on(claim)
    timed.reports(99, plan, claim, StopReason.BOUND)
    assert timed.wait(plan).stop_reason is StopReason.BOUND
    (recalled_at,) = timed.recalls
    assert 95 <= recalled_at <= 98
    recall = timed.log.store.get(f"tiny/attempts/{claim.attempt_id}/recall.json")
    assert recall == b"the time of the run is used up (budget.max_hours)"
    decision = decide_next(timed.log, timed.spec, clock=timed.clock)
    assert (decision.action, decision.plan) == ("budget", None)
    assert "the time of the run is used up" in decision.reason


def test_an_attempt_that_does_not_answer_at_the_end_of_the_time_may_write_its_last_checkpoint(timed):
    plan, claim = timed.started()
    timed.beats_on(claim)
    report = timed.wait(plan)
    assert report.stop_reason is StopReason.LOST
    assert "did not end within" in report.note
    assert timed.clock.monotonic() > 97 + timed.spec.liveness.heartbeat_timeout_seconds


def test_a_wait_for_a_machine_ends_with_the_time_of_the_run(timed):
    plan = timed.decide()
    report = timed.wait(plan)
    assert (report.stop_reason, report.got_capacity) == (StopReason.NO_CAPACITY, False)
    assert report.note == "no machine after 100 s, and the time of the run is used up"
    assert timed.clock.monotonic() == pytest.approx(100, abs=1)
    assert decide_next(timed.log, timed.spec, clock=timed.clock).action == "budget"


@pytest.mark.matrix
def test_a_real_run_commits_and_ends_within_its_time_and_continues_with_more_time(make_spec):
    common = {
        "steps": 400,
        "config": {"pause_seconds": 0.05},
        "policy": {"step_seconds": 0.05, "changeover_seconds": 1},
    }
    spec = make_spec(budget={"max_hours": 12 / 3600}, checkpoints={"every_steps": 1000}, **common)
    runlog = open_run(spec, clock=SystemClock())
    ended = run_here(spec, runlog)
    assert ended.action == "budget"
    history = read_history(runlog.reload())
    (report,) = [each for each in history.last_reports() if each.got_capacity]
    assert report.lost_steps == 0
    assert 0 < history.committed_step == report.to_step < 400
    more = make_spec(budget={"max_hours": 1}, **common)
    assert run_here(more, open_run(more, clock=SystemClock())).action == "finished"
