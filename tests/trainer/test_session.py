"""Programs with a loop of their own: what they track comes back, and a resume is proven from what they report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from segue.controller.local_run import run_here
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.final_states import state_at_end

PROGRAM = Path(__file__).parents[1] / "programs/own_loop.py"


@pytest.fixture
def make_program(make_spec):
    """A run of the program with these options."""

    def make(*options, **fields):
        command = ["python", str(PROGRAM), *options]
        return make_spec(**{"recipe": None, "program": {"command": command}} | fields)

    return make


def stop_with(number):
    """Send a signal to the trainer once a checkpoint can be verified."""

    def observer(pid, log, plan):
        if not any(checkpoint.rows for checkpoint in read_history(log).checkpoints):
            return False
        os.kill(pid, number)
        return True

    return observer


def test_outside_a_segment_the_program_runs_bare(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
    )
    assert ended.stdout.startswith("done at 40 with ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_that_is_stopped_goes_on_bit_for_bit(fork_server, make_program, open_log, number):
    whole = open_log(make_program(run_id="whole"))
    assert fork_server.run_attempt(whole, make_program(run_id="whole")).stop_reason is StopReason.FINISHED
    spec = make_program("--pause-seconds", "0.05", run_id="stopped")
    runlog = open_log(spec)
    first = fork_server.run_attempt(runlog, spec, observer=stop_with(number))
    assert first.stop_reason in (StopReason.LOST, StopReason.NOTICE)
    second = fork_server.run_attempt(runlog, spec)
    assert second.stop_reason is StopReason.FINISHED
    assert 10 <= second.from_step < 40
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())
    assert verdict.rows_compared > 0
    assert state_at_end(read_history(runlog)) == state_at_end(read_history(whole.reload()))


@pytest.mark.parametrize("forgotten", ["generator", "optimizer"])
def test_state_that_is_not_tracked_breaks_the_resume(fork_server, make_program, open_log, forgotten):
    spec = make_program("--pause-seconds", "0.05", "--forget", forgotten)
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=stop_with(signal.SIGTERM))
    fork_server.run_attempt(runlog, spec)
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert verdict.kind is VerdictKind.BROKEN


def test_a_program_that_raises_has_its_traceback_in_the_report(fork_server, make_program, open_log):
    spec = make_program("--raise-at", "15")
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "ArithmeticError")
    assert "own_loop.py" in report.failure.traceback


def test_a_step_with_a_loss_that_is_no_number_is_never_committed(make_program, open_log):
    spec = make_program("--nan-at", "15")
    runlog = open_log(spec)
    decision = run_here(spec, runlog, on_line=lambda _: None)
    assert decision.action == "failed"
    assert decision.reason.startswith("loss was nan at step 16; the same batch had bad numbers again")
    assert decision.reason.endswith("number format at that step; then start the run again.")
    assert max(checkpoint.manifest.step for checkpoint in read_history(runlog).checkpoints) <= 15


@pytest.mark.matrix
def test_the_drill_proves_a_program(tmp_path):
    segue = Path(sys.executable).with_name("segue")
    command = [segue, "drill", "--json", "--steps", "40", "--", "python", PROGRAM]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["identical"], report["verdict"], report["kills"]) == (0, True, "exact", 2)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("print('nothing')", "the program ended before its first step"),
        ("import nowhere", "No module named 'nowhere'"),
        ("raise SystemExit('bad option')", "bad option"),
        ("import segue\nfor step in segue.session().steps(7): pass", "asks for 7 steps, and the goal of the run is 40"),
        ("import segue\nfor step in segue.session().steps(): pass", "step 1 reported nothing"),
        (
            "import segue\nrun = segue.session()\nfor n in run.steps():\n    run.report(loss=1)\n    if n == 5: break",
            "the program ended at step 5 of 40",
        ),
        ("import segue\nsegue.session().track(x=object())", "run.track(x=...) got an object, which has no state_dict"),
        ("import segue\nrun = segue.session()\nrun.track(a={})\nrun.track(a={})", "the name 'a' is taken"),
    ],
)
def test_a_program_that_cannot_be_trained_is_told_why(fork_server, make_spec, open_log, tmp_path, source, sentence):
    script = tmp_path / "train.py"
    script.write_text(source)
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in report.failure.message
