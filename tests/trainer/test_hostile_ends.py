"""Unplanned ends: near the goal, with data workers, with a failing store, with a recipe that calls sys.exit."""

from __future__ import annotations

import os
import signal

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.launch.local import ProcessTrainer
from segue.notices.board import NoticeBoard
from segue.records import Capacity, SegmentPlan, StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.testing.faulty_store import FaultyStore


def notice_at(step):
    def observer(pid, log, plan):
        beat = last_heartbeat(log, read_history(log).attempt_of(plan.segment, plan.attempt))
        if beat is None or beat.step < step:
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    return observer


@pytest.mark.matrix
def test_a_notice_just_before_the_goal_does_not_train_past_it(fork_server, make_spec, open_log):
    fields = {"steps": 40, "config": {"pause_seconds": 0.05}}
    undisturbed = make_spec(run_id="undisturbed", **fields)
    reference = open_log(undisturbed)
    fork_server.run_to_the_end(reference, undisturbed)
    spec = make_spec(**fields)
    runlog = open_log(spec)
    first = fork_server.run_attempt(runlog, spec, observer=notice_at(34))
    assert first.stop_reason is StopReason.NOTICE
    assert 34 <= first.to_step < 40
    fork_server.run_to_the_end(runlog, spec)
    newest = read_history(runlog).newest
    assert newest.manifest.step == 40
    assert newest.manifest.components == read_history(reference).newest.manifest.components


@pytest.mark.matrix
def test_a_signal_that_also_kills_the_data_workers_is_a_notice_not_a_bug(make_spec, open_log):
    spec = make_spec(
        recipe="tests.recipes.faulty:with_workers",
        steps=4000,
        config={"pause_seconds": 0.02},
        checkpoints={"every_steps": 1000},
    )
    runlog = open_log(spec)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-")
    trainer = ProcessTrainer(Assignment(spec=spec, plan=plan), on_line=lambda line: None)
    try:
        while (beat := last_heartbeat(runlog, read_history(runlog).attempt_of(0, 1))) is None or beat.step < 5:
            assert trainer.poll() is None
            SystemClock().sleep(0.05)
        os.killpg(trainer.pid, signal.SIGTERM)
        trainer.wait(30)
    finally:
        trainer.kill()
        trainer.wait()
    report = read_history(runlog).report_of(0, 1)
    assert report.stop_reason is StopReason.NOTICE
    assert report.checkpoint.step == report.to_step >= 5
    assert report.lost_steps == 0


@pytest.mark.matrix
@pytest.mark.parametrize("operation", ["read_into", "put_if_absent"])
def test_a_store_operation_that_fails_briefly_is_retried(make_spec, open_log, operation):
    from segue.trainer.attempt import run_attempt

    spec = make_spec(config={"raise_at_step": 15, "pause_seconds": 0.02}, steps=30)
    runlog = open_log(spec)
    attempt(run_attempt, spec, runlog, runlog)
    faults = iter([True, True])
    flaky = FaultyStore(runlog.store, fails=lambda op, key: op == operation and is_trouble(key) and next(faults, False))
    flaky_log = RunLog(flaky, spec.run_id).reload()
    report = attempt(run_attempt, spec.model_copy(update={"config": {}}), runlog, flaky_log)
    assert report.stop_reason is StopReason.FINISHED
    assert next(faults, None) is None
    assert read_history(runlog.reload()).attempts[-1].verdict.kind is VerdictKind.EXACT


def is_trouble(key):
    return "attempts" in key or "/log/" in key


def attempt(run_attempt, spec, decided_in, runlog):
    clock = SystemClock()
    plan = decide_next(decided_in, spec, clock=clock).plan
    return run_attempt(Assignment(spec=spec, plan=plan), runlog=runlog, board=NoticeBoard(clock), clock=clock)


@pytest.mark.matrix
def test_a_second_process_for_a_live_attempt_does_not_disturb_it(make_spec, open_log):
    spec = make_spec(steps=60, config={"pause_seconds": 0.05})
    runlog = open_log(spec)
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    first = ProcessTrainer(Assignment(spec=spec, plan=plan), on_line=lambda line: None)
    try:
        while read_history(runlog).attempt_of(0, 1) is None:
            assert first.poll() is None
            SystemClock().sleep(0.02)
        # It finds the decided plan, starts its own process for it, and then waits for the first one.
        assert run_here(spec, runlog, on_line=lambda line: None).action == "finished"
    finally:
        first.kill()
        first.wait()
    history = read_history(runlog.reload())
    assert [report.stop_reason for report in history.reports] == [StopReason.FINISHED]
    assert len(history.attempts) == 1


@pytest.mark.matrix
def test_a_trainer_that_always_dies_before_its_claim_is_started_a_limited_number_of_times(make_spec, open_log):
    spec = make_spec(device="cuda:99", policy={"max_lost_in_place": 2, "name": "on_demand_only"})
    decision = run_here(spec, open_log(spec), on_line=lambda line: None)
    assert decision.action == "hopeless"


def test_sys_exit_in_a_recipe_is_a_failure_and_not_a_preemption(fork_server, make_spec, open_log):
    spec = make_spec(recipe="tests.recipes.faulty:leaves", config={"marker": "-"})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "SystemExit")
