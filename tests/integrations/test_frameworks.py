"""Hugging Face's Trainer and Lightning's in segments: their own loops and their own checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

import segue
from segue.records import StopReason, VerdictKind
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from tests.support.final_states import state_at_end
from tests.support.observers import stop_when_proven

PROGRAMS = Path(__file__).parents[1] / "programs"
FRAMEWORKS = {"huggingface": "transformers", "lightning_module": "lightning"}
"""The programs, and the package that each of them needs."""
FRAMEWORKS_FOLDERS = ("huggingface", "lightning_logs", "segue-lightning")
OF_TRAINING = ("optimizer", "scheduler", "rng_state", "training_args", "trainer_state", ".")
pytestmark = pytest.mark.matrix


@pytest.fixture(params=FRAMEWORKS)
def program(request) -> Path:
    pytest.importorskip(FRAMEWORKS[request.param], reason="the framework is not installed")
    return PROGRAMS / f"{request.param}.py"


@pytest.fixture
def make_program(program, make_spec, tmp_path, monkeypatch):
    """A run of the Trainer with these options; it saves its weights at its end."""
    monkeypatch.chdir(tmp_path)

    def make(*options, steps=1000):
        command = ["python", str(program), *options, "--save-to", str(tmp_path / "ours.pt")]
        return make_spec(
            recipe=None,
            program={"command": command},
            steps=steps,
            continuity={"rehearsal": "off", "witness_steps": 2},
        )

    return make


@pytest.mark.soak
def test_a_killed_trainer_that_accumulates_ends_with_the_weights_of_one_without_segue(
    fork_server, program, make_program, open_log, tmp_path
):
    options = ("--accumulate", "2")
    hangs = make_program(*options, "--hang-at", "13")
    runlog = open_log(hangs)
    first = fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    assert first.stop_reason is StopReason.LOST
    report = fork_server.run_attempt(runlog, make_program(*options))
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    history = read_history(runlog.reload())
    verdict = history.attempts[1].verdict
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), 2)
    assert report.to_step == history.committed_step == 40
    frame = segue.curve(runlog)
    assert frame["step"].tolist() == list(range(1, 41))
    assert (frame["loss"] > 0).all()
    norms = frame["grad_norm"].dropna()
    assert len(norms)
    assert (norms > 0).all()
    # What only the run asked for does not fill the disk.
    assert len(list(tmp_path.glob("*/checkpoint-*"))) <= 2

    command = [sys.executable, str(program), *options, "--save-to", "bare.pt"]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    bare, ours = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, ours[name]) for name, value in bare.items())


@pytest.mark.parametrize(
    ("program", "options", "hang_at"),
    [("huggingface", ("--load-best", "epoch"), "13"), ("lightning_module", ("--plateau",), "13")],
    indirect=["program"],
    ids=["logs after an evaluation", "a scheduler that follows a metric"],
)
def test_the_checkpoint_at_the_end_is_that_of_an_undisturbed_run(
    fork_server, make_program, open_log, tmp_path, options, hang_at
):
    hangs = make_program(*options, "--hang-at", hang_at)
    runlog = open_log(hangs)
    fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    spec = make_program(*options)
    assert fork_server.run_attempt(runlog, spec).from_step > 0
    for name in FRAMEWORKS_FOLDERS:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    whole = spec.model_copy(update={"run_id": "whole"})
    log_of_whole = open_log(whole)
    fork_server.run_attempt(log_of_whole, whole)
    found, wanted = (read_history(log.reload()) for log in (runlog, log_of_whole))
    assert found.attempts[1].verdict.kind is VerdictKind.EXACT
    assert state_at_end(found) == state_at_end(wanted)


@pytest.mark.parametrize("program", ["huggingface"], indirect=True)
def test_a_trainer_that_a_notice_stopped_has_the_same_log_at_its_end(make_program):
    spec = make_program("--load-best", "epoch", steps=40)
    report = drill_spec(spec, kills=0, notices=1)
    assert report.passed, report.problems
    assert report.notices == 1
    assert report.identical


def test_a_trainer_that_is_not_given_its_checkpoint_is_told_how(fork_server, make_program, open_log, program):
    slow = make_program("--epochs", "400", steps=3200)
    runlog = open_log(slow)
    fork_server.run_attempt(runlog, slow, observer=stop_when_proven(signal.SIGTERM))
    report = fork_server.run_attempt(runlog, make_program("--epochs", "400", "--forget-checkpoint", steps=3200))
    assert report.stop_reason is StopReason.FAILED
    assert report.to_step == report.from_step > 0
    argument = {"huggingface": "train(resume_from_checkpoint", "lightning_module": "fit(..., ckpt_path"}[program.stem]
    assert "steps, and the Trainer begins at step 0. Fix: load its checkpoint: " in report.failure.message
    assert f"`trainer.{argument}=callback.checkpoint)`" in report.failure.message


def test_a_trainer_that_stops_early_has_finished_its_run(fork_server, make_program, open_log):
    spec = make_program("--stop-early")
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, 16)
    history = read_history(runlog.reload())
    assert history.is_finished(spec)
    assert history.finish_reason == "the Trainer ended at step 16"


def test_the_goal_of_the_run_ends_the_trainer(fork_server, make_program, open_log, tmp_path):
    spec = make_program(steps=15)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure, report.to_step, report.lost_steps) == (StopReason.FINISHED, None, 15, 0)
    assert (tmp_path / "ours.pt").exists()


def test_a_notice_ends_the_trainer_with_nothing_lost(fork_server, make_program, open_log, tmp_path):
    slow = make_program("--epochs", "400", steps=3200)
    runlog = open_log(slow)
    report = fork_server.run_attempt(runlog, slow, observer=stop_when_proven(signal.SIGTERM))
    assert (report.stop_reason, report.failure, report.lost_steps) == (StopReason.NOTICE, None, 0)
    assert report.to_step > 0
    assert not (tmp_path / "ours.pt").exists()


@pytest.mark.parametrize("program", ["huggingface"], indirect=True)
@pytest.mark.parametrize(
    ("saves", "every_steps"),
    [pytest.param("epoch", 5, marks=pytest.mark.soak), ("best", 5)],
)
def test_the_trainers_own_folders_stay_as_they_are_without_segue_and_the_best_one_is_loaded(
    fork_server, program, make_program, open_log, tmp_path, saves, every_steps
):
    spec = make_program("--load-best", saves)
    spec = spec.model_copy(update={"checkpoints": spec.checkpoints.model_copy(update={"every_steps": every_steps})})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, 40)
    ours = {path.name for path in tmp_path.glob("huggingface/checkpoint-*")}
    folder = tmp_path / "bare"
    folder.mkdir()
    command = [sys.executable, str(program), "--load-best", saves, "--save-to", "bare.pt"]
    subprocess.run(command, cwd=folder, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert ours == {path.name for path in folder.glob("huggingface/checkpoint-*")}
    bare, loaded = torch.load(folder / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, loaded[name]) for name, value in bare.items())


@pytest.mark.parametrize("program", ["huggingface"], indirect=True)
@pytest.mark.parametrize("is_cut_off", [False, True], ids=["nothing is there", "a file was cut off"])
def test_the_best_checkpoint_is_put_where_the_trainer_loads_it_on_another_machine(
    fork_server, program, make_program, open_log, tmp_path, is_cut_off
):
    hangs = make_program("--load-best", "epoch", "--hang-at", "21")
    runlog = open_log(hangs)
    first = fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    assert first.stop_reason is StopReason.LOST
    best = tmp_path / "huggingface" / "checkpoint-8"
    content = (best / "model.safetensors").read_bytes()
    shutil.rmtree(tmp_path / "huggingface")
    if is_cut_off:
        best.mkdir(parents=True)
        (best / "model.safetensors").write_bytes(content[:100])
    spec = make_program("--load-best", "epoch")
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.failure, report.to_step) == (StopReason.FINISHED, None, 40)
    assert (best / "model.safetensors").read_bytes() == content
    assert read_history(runlog.reload()).attempts[1].verdict.kind is VerdictKind.EXACT
    loaded = torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, loaded[name]) for name, value in safetensors.torch.load(content).items())
    segue.export_checkpoint(spec.run_id, tmp_path / "export", store=spec.store, step="best")
    assert (tmp_path / "export/best/model.safetensors").read_bytes() == content
    assert sorted(path.name for path in (tmp_path / "export/best").iterdir()) == sorted(
        path.name for path in best.iterdir() if not path.name.startswith(OF_TRAINING)
    )


@pytest.mark.parametrize("program", ["lightning_module"], indirect=True)
def test_the_file_of_model_checkpoint_is_exported(fork_server, make_program, open_log, tmp_path):
    spec = make_program()
    fork_server.run_attempt(open_log(spec), spec)
    segue.export_checkpoint(spec.run_id, tmp_path / "export", store=spec.store, step="best")
    (file,) = (tmp_path / "export/best").iterdir()
    (there,) = tmp_path.glob("lightning_logs/version_0/checkpoints/*.ckpt")
    assert file.name == there.name
    one, other = (torch.load(path, weights_only=False)["state_dict"] for path in (file, there))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("program", ["huggingface"], indirect=True)
def test_what_the_clock_measured_is_not_committed_because_no_two_runs_would_be_identical(
    fork_server, make_program, open_log, tmp_path
):
    spec = make_program("--load-best", "epoch")
    fork_server.run_attempt(open_log(spec), spec)
    folder = segue.load_checkpoint(spec.run_id, store=spec.store)["folder"]
    state = json.loads(folder["files"]["trainer_state.json"].numpy().tobytes())
    names = {name for entry in state["log_history"] for name in entry}
    assert {"loss", "eval_loss"} <= names
    assert [name for name in names if name.endswith(("_runtime", "_per_second"))] == []
    kept = json.loads((tmp_path / "huggingface" / "checkpoint-40" / "trainer_state.json").read_text())
    assert "eval_runtime" in {name for entry in kept["log_history"] for name in entry}  # The user's file has them.
