"""Trainers that hang end themselves, with the stack of every thread in the report."""

from __future__ import annotations

import os
import signal
import time

import pytest

from segue.launch.assignment import ExitCode
from segue.process import ProcessRef
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from tests.support.forked_trainers import next_plan, watch

STUCK = "tests.recipes.stuck:build"
QUICK = {"heartbeat_seconds": 0.05, "hang_seconds": 1.5, "hang_factor": 2.0}


@pytest.mark.parametrize("how", ["sleep", pytest.param("lock", marks=pytest.mark.matrix)])
def test_an_attempt_that_hangs_in_a_step_is_ended_and_its_report_shows_where(fork_server, make_spec, open_log, how):
    spec = make_spec(recipe=STUCK, config={"how": how, "at_step": 25}, liveness=QUICK)
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step) == (StopReason.HUNG, 24)
    assert report.failure.type == "Hang"
    assert "after step 24" in report.failure.message
    assert "tests/recipes/stuck.py" in report.failure.traceback
    assert f"in _{how}" in report.failure.traceback
    assert report.checkpoint.step == 24 - report.lost_steps


@pytest.mark.matrix
def test_an_attempt_that_hangs_while_its_recipe_is_built_has_the_limit_of_the_first_step(
    fork_server, make_spec, open_log
):
    liveness = QUICK | {"hang_seconds": 0.2, "first_step_seconds": 2.0}
    spec = make_spec(recipe=STUCK, config={"how": "sleep", "at_step": 0}, liveness=liveness)
    began = time.monotonic()
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.HUNG
    assert time.monotonic() - began >= 2
    assert "while starting" in report.note
    assert "in build" in report.failure.traceback


@pytest.mark.matrix
def test_a_slow_evaluation_is_no_hang(fork_server, make_spec, open_log):
    liveness = QUICK | {"hang_seconds": 0.5}
    spec = make_spec(recipe="tests.recipes.stuck:slow_evaluation", config={"seconds": 1.2}, liveness=liveness)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FINISHED


@pytest.mark.soak
def test_a_suspended_process_does_not_count_the_time_as_a_hang(fork_server, make_spec, open_log):
    spec = make_spec(steps=400, config={"pause_seconds": 0.01}, liveness=QUICK | {"hang_seconds": 1.0})
    runlog = open_log(spec)
    plan = next_plan(runlog, spec)
    process = fork_server.start(spec, plan)
    is_training = False
    while not is_training:
        beat = last_heartbeat(runlog, read_history(runlog).attempt_of(plan.segment, plan.attempt))
        is_training = beat is not None and beat.phase == "training"
    os.kill(process.pid, signal.SIGSTOP)
    time.sleep(3)
    os.kill(process.pid, signal.SIGCONT)
    watch(process.is_alive, None, limit_seconds=60)
    assert read_history(runlog).report_of(plan.segment, plan.attempt).stop_reason is StopReason.FINISHED


@pytest.mark.matrix
def test_a_hung_attempt_that_gets_a_notice_ends_after_its_grace_period(fork_server, make_spec, open_log):
    liveness = QUICK | {"hang_seconds": 600}
    spec = make_spec(recipe=STUCK, config={"how": "sleep", "at_step": 25}, liveness=liveness, grace_seconds=1)
    runlog = open_log(spec)
    began = time.monotonic()

    def notice_in_the_hang(pid, log, plan):
        beat = last_heartbeat(log, read_history(log).attempt_of(plan.segment, plan.attempt))
        if beat is None or beat.step < 24:
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    report = fork_server.run_attempt(runlog, spec, observer=notice_in_the_hang)
    assert report.stop_reason is StopReason.NOTICE
    assert "the notice came during step, which did not end in time" in report.note
    assert report.checkpoint.step == 24 - report.lost_steps
    assert time.monotonic() - began < 60


def test_a_hang_in_a_step_after_the_last_save_costs_no_more_time_than_in_any_step(fork_server, make_spec, open_log):
    """Such steps are made for the proof of the next resume alone; saves and reports have much longer limits."""
    spec = make_spec(recipe=STUCK, config={"how": "sleep", "at_step": 25}, liveness=QUICK, segment={"steps": 20})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec, limit_seconds=60)
    assert (report.stop_reason, report.checkpoint.step, report.failure) == (StopReason.BOUND, 20, None)
    assert "after step 24, while the attempt was ending" in report.note


@pytest.mark.matrix
def test_a_hung_orphan_ends_although_nobody_is_left_to_kill_it(make_spec, open_log, tmp_path):
    spec = make_spec(recipe=STUCK, config={"how": "sleep", "at_step": 25}, liveness=QUICK)
    runlog = open_log(spec)
    plan = next_plan(runlog, spec)
    reads, writes = os.pipe()
    between = os.fork()
    if between == 0:
        # Starts the trainer, passes its id on, and ends once the run is claimed: the trainer is an orphan then.
        from segue.launch.assignment import Assignment
        from segue.launch.local import ProcessTrainer

        trainer = ProcessTrainer(Assignment(spec=spec, plan=plan), on_line=lambda _: None)
        os.write(writes, str(trainer.pid).encode())
        while read_history(runlog).attempt_of(plan.segment, plan.attempt) is None:
            time.sleep(0.05)
        os._exit(0)
    pid = int(os.read(reads, 20))
    os.waitpid(between, 0)

    watch(ProcessRef.of(pid).is_alive, None, limit_seconds=60)
    report = read_history(runlog.reload()).report_of(plan.segment, plan.attempt)
    assert report.stop_reason in (StopReason.HUNG, StopReason.NOTICE)


def test_the_exit_code_names_a_hang_whose_report_could_not_be_written():
    from segue.controller.segment import TrainerEnd

    assert TrainerEnd(ExitCode.HUNG).reason is StopReason.HUNG
    assert TrainerEnd(ExitCode.OUT_OF_MEMORY).reason is StopReason.OUT_OF_MEMORY
    assert TrainerEnd(1).reason is StopReason.LOST
