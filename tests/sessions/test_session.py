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
from tests.support.command import Desk
from tests.support.final_states import state_at_end

PROGRAM = Path(__file__).parents[1] / "programs/own_loop.py"


@pytest.fixture
def make_program(make_spec):
    """A run of the program with these options."""

    def make(*options, **fields):
        command = ["python", str(PROGRAM), *options]
        return make_spec(**{"recipe": None, "program": {"command": command}} | fields)

    return make


@pytest.fixture
def desk(tmp_path, monkeypatch, capsys):
    return Desk(tmp_path, monkeypatch, capsys)


def stop_with(number):
    """Send a signal to the trainer once a checkpoint can be verified."""

    def observer(pid, log, plan):
        if not any(checkpoint.rows for checkpoint in read_history(log).checkpoints):
            return False
        os.kill(pid, number)
        return True

    return observer


@pytest.mark.matrix
def test_outside_a_segment_the_program_runs_bare(tmp_path):
    ended = subprocess.run(
        [sys.executable, str(PROGRAM)], cwd=tmp_path, capture_output=True, text=True, check=True, env=os.environ
    )
    assert ended.stdout.startswith("done at 40 with ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.matrix
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.matrix)])
def test_a_program_that_is_stopped_goes_on_bit_for_bit(fork_server, make_program, open_log, number):
    undisturbed = make_program("--steps", "400", run_id="whole", steps=400)
    whole = open_log(undisturbed)
    assert fork_server.run_attempt(whole, undisturbed).stop_reason is StopReason.FINISHED
    slow = make_program("--steps", "400", "--pause-seconds", "0.05", run_id="stopped", steps=400)
    spec = make_program("--steps", "400", run_id="stopped", steps=400)
    runlog = open_log(slow)
    first = fork_server.run_attempt(runlog, slow, observer=stop_with(number))
    assert first.stop_reason in (StopReason.LOST, StopReason.NOTICE)
    second = fork_server.run_attempt(runlog, spec)
    assert second.stop_reason is StopReason.FINISHED
    assert 10 <= second.from_step < 400
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())
    assert verdict.rows_compared > 0
    assert verdict.not_compared == ("the data set", "which samples a batch has", "the content of batches")
    assert verdict.sentence.endswith("; not compared: " + ", ".join(verdict.not_compared))
    assert state_at_end(read_history(runlog)) == state_at_end(read_history(whole.reload()))


@pytest.mark.matrix
def test_a_notice_is_told_to_the_function_that_asked_for_it(fork_server, make_program, open_log, tmp_path):
    spec = make_program("--steps", "400", "--pause-seconds", "0.05", "--notes", str(tmp_path / "notes"), steps=400)
    report = fork_server.run_attempt(open_log(spec), spec, observer=stop_with(signal.SIGTERM))
    assert (report.stop_reason, report.lost_steps) == (StopReason.NOTICE, 0)
    assert (tmp_path / "notes").read_text() == "sigterm"


@pytest.mark.matrix
@pytest.mark.parametrize("forgotten", ["generator", "optimizer"])
def test_state_that_is_not_tracked_breaks_the_resume(fork_server, make_program, open_log, forgotten):
    spec = make_program("--steps", "400", "--pause-seconds", "0.05", "--forget", forgotten, steps=400)
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


@pytest.mark.matrix
def test_a_step_with_a_loss_that_is_no_number_is_never_committed(make_program, open_log):
    spec = make_program("--nan-at", "15")
    runlog = open_log(spec)
    decision = run_here(spec, runlog, on_line=lambda _: None)
    assert decision.action == "failed"
    assert decision.reason.startswith("loss was nan at step 16; the same batch had bad numbers again")
    assert decision.reason.endswith("number format at that step; then start the run again.")
    assert max(checkpoint.manifest.step for checkpoint in read_history(runlog).checkpoints) <= 15


@pytest.mark.soak
def test_the_drill_proves_a_program(tmp_path):
    segue = Path(sys.executable).with_name("segue")
    command = [segue, "drill", "--json", "--steps", "40", "--", "python", PROGRAM]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["identical"], report["verdict"], report["kills"]) == (0, True, "exact", 2)


