"""Real torchrun: the process that launched the ranks can signal and end all of them."""

from __future__ import annotations

import time

import psutil
import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.registry import launch, launch_standby
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat

RECIPE = {"ranks": 2, "recipe": "tests.recipes.ranked:noisy", "checkpoints": {"every_steps": 1000}}
LONG = {"steps": 100_000, "config": {"pause_seconds": 0.01}}


@pytest.fixture
def start(open_log):
    """Launches the next attempt of a run and waits until it trains; nothing of it outlives the test."""
    launched = []

    def make(spec):
        runlog, lines = open_log(spec), []
        plan = decide_next(runlog, spec, clock=SystemClock()).plan
        trainer = launch(Assignment(spec=spec, plan=plan), on_line=lambda line: lines.append(line.text))
        launched.append(trainer)
        give_up_at = time.monotonic() + 90
        while not is_training(runlog, plan):
            assert trainer.poll() is None, "\n".join(lines)
            assert time.monotonic() < give_up_at, "\n".join(lines)
            time.sleep(0.05)
        return trainer, runlog, plan

    yield make
    for trainer in launched:
        trainer.kill()
        trainer.wait(30)


def is_training(runlog, plan):
    attempt = read_history(runlog).attempt_of(plan.segment, plan.attempt)
    beat = last_heartbeat(runlog, attempt)
    return beat is not None and beat.phase == "training"


def processes_of(trainer):
    root = psutil.Process(trainer.pid)
    return [root, *root.children(recursive=True)]


@pytest.mark.matrix
def test_a_notice_reaches_all_ranks_and_the_run_is_finished_from_where_they_stopped(start, make_spec):
    trainer, runlog, plan = start(make_spec(**RECIPE | LONG))
    everything = processes_of(trainer)
    assert len(everything) >= 3
    trainer.give_notice()
    code = trainer.wait(60)
    assert code == ExitCode.NOTICE
    assert trainer.poll() == ExitCode.NOTICE
    report = report_or_lost(runlog, plan, TrainerEnd(code))
    assert (report.stop_reason, report.notice.kind, report.lost_steps) == (StopReason.NOTICE, "sigterm", 0)
    assert report.checkpoint.step == report.to_step > 0
    assert psutil.wait_procs(everything, timeout=10)[1] == []

    lines = []
    fixed = make_spec(**RECIPE, steps=report.to_step + 20)
    decision = run_here(fixed, runlog, on_line=lambda line: lines.append(line.text))
    assert decision.action == "finished", "\n".join(lines)
    history = read_history(runlog)
    assert history.committed_step == report.to_step + 20
    verdict = history.attempts[-1].verdict
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)
    assert any("rank1 |" in line for line in lines)


@pytest.mark.matrix
def test_a_kill_leaves_no_process_and_no_report(start, make_spec):
    trainer, runlog, plan = start(make_spec(**RECIPE | LONG))
    everything = processes_of(trainer)
    trainer.kill()
    assert trainer.wait(30) == -9
    assert psutil.wait_procs(everything, timeout=10)[1] == []
    assert report_or_lost(runlog, plan, TrainerEnd(-9)).stop_reason is StopReason.LOST


@pytest.mark.matrix
def test_ranks_that_booted_as_a_standby_train_together_once_they_have_an_assignment(make_spec, open_log):
    spec = make_spec(**(RECIPE | {"steps": 20}))
    runlog, lines = open_log(spec), []
    trainer = launch_standby(spec, on_line=lambda line: lines.append(line.text))
    try:
        give_up_at = time.monotonic() + 90
        while not trainer.is_booted():
            assert trainer.poll() is None, "\n".join(lines)
            assert time.monotonic() < give_up_at, "\n".join(lines)
            time.sleep(0.05)
        plan = decide_next(runlog, spec, clock=SystemClock()).plan
        trainer.take(Assignment(spec=spec, plan=plan))
        assert trainer.wait(90) == ExitCode.FINISHED, "\n".join(lines)
    finally:
        trainer.kill()
        trainer.wait(30)
    assert read_history(runlog).attempts[0].claim.environment.world_size == 2


@pytest.mark.soak
def test_a_rank_that_is_lost_is_named_before_torchrun_kills_the_others_though_these_wait_without_end(start, make_spec):
    fields = {"ranks": 2, "recipe": "tests.recipes.ranked:unanswered", "steps": 30, "checkpoints": {"every_steps": 10}}
    trainer, runlog, plan = start(make_spec(**fields, config={"rank": 1, "how": "die"}))
    code = trainer.wait(90)
    report = report_or_lost(runlog.reload(), plan, TrainerEnd(code))
    assert report.stop_reason is StopReason.LOST
    assert "rank 1 was lost" in report.note
    assert report.attempt_id is not None
