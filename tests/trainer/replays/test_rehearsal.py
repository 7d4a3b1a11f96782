"""At the run's first commit a fresh process rehearses the resume, and finds state that was not registered."""

from __future__ import annotations

import time
from contextlib import suppress

import psutil
import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.rehearsal import ResumeRehearsal, is_due
from tests.support.histories import Logbook
from tests.support.histories import make_spec as spec_of


def drilled(make_spec, tmp_path, fault, *, rehearsal, steps=100_000):
    """A run whose steps take long enough for another process to start."""
    config = {"fault": fault, "marker": str(tmp_path / "built"), "pause_seconds": 0.02}
    return make_spec(
        recipe="tests.recipes.faulty:build",
        config=config,
        steps=steps,
        checkpoints={"every_seconds": 1},
        continuity={"rehearsal": rehearsal},
    )


def until(asked, *, then):
    """An observer that acts on the trainer once a condition on the log holds."""

    def observer(pid, runlog, plan):
        if not asked(read_history(runlog)):
            return False
        then(pid)
        return True

    return observer


@pytest.mark.matrix
def test_state_that_was_not_registered_stops_the_run_at_its_first_commit(fork_server, make_spec, open_log, tmp_path):
    spec = drilled(make_spec, tmp_path, "unregistered_counter", rehearsal="stop")
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec, limit_seconds=150)
    history = read_history(runlog)
    (drill,) = history.drills
    assert drill.verdict.kind is VerdictKind.BROKEN
    assert drill.verdict.findings[0].component == "unregistered state"
    assert "loss.calls (closure variable): changed" in drill.verdict.findings[0].sentence
    assert "extra" in drill.verdict.findings[0].fix
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "RehearsalError")
    assert history.checkpoints
    assert not any(checkpoint.quarantined for checkpoint in history.checkpoints)
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert (decision.action, decision.reason) == (
        "broken",
        f"resume rehearsal failed: {drill.verdict.findings[0].sentence}",
    )


@pytest.mark.soak
def test_with_warn_a_broken_rehearsal_does_not_stop_the_run_and_a_passed_one_is_not_repeated(
    fork_server, make_spec, open_log, tmp_path
):
    for run_id, fault, kind in [("faulty", "unregistered_counter", "broken"), ("sound", "none", "exact")]:
        spec = drilled(make_spec, tmp_path, fault, rehearsal="warn").model_copy(update={"run_id": run_id})
        runlog = open_log(spec)
        seen = until(lambda history: history.drills, then=lambda pid: psutil.Process(pid).terminate())
        report = fork_server.run_attempt(runlog, spec, observer=seen, limit_seconds=150)
        assert report.stop_reason is StopReason.NOTICE
        (drill,) = read_history(runlog).drills
        assert (drill.verdict.kind, drill.verdict.rows_compared) == (VerdictKind(kind), 8)
        assert decide_next(runlog, spec, clock=SystemClock()).action == "run"


@pytest.mark.matrix
def test_a_rehearsal_ends_with_its_trainer_when_that_is_killed(fork_server, make_spec, open_log, tmp_path):
    spec = drilled(make_spec, tmp_path, "none", rehearsal="stop")
    runlog = open_log(spec)
    children = []

    def is_rehearsal(process):
        with suppress(psutil.Error):
            return "segue.trainer.rehearsal_main" in process.cmdline()
        return False

    def is_drilling(pid, runlog, plan):
        children.extend(child for child in psutil.Process(pid).children() if is_rehearsal(child))
        if children:
            psutil.Process(pid).kill()
        return bool(children)

    assert fork_server.run_attempt(runlog, spec, observer=is_drilling).stop_reason is StopReason.LOST
    (child,) = children
    give_up_at = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < give_up_at
        time.sleep(0.05)
    assert not read_history(runlog).drills


def test_a_rehearsal_is_due_until_a_resume_was_replayed():
    book = Logbook(spec_of())
    due = lambda **fields: is_due(  # noqa: E731
        Assignment(spec=spec_of(continuity=fields), plan=book.plan()), book.history, ranks=1
    )
    assert due()
    assert not due(rehearsal="off")
    assert not due(witness_steps=0)
    assert not is_due(Assignment(spec=spec_of(), plan=book.plan()), book.history, ranks=2)
    book.attempt(StopReason.NOTICE, commit=10)
    book.resume(VerdictKind.UNVERIFIED, rows=0)
    assert due()
    book.resume(VerdictKind.EXACT)
    assert not due()


def test_a_rehearsal_that_cannot_be_started_does_not_disturb_training(monkeypatch, caplog):
    book = Logbook(spec_of())
    drill = ResumeRehearsal(Assignment(spec=spec_of(), plan=book.plan()), None, is_due=True, clock=SystemClock())
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    before = psutil.Process().num_fds()
    drill.begin(state_bytes=0)
    drill.check()
    drill.close()
    assert psutil.Process().num_fds() <= before  # What other tests have left may be closed meanwhile.
    assert "its process could not be started" in caplog.text
