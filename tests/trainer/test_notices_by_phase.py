"""A notice is answered in every phase of an attempt: within the grace period, with all that could be committed."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from segue.records import StopReason
from segue.runlog.history import read_history
from segue.trainer.health.watchdog import moment_to_answer, report_seconds
from tests.support.final_states import state_at_end
from tests.support.forked_trainers import next_plan
from tests.trainer import busy

BUSY = "tests.trainer.busy:build"
GRACE_SECONDS = 10.0
PATIENCE_SECONDS = 120.0


@pytest.fixture
def notice(fork_server, open_log, tmp_path):
    """Trains an attempt, sends SIGTERM when it is busy; gives its report and how long it took to end."""

    def run(spec):
        runlog, reached = open_log(spec), Path(f"{tmp_path / 'once'}.reached")
        plan = next_plan(runlog, spec)
        process = fork_server.start(spec, plan)
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while not reached.exists():
            assert process.is_alive(), "the attempt ended before it was busy"
            assert time.monotonic() < give_up_at, "the attempt is never busy"
            time.sleep(0.02)
        time.sleep(0.3)  # It is in the phase for a while already.
        began = time.monotonic()
        os.kill(process.pid, signal.SIGTERM)
        process.join(PATIENCE_SECONDS)
        assert not process.is_alive(), "the attempt does not end"
        seconds = time.monotonic() - began
        report = read_history(runlog.reload()).report_of(plan.segment, plan.attempt)
        assert report is not None, "a notice without an answer"
        return report, seconds

    return run


@pytest.fixture
def make_busy(make_spec, tmp_path):
    def make(**fields):
        config = {"once": str(tmp_path / "once")} | fields.pop("config")
        return make_spec(recipe=BUSY, grace_seconds=GRACE_SECONDS, config=config, **fields)

    return make


def first_of(fork_server, open_log, spec, *, steps):
    """An attempt before the one that gets the notice; it ends as planned after so many steps."""
    shorter = spec.model_copy(update={"segment": spec.segment.model_copy(update={"steps": steps})})
    assert fork_server.run_attempt(open_log(shorter), shorter).stop_reason is StopReason.BOUND


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("config", "phase", "to_step", "committed"),
    [
        pytest.param({"where": "build"}, "build", 0, None, id="build"),
        pytest.param({"where": "loss"}, "first step", 0, None, id="first step"),
        pytest.param({"where": "evaluate", "at_step": 10}, "evaluate", 10, 10, id="evaluate for a save"),
        pytest.param(
            {"where": "evaluate", "at_step": 7, "evaluate_every": 7}, "evaluate", 7, 7, id="evaluate between saves"
        ),
        pytest.param({"where": "save", "at_step": 10, "seconds": 2}, "save", 11, 11, id="save"),
        pytest.param({"where": "loss", "at_step": 14, "seconds": 2}, "step", 15, 15, id="step"),
    ],
)
def test_a_notice_is_answered_at_once_and_loses_no_step(notice, make_busy, tmp_path, config, phase, to_step, committed):
    report, seconds = notice(make_busy(config=config))
    assert (report.stop_reason, report.notice.kind, report.notice.phase) == (StopReason.NOTICE, "sigterm", phase)
    # The safe point after a save is the one after the next step, where steps are short.
    assert report.to_step in ((10, 11) if phase == "save" else (to_step,))
    assert report.lost_steps == 0
    assert (report.checkpoint.step if report.checkpoint else None) == (committed and report.to_step)
    assert seconds < GRACE_SECONDS
    if phase != "build":  # The recipe, and its hook, are not there yet.
        assert (tmp_path / "once.told").read_text() == f"sigterm in {phase}"


@pytest.mark.matrix
@pytest.mark.parametrize(("where", "phase"), [("restore", "restore"), ("loss", "replay")])
def test_a_notice_in_a_resume_is_answered_at_once(notice, make_busy, fork_server, open_log, tmp_path, where, phase):
    spec = make_busy(config={"where": where, "at_step": 0})
    marker = Path(f"{tmp_path / 'once'}.reached")
    marker.touch()
    first_of(fork_server, open_log, spec, steps=20)
    marker.unlink()
    report, seconds = notice(spec)
    assert (report.stop_reason, report.notice.phase) == (StopReason.NOTICE, phase)
    assert (report.from_step, report.to_step, report.lost_steps) == (20, 20, 0)
    assert seconds < GRACE_SECONDS


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("config", "rehearsal", "phase"),
    [
        ({"where": "evaluate", "at_step": 40}, "off", "evaluate"),
        pytest.param({"where": "build of a rehearsal"}, "warn", "rehearsal", marks=pytest.mark.matrix),
    ],
)
def test_a_notice_after_the_last_step_costs_no_result(notice, make_busy, config, rehearsal, phase):
    report, seconds = notice(make_busy(config=config, continuity={"rehearsal": rehearsal, "witness_steps": 4}))
    assert (report.stop_reason, report.checkpoint.step, report.lost_steps) == (StopReason.FINISHED, 40, 0)
    if phase == "evaluate":
        assert report.notice.phase == phase
    assert seconds < GRACE_SECONDS


@pytest.mark.matrix
def test_a_kill_without_a_notice_in_an_evaluation_loses_no_save(fork_server, make_busy, open_log, tmp_path):
    spec = make_busy(config={"where": "evaluate", "at_step": 10})
    runlog = open_log(spec)

    def kill_it(pid, log, plan):
        if Path(f"{tmp_path / 'once'}.reached").exists() and list(Path(spec.store.url).rglob("*.commit.json")):
            os.kill(pid, signal.SIGKILL)
            return True
        return False

    assert fork_server.run_attempt(runlog, spec, observer=kill_it).stop_reason is StopReason.LOST
    report = fork_server.run_attempt(runlog, spec)
    assert (report.from_step, report.stop_reason) == (10, StopReason.FINISHED)


@pytest.mark.matrix
def test_a_step_that_outlasts_the_grace_period_is_reported_before_its_end(notice, make_busy):
    report, seconds = notice(make_busy(config={"where": "loss", "at_step": 14}))
    assert (report.stop_reason, report.notice.phase) == (StopReason.NOTICE, "step")
    assert (report.to_step, report.checkpoint.step, report.lost_steps) == (14, 10, 4)
    assert "did not end in time" in report.note
    assert seconds > GRACE_SECONDS - 3


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("plateau", "every"), [(False, "epoch"), (True, 7), pytest.param(False, 7, marks=pytest.mark.matrix)]
)
def test_an_evaluation_that_a_notice_ended_is_made_by_the_next_attempt(
    notice, make_busy, fork_server, open_log, plateau, every
):
    config = {"where": "evaluate", "at_step": 8 if every == "epoch" else 7, "evaluate_every": every, "plateau": plateau}
    spec = make_busy(run_id="noticed", config=config)
    report, _ = notice(spec)
    assert report.checkpoint.step == report.to_step == config["at_step"]
    runlog = open_log(spec)
    fork_server.run_to_the_end(runlog, spec)
    whole = make_busy(run_id="whole", config=config)
    fork_server.run_to_the_end(open_log(whole), whole)
    noticed, undisturbed = (read_history(open_log(each).reload()) for each in (spec, whole))
    assert state_at_end(noticed) == state_at_end(undisturbed)


@pytest.mark.parametrize(
    ("where", "phase", "lost"),
    [("build", "build", 0), pytest.param("evaluate", "evaluate", 4, marks=pytest.mark.matrix)],
)
def test_a_notice_to_a_program_is_answered(notice, make_spec, tmp_path, where, phase, lost):
    command = [sys.executable, busy.__file__, where, "0" if where == "build" else "14", str(tmp_path / "once")]
    spec = make_spec(recipe=None, program={"command": command}, grace_seconds=GRACE_SECONDS)
    report, seconds = notice(spec)
    assert (report.stop_reason, report.notice.phase, report.lost_steps) == (StopReason.NOTICE, phase, lost)
    assert seconds < GRACE_SECONDS + 5


@pytest.mark.parametrize(
    ("kind", "is_all_captured", "when"),
    [
        ("starting", True, "at once"),
        ("waiting", True, "at once"),
        ("evaluating", True, "at once"),
        ("evaluating", False, "at the end"),
        ("training", True, "at the end"),
        ("training", False, "at the end"),
        ("leaving", True, "at the end"),
        ("ending", True, "never"),
        ("ending", False, "never"),
    ],
)
def test_when_the_watchdog_answers_in_place_of_the_training_thread(kind, is_all_captured, when):
    assert moment_to_answer(kind, is_all_captured=is_all_captured) == when


@pytest.mark.parametrize(("grace", "reserve"), [(0.5, 0.25), (1, 0.5), (2, 1), (8, 1), (15, 1.5), (25, 2), (120, 2)])
def test_the_report_has_a_share_of_the_grace_period(grace, reserve):
    assert report_seconds(grace) == pytest.approx(reserve)
