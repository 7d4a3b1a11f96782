"""A resume from a save at the last step of an epoch: the frameworks count epochs, batches and passes on their own."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
import torch

from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.final_states import state_at_end
from tests.support.observers import stop_when_proven

PROGRAMS = Path(__file__).parents[1] / "programs"
STEPS_PER_EPOCH, STEPS = 8, 40
FOLDERS = ("huggingface", "lightning_logs", "segue-lightning")
CASES = {
    "transformers": ("huggingface", ()),
    "transformers that evaluates": ("huggingface", ("--load-best", "epoch")),
    "transformers that accumulates": ("huggingface", ("--accumulate", "2")),
    "lightning": ("lightning_module", ()),
    "lightning that accumulates": ("lightning_module", ("--accumulate", "2")),
    "accelerate": ("accelerated", ()),
}
pytestmark = pytest.mark.matrix


@pytest.mark.parametrize(
    "epoch",
    [pytest.param(1, marks=pytest.mark.soak, id="first"), pytest.param(4, id="fourth"), pytest.param(5, id="last")],
)
@pytest.mark.parametrize(
    "case", [pytest.param(name, marks=pytest.mark.soak if "that" in name else ()) for name in CASES]
)
def test_a_kill_after_the_save_at_the_end_of_an_epoch_changes_nothing(
    case, epoch, fork_server, make_spec, open_log, tmp_path, monkeypatch
):
    program, options = CASES[case]
    pytest.importorskip(case.split()[0], reason="the framework is not installed")
    monkeypatch.chdir(tmp_path)
    saved_at = epoch * STEPS_PER_EPOCH

    def make(*more, **fields):
        command = ["python", str(PROGRAMS / f"{program}.py"), *options, *more]
        spec = make_spec(
            recipe=None,
            program={"command": command},
            steps=1000,
            continuity={"rehearsal": "off", "witness_steps": 2},
            **fields,
        )
        return spec.model_copy(update={"checkpoints": spec.checkpoints.model_copy(update={"every_steps": saved_at})})

    hangs = make("--hang-after") if saved_at == STEPS else make("--hang-at", str(saved_at + 3))
    runlog = open_log(hangs)
    killed = fork_server.run_attempt(runlog, hangs, observer=stop_when_committed(saved_at, rows=int(saved_at < STEPS)))
    assert killed.stop_reason is StopReason.LOST
    report = fork_server.run_attempt(runlog, make())
    assert report.failure is None
    assert (report.stop_reason, report.from_step) == (StopReason.FINISHED, saved_at)
    assert report.to_step == STEPS
    for name in FOLDERS:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    whole = make(run_id="whole")
    log_of_whole = open_log(whole)
    fork_server.run_attempt(log_of_whole, whole)
    found, wanted = (read_history(log.reload()) for log in (runlog, log_of_whole))
    if saved_at < STEPS:  # Afterwards no step is left that could be compared.
        assert found.attempts[1].verdict.kind is VerdictKind.EXACT
    assert state_at_end(found) == state_at_end(wanted)


@pytest.mark.parametrize(
    ("case", "options", "ended_at"),
    [("transformers", (), 16), ("transformers", ("--evaluate-every", "5"), 10), ("lightning", (), 16)],
    ids=["transformers", "transformers in the middle of an epoch", "lightning"],
)
def test_a_trainer_that_had_stopped_early_makes_no_step_more(
    case, options, ended_at, fork_server, make_spec, open_log, tmp_path, monkeypatch
):
    pytest.importorskip(case, reason="the framework is not installed")
    monkeypatch.chdir(tmp_path)

    def make(*more, **fields):
        command = ["python", str(PROGRAMS / f"{CASES[case][0]}.py"), "--stop-early", *options, *more]
        return make_spec(recipe=None, program={"command": command}, steps=1000, **fields)

    hangs = make("--hang-after")
    runlog = open_log(hangs)
    killed = fork_server.run_attempt(runlog, hangs, observer=stop_when_committed(ended_at, rows=0))
    assert killed.stop_reason is StopReason.LOST
    report = fork_server.run_attempt(runlog, make("--save-to", str(tmp_path / "ours.pt")))
    assert report.failure is None
    assert (report.stop_reason, report.from_step, report.to_step) == (StopReason.FINISHED, ended_at, ended_at)
    for name in FOLDERS:
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    whole = make("--save-to", str(tmp_path / "whole.pt"), run_id="whole")
    log_of_whole = open_log(whole)
    assert fork_server.run_attempt(log_of_whole, whole).to_step == ended_at
    found, wanted = (read_history(log.reload()) for log in (runlog, log_of_whole))
    assert state_at_end(found) == state_at_end(wanted)
    ours, undisturbed = (torch.load(tmp_path / name) for name in ("ours.pt", "whole.pt"))
    assert all(torch.equal(value, ours[name]) for name, value in undisturbed.items())


def stop_when_committed(step, rows=1):
    """Kill the trainer once its newest checkpoint is this one, and this many rows can verify it."""
    proven = stop_when_proven(signal.SIGKILL, rows)

    def observer(pid, log, plan):
        return read_history(log.reload()).committed_step == step and proven(pid, log, plan)

    return observer
