"""Notices that reach a real trainer process: from metadata services, from Slurm, and withdrawn again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.testing.metadata import FAKES, FakeAws, FakeAzure
from tests.support.hostile_service import answering
from tests.trainer.test_endings import SLOW, once_training

NOTICING = "tests.recipes.noticing:build"


def test_sigusr1_commits_and_ends_as_notice_with_the_time_that_slurm_was_asked_for(fork_server, make_spec, open_log):
    spec = make_spec(**SLOW | {"liveness": {"heartbeat_seconds": 0.05, "usr1_seconds": 90}})
    observer = once_training(lambda pid, attempt: os.kill(pid, signal.SIGUSR1))
    report = fork_server.run_attempt(open_log(spec), spec, observer=observer)
    assert (report.stop_reason, report.notice.kind, report.notice.grace_seconds) == (StopReason.NOTICE, "sigusr1", 90)
    assert report.checkpoint.step == report.to_step > 0


@pytest.mark.parametrize(
    ("name", "grace_seconds"),
    [pytest.param("aws", 120, marks=pytest.mark.matrix), ("gce", 30), ("azure", 30)],
)
def test_a_notice_of_the_platform_that_was_found_commits_and_ends_the_attempt(
    name, grace_seconds, fork_server, make_spec, open_log
):
    spec = make_spec(**SLOW, notices=None)
    runlog = open_log(spec)
    with FAKES[name]() as service:
        report = fork_server.run_attempt(
            runlog,
            spec,
            observer=once_training(lambda pid, attempt: service.preempt()),
            environment=service.environment,
        )
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, name)
    assert 0 < report.notice.grace_seconds <= grace_seconds
    assert (report.checkpoint.step, report.lost_steps) == (report.to_step, 0)


@pytest.mark.soak
def test_a_rebalance_recommendation_saves_beyond_the_cadence_and_training_goes_on(
    fork_server, make_spec, open_log, tmp_path
):
    notes = tmp_path / "notes"
    spec = make_spec(
        recipe=NOTICING,
        steps=100_000,
        config={"pause_seconds": 0.005, "notes": str(notes)},
        checkpoints={"every_steps": 100_000},
        notices=["aws"],
    )
    runlog = open_log(spec)
    with FakeAws() as aws:
        recommended = once_training(lambda pid, attempt: aws.rebalance())
        stages = iter([recommended, lambda pid, log, plan: bool(read_history(log).checkpoints), interrupted(aws)])
        now = [next(stages)]

        def observer(pid, log, plan):
            if now[0](pid, log, plan):
                now[0] = next(stages, None)
            return now[0] is None

        report = fork_server.run_attempt(runlog, spec, observer=observer, environment=aws.environment)
    first, last = (checkpoint.manifest.step for checkpoint in read_history(runlog).checkpoints)
    assert 0 < first < last == report.to_step < spec.steps
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, "aws")
    assert [line.split()[0] for line in notes.read_text().splitlines()] == ["rebalance", "aws"]


def interrupted(aws):
    def observer(pid, log, plan):
        aws.preempt()
        return True

    return observer


@pytest.mark.matrix
def test_an_eviction_that_azure_withdraws_before_the_step_ends_stops_nothing(
    fork_server, make_spec, open_log, tmp_path
):
    hold = tmp_path / "hold"
    hold.touch()
    spec = make_spec(recipe=NOTICING, config={"hold": str(hold)}, notices=["azure"])
    with FakeAzure() as azure:

        def polls():
            return sum(request == "GET /metadata/scheduledevents" for request in azure.requests)

        def wait_for_polls(count):
            until = polls() + count
            while polls() < until:
                SystemClock().sleep(0.02)

        def observer(pid, log, plan):
            if not hold.with_suffix(".reached").exists() or not polls():
                return False
            event = azure.schedule()
            wait_for_polls(2)  # The first may have been on its way before.
            azure.withdraw(event)
            wait_for_polls(2)
            hold.unlink()
            return True

        report = fork_server.run_attempt(open_log(spec), spec, observer=observer, environment=azure.environment)
    assert (report.stop_reason, report.to_step, report.notice) == (StopReason.FINISHED, 40, None)


@pytest.mark.parametrize("answer", [None, b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE"])
def test_a_service_that_hangs_or_answers_nonsense_changes_nothing(answer, fork_server, make_spec, open_log):
    spec = make_spec(notices=None if answer is None else ["aws", "azure"])
    with answering(answer) as environment:
        report = fork_server.run_attempt(open_log(spec), spec, environment=environment)
    assert (report.stop_reason, report.notice) == (StopReason.FINISHED, None)


@pytest.mark.matrix
def test_a_launched_trainer_finds_the_fake_service_from_its_environment_and_the_run_resumes(
    make_spec, open_log, monkeypatch
):
    spec = make_spec(steps=400, config={"pause_seconds": 0.005}, checkpoints={"every_steps": 1000}, notices=None)
    runlog, lines, done = open_log(spec), [], []
    with FAKES["gce"]() as gce:
        for variable, value in gce.environment.items():
            monkeypatch.setenv(variable, value)
        preempt = once_training(lambda pid, attempt: done.append(gce.preempt()))

        def watch(trainer, log, plan):
            if not done:
                preempt(trainer.pid, log, plan)
            elif read_history(log).report_of(0, 1) is not None:
                gce.reset()  # The next attempt is on another machine.

        decision = run_here(spec, runlog, watch=watch, on_line=lambda line: lines.append(line.text))
    assert decision.action == "finished", "\n".join(lines)
    first, last = read_history(runlog).last_reports()
    assert (first.stop_reason, first.notice.kind, last.stop_reason) == (StopReason.NOTICE, "gce", StopReason.FINISHED)
    assert read_history(runlog).attempts[1].verdict.kind is VerdictKind.EXACT
    assert any("platform found platform=gce" in line for line in lines)


@pytest.mark.parametrize(
    "hook", ["raise", *(pytest.param(hook, marks=pytest.mark.matrix) for hook in ("nothing", "exit", "hang"))]
)
def test_on_notice_is_called_once_and_whatever_it_does_the_last_checkpoint_is_committed(
    hook, fork_server, make_spec, open_log, tmp_path
):
    notes = tmp_path / "notes"
    spec = make_spec(
        **SLOW | {"recipe": NOTICING, "config": {"pause_seconds": 0.005, "notes": str(notes), "hook": hook}}
    )
    observer = once_training(lambda pid, attempt: os.kill(pid, signal.SIGTERM))
    report = fork_server.run_attempt(open_log(spec), spec, observer=observer)
    assert (report.stop_reason, report.checkpoint.step, report.lost_steps) == (StopReason.NOTICE, report.to_step, 0)
    assert Path(notes).read_text() == "sigterm 25 rank0\n"
