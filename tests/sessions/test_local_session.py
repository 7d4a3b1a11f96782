"""A script that is started by hand saves to a folder and goes on from it, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import segue
from segue.errors import SessionError
from segue.local_attempt import RUN_ID
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import open_store

SCRIPT = Path(__file__).parents[1] / "programs/local_loop.py"


@pytest.fixture
def start(tmp_path):
    """Start the script with these options."""
    started = []

    def start(*options):
        command = [sys.executable, str(SCRIPT), *map(str, options)]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def history(tmp_path):
    def history():
        store = open_store(tmp_path / "runs")
        store.create()
        return read_history(RunLog(store, RUN_ID))

    return history


def output_of(process, *, code=0):
    out, err = process.communicate(timeout=240)
    assert process.returncode == code, err
    return out if code == 0 else err


def wait_for(is_so, process):
    while not is_so():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)


@pytest.mark.matrix
def test_a_script_that_is_killed_and_interrupted_ends_like_the_bare_one(start, history, tmp_path):
    bare = output_of(start("--steps", 150))
    assert list(tmp_path.iterdir()) == []
    local = ("--folder", "runs", "--steps", 150)
    first = start(*local, "--save-at", 10, "--pause-after", 20)
    wait_for(lambda: any(checkpoint.rows for checkpoint in history().checkpoints), first)
    first.kill()
    first.wait()
    second = start(*local, "--pause-after", 20)
    wait_for(lambda: len(history().attempts) == 2 and history().attempts[1].verdict is not None, second)
    second.send_signal(signal.SIGINT)
    assert output_of(second, code=128 + signal.SIGINT) == ""
    assert output_of(start(*local)) == bare
    seen = history()
    assert [report.stop_reason for report in seen.last_reports()] == [
        StopReason.LOST,
        StopReason.NOTICE,
        StopReason.FINISHED,
    ]
    assert [attempt.verdict.kind for attempt in seen.attempts[1:]] == [VerdictKind.EXACT, VerdictKind.EXACT]
    assert seen.attempts[1].verdict.not_compared[:3] == ("the code", "settings", "the data set")
    assert seen.last_reports()[1].lost_steps == 0


@pytest.mark.soak
@pytest.mark.parametrize(("option", "first", "then"), [("--steps", 30, 50), ("--epochs", 2, 3)])
def test_a_script_that_has_ended_does_nothing_again_and_trains_on_with_a_later_goal(start, option, first, then):
    ended = output_of(start("--folder", "runs", option, first))
    assert output_of(start("--folder", "runs", option, first)) == ended
    assert output_of(start("--folder", "runs", option, then)) == output_of(start(option, then))


@pytest.mark.matrix
def test_what_the_script_raises_is_shown_once_and_its_saves_stay(start, history):
    said = output_of(start("--folder", "runs", "--steps", 60, "--raise-at", 40), code=1)
    assert said.count("Traceback") == 1
    assert "ArithmeticError: this script raises here" in said
    (report,) = history().last_reports()
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "ArithmeticError")
    said = output_of(start("--folder", "runs", "--steps", 60, "--break-at", 40), code=1)
    assert "let the loop over run.steps() run to its end, or call run.finish(reason)" in said


@pytest.mark.soak
def test_two_processes_do_not_train_in_one_folder(start, history):
    first = start("--folder", "runs", "--save-at", 5, "--pause-after", 10, "--steps", 4000)
    wait_for(lambda: history().checkpoints, first)
    said = output_of(start("--folder", "runs"), code=1)
    assert f"SessionError: process {first.pid} on " in said
    assert first.poll() is None


WITH_CHILDREN = """
import multiprocessing, time
import torch
from torch.utils.data import DataLoader, TensorDataset
import segue

if __name__ == "__main__":
    loader = DataLoader(TensorDataset(torch.arange(64.0)), batch_size=1, num_workers=1)
    with segue.session(local="runs") as run:
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(3600,), daemon=True)
        child.start()
        batches = run.batches(loader)
        for step in run.steps(100_000):
            run.report(loss=next(batches)[0].sum())
            time.sleep(0.02)
            print("step", step, flush=True)
"""


@pytest.mark.matrix
def test_a_script_that_holds_workers_and_children_ends_when_it_is_asked_to(tmp_path):
    (tmp_path / "train.py").write_text(WITH_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert any("step 3" in line for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_local_session_without_its_block_says_so(tmp_path):
    with pytest.raises(SessionError, match=r"session\(local=...\).steps was used outside of its block"):
        segue.session(local=tmp_path / "runs").steps(10)
    assert list(tmp_path.iterdir()) == []


def test_a_tool_that_looks_at_a_local_session_finds_no_error(tmp_path):
    assert not hasattr(segue.session(local=tmp_path / "runs"), "_repr_html_")


def test_a_bare_session_imports_nothing_that_trains():
    code = "import sys, segue; segue.session(); print(sorted({'pydantic', 'torch', 'psutil'} & sys.modules.keys()))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


def test_before_its_first_step_a_local_session_imports_nothing_that_only_saves_and_people_need(tmp_path):
    code = """
import sys, torch, segue
model = torch.nn.Linear(2, 1)
with segue.session(local=sys.argv[1]) as run:
    run.track(model=model)
    for _ in run.steps(2):
        print(sorted({"pyarrow", "pandas", "prefect", "boto3", "rich", "typer", "matplotlib"} & sys.modules.keys()))
        run.report(loss=1.0)
"""
    asked = [sys.executable, "-c", code, str(tmp_path / "runs")]
    found = subprocess.run(asked, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[0] == "[]"


def test_the_report_of_a_program_that_leaves_its_loop_early_counts_all_its_steps(history, tmp_path):
    code = """
import sys, torch, segue
model = torch.nn.Linear(2, 1)
with segue.session(local=sys.argv[1]) as run:
    run.track(model=model)
    for step in run.steps(1000):
        run.report(loss=1.0)
        if step == 30:
            break
"""
    asked = [sys.executable, "-c", code, str(tmp_path / "runs")]
    assert "before run.steps() ended" in subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    (report,) = history().last_reports()
    assert report.stop_reason is StopReason.FAILED
    # The first step does not count, and the step that was left was not made.
    assert report.train_steps == 29
    assert report.train_seconds > 0


def test_one_of_several_ranks_has_no_local_session(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SessionError, match="trains in one process"), segue.session(local=tmp_path / "runs"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_in_a_segment_the_folder_is_ignored(fork_server, make_spec, open_log, tmp_path):
    command = ["python", str(SCRIPT), "--folder", str(tmp_path / "runs"), "--steps", "40"]
    spec = make_spec(recipe=None, program={"command": command})
    assert fork_server.run_attempt(open_log(spec), spec).stop_reason is StopReason.FINISHED
    assert not (tmp_path / "runs").exists()