@pytest.mark.parametrize(
    ("words", "source", "sentence"),
    [
        (["nowhere.py"], None, "nowhere.py cannot be read (No such file or directory). Fix: check the path"),
        (["train.py"], "for", "train.py is not Python (invalid syntax"),
        (["-m", "no_such_module"], None, "there is no module 'no_such_module'. Fix: check its name"),
        (["-m", "no_such.module"], None, "there is no module 'no_such.module'"),
    ],
)
def test_a_program_that_is_not_there_is_refused_before_anything_starts(desk, words, source, sentence):
    if source is not None:
        desk.write(words[0], source)
    for command in ("run", "drill"):
        assert sentence in desk.refused(command, "--steps", "40", "--", "python", *words)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("print('nothing')", "the program ended before its first step"),
        ("import nowhere", "No module named 'nowhere'"),
        ("raise SystemExit('bad option')", "bad option"),
        ("import segue\nfor step in segue.session().steps(): pass", "the program reported nothing in step 1"),
        (
            "import segue\nrun = segue.session()\nfor n in run.steps():\n    run.report(loss=1)\n    if n == 5: break",
            "the program ended at step 5 of 40, before run.steps() ended",
        ),
        *(
            pytest.param(*case, marks=pytest.mark.matrix)
            for case in [
                (
                    "import segue\nrun = segue.session()\nfor n in run.steps(1): run.report(loss=1)\nlist(run.steps())",
                    "called after run.steps()",
                ),
                (
                    "import segue\nsegue.session().track(x=object())",
                    "run.track(x=...) got an object, which has no state_dict",
                ),
                (
                    "import segue\nrun = segue.session()\nrun.track(a={})\nrun.track(a={})",
                    "the name 'a' is already used",
                ),
                (
                    "import segue, torch\nsegue.session().track(modes={}, model=torch.nn.Linear(1, 1))",
                    "run.track(model=...): the name 'modes' is already used",
                ),
                ("import segue\nsegue.session().track(loose={})", "the name 'loose' is already used"),
                (
                    "import segue\nrun = segue.session()\nrun.track(a={})\nrun.carry('a', n=0)",
                    "run.carry('a', ...): the name 'a' is",
                ),
                (
                    "import segue\nsegue.session().carry('a', n=object())",
                    "run.carry('a', ...) got a dict with a value that is not data: a.n",
                ),
                (
                    "import segue\nrun = segue.session()\nfor n in run.steps(): run.report(1); run.carry('a', n=0)",
                    "run.carry('a', ...) came after the first step",
                ),
            ]
        ),
    ],
)
def test_a_program_that_cannot_be_trained_is_told_why(fork_server, make_spec, open_log, tmp_path, source, sentence):
    script = tmp_path / "train.py"
    script.write_text(source)
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in report.failure.message


def test_segments_cannot_end_after_epochs_where_a_program_counts_none(fork_server, make_spec, open_log, tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import segue\nrun = segue.session()\nfor n in run.steps(): run.report(loss=1)")
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]}, segment={"epochs": 1})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (
        "a program with run.steps() does not count epochs. Fix: let it loop over run.epochs(n)"
        in report.failure.message
    )


@pytest.mark.parametrize(
    ("loop", "to_step"),
    [
        ("for n in run.steps(7): run.report(loss=1)", 7),
        ("for n in run.steps(50): run.report(loss=1)", 40),
        pytest.param("for n in run.steps(1, 8): run.report(loss=n)", 7, marks=pytest.mark.matrix),
        pytest.param(
            "for n in run.steps(7):\n    run.report(loss=1)\n    if n == 6: break", 7, marks=pytest.mark.matrix
        ),
        ("for n in run.steps():\n    run.report(loss=1)\n    if n == 6: run.finish('enough')", 7),
    ],
)
def test_the_earlier_goal_ends_the_run(fork_server, make_spec, open_log, tmp_path, loop, to_step):
    script = tmp_path / "train.py"
    script.write_text(f"import segue\nrun = segue.session()\n{loop}\n")
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step, report.lost_steps) == (StopReason.FINISHED, to_step, 0)
    assert read_history(runlog.reload()).is_finished(spec)
