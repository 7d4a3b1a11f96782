"""Stopping a run by hand: the attempt commits and ends, no further one is started, and the run can be resumed."""

from __future__ import annotations

import threading

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import decide_next, open_run, request_stop
from segue.errors import RunOverError
from segue.records import StopReason
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


def test_an_attempt_that_claims_after_the_stop_is_recalled_by_its_parent(run):
    plan = run.decide()
    request_stop(run.log, reason="by hand")
    claim = run.claim(plan)
    run.beats_on(claim)
    run.reports(5, plan, claim, StopReason.BOUND)
    run.wait(plan)
    assert len(run.recalls) == 1


def test_an_attempt_that_waits_for_capacity_is_cancelled(run):
    plan = run.decide()
    run.clock.at(10, lambda: request_stop(run.another_log(), reason="by hand"))
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity, report.note) == (StopReason.LOST, False, "by hand")
    assert run.child.asked == ["cancel: by hand"]
    assert decide_next(run.log, run.spec, clock=run.clock).action == "stopped"


def test_an_attempt_that_does_not_answer_the_stop_is_declared_lost_after_the_heartbeat_timeout(run):
    plan, claim = run.started()
    run.beats_on(claim)
    run.clock.at(10, lambda: request_stop(run.another_log(), reason="by hand"))
    report = run.wait(plan)
    assert report.stop_reason is StopReason.LOST
    assert run.clock.monotonic() == pytest.approx(10 + run.spec.liveness.heartbeat_timeout_seconds, abs=2)


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
