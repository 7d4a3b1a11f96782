"""Programs in epochs: their batches go on where they were, in the order in which the loader itself draws them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import segue
from segue.records import StopReason, VerdictKind
from segue.resume_drill import drill_spec
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/epoch_loop.py"


@pytest.fixture
def make_program(make_spec, tmp_path):
    """A run of the program with these options, whose weights are saved under the run's name."""

    def make(*options, run_id="epochs", **fields):
        command = ["python", str(PROGRAM), *options, "--save-to", str(tmp_path / f"{run_id}.pt")]
        return make_spec(
            recipe=None,
            run_id=run_id,
            program={"command": command},
            **({"steps": 1000, "continuity": {"rehearsal": "off", "witness_steps": 2}} | fields),
        )

    return make


def run_bare(tmp_path, *options):
    """Run the script as it is; return the weights it saved."""
    command = [sys.executable, str(PROGRAM), *options, "--save-to", str(tmp_path / "bare.pt")]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    return torch.load(tmp_path / "bare.pt")


def are_equal(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def killed_in_step_13(fork_server, make_program, open_log, *options):
    """The log of a run that was killed when it had committed step 10, in the middle of its second epoch."""
    hangs = make_program(*options, "--hang-at", "13")
    runlog = open_log(hangs)
    assert (
        fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL)).stop_reason is StopReason.LOST
    )
    assert read_history(runlog.reload()).committed_step == 10
    return runlog


def killed_and_resumed(fork_server, make_program, open_log, *options):
    """The log of a run that was killed and then ran to its end."""
    runlog = killed_in_step_13(fork_server, make_program, open_log, *options)
    report = fork_server.run_attempt(runlog, make_program(*options))
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    return runlog.reload()


LOADERS = [
    ("--loader", "shuffled"),
    ("--accumulate", "3"),
    ("--loader", "sampler_that_counts"),
    ("--batches", "5"),  # The checkpoint at step 10 lies between two epochs that are left early.
    *(
        pytest.param(options, marks=pytest.mark.soak)
        for options in (
            ("--loader", "weighted"),
            ("--loader", "batch_sampler"),
            ("--loader", "generator"),
            ("--loader", "sampler_with_generator"),
            ("--loader", "unbatched", "--epochs", "1"),
            ("--loader", "stateful_stream"),
            ("--batches", "6"),
        )
    ),
]


@pytest.mark.matrix
@pytest.mark.parametrize("options", LOADERS, ids=" ".join)
def test_a_killed_program_ends_with_the_weights_of_the_bare_script(
    fork_server, make_program, open_log, tmp_path, options
):
    runlog = killed_and_resumed(fork_server, make_program, open_log, *options)
    verdict = read_history(runlog).attempts[1].verdict
    assert (verdict.kind, verdict.findings) == (VerdictKind.EXACT, ())
    assert verdict.rows_compared > 0
    assert are_equal(torch.load(tmp_path / "epochs.pt"), run_bare(tmp_path, *options))


@pytest.mark.soak
@pytest.mark.matrix
@pytest.mark.parametrize("options", [("--loader", "persistent")], ids=" ".join)
def test_random_transforms_in_worker_processes_are_the_same_after_a_kill(make_program, options):
    report = drill_spec(make_program(*options, steps=40), kills=2)
    assert (report.kills, report.identical, report.verdict, report.differing) == (2, True, VerdictKind.EXACT, ())


@pytest.mark.matrix
def test_a_loader_with_its_own_state_goes_on_by_itself(fork_server, make_program, open_log, tmp_path):
    pytest.importorskip("torchdata.stateful_dataloader")
    options = ("--loader", "torchdata")
    runlog = killed_and_resumed(fork_server, make_program, open_log, *options)
    assert read_history(runlog).attempts[1].verdict.kind is VerdictKind.EXACT
    assert are_equal(torch.load(tmp_path / "epochs.pt"), run_bare(tmp_path, *options))


@pytest.mark.matrix
def test_a_run_whose_epochs_are_done_is_finished_before_its_goal(fork_server, make_program, open_log):
    spec = make_program("--epochs", "3")
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 24)
    history = read_history(runlog.reload())
    assert history.is_finished(spec)
    assert history.finish_reason == "all 3 epochs are done"


def test_a_program_that_finishes_by_itself_is_not_started_again(fork_server, make_program, open_log):
    spec = make_program("--finish-below", "100")
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 8)
    history = read_history(runlog.reload())
    assert history.finish_reason == "the error is below 100.0"


@pytest.mark.matrix
def test_a_run_whose_epochs_were_done_before_it_was_killed_trains_no_further(fork_server, make_program, open_log):
    runlog = killed_in_step_13(fork_server, make_program, open_log)
    report = fork_server.run_attempt(runlog, make_program("--epochs", "1"))  # As if all had been done.
    assert (report.stop_reason, report.failure) == (StopReason.FINISHED, None)
    assert (report.from_step, report.to_step, report.finish_reason) == (10, 10, "all 1 epochs are done")


def test_the_goal_of_the_run_ends_it_in_the_middle_of_an_epoch(fork_server, make_program, open_log, tmp_path):
    spec = make_program(steps=12)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert (report.stop_reason, report.to_step) == (StopReason.FINISHED, 12)
    assert (tmp_path / "epochs.pt").exists()


@pytest.mark.matrix
def test_further_numbers_and_the_metric_are_kept(fork_server, make_program, open_log):
    spec = make_program("--epochs", "3", "--best", checkpoints={"every_steps": 500, "keep": 20})
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    frame = segue.curve(runlog.reload())
    assert frame["metric.epoch"].tolist() == [step // 8 for step in range(24)]
    first = read_history(runlog).checkpoints[0].manifest
    assert first.step == 8
    assert first.metric is not None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--loader", "stream"),
            "the iterable Stream, has no state: it has no position to resume. Fix: set num_workers=0",
        ),
        (("--loader", "stateful_stream", "--workers", "2"), "has its state in worker processes"),
    ],
    ids=["no state", "state in workers"],
)
def test_a_loader_without_a_position_is_refused_before_the_first_step(
    fork_server, make_program, open_log, options, sentence
):
    spec = make_program(*options)
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in report.failure.message
    assert "StatefulDataLoader" in report.failure.message


@pytest.mark.matrix
def test_a_sampler_that_cannot_draw_again_is_named(fork_server, make_program, open_log):
    options = ("--loader", "sampler_of_unknown_state")
    runlog = killed_in_step_13(fork_server, make_program, open_log, *options)
    report = fork_server.run_attempt(runlog, make_program(*options))
    assert report.stop_reason is StopReason.FAILED
    assert "the sampler of the loader drew other samples" in report.failure.message


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("for batch in run.batches(loader): pass", "there is no run.epochs() around them"),
        ("for epoch in run.epochs(3): pass", "epoch 0 had no batch from run.batches()"),
        (
            "for epoch in run.epochs(3):\n    for batch in run.batches(loader):\n        run.report(loss=1)\n"
            "    for batch in run.batches(torch.utils.data.DataLoader(range(4))): pass",
            "run.batches(loader) got more loaders than in the epoch in which training began",
        ),
        ("run.batches([1, 2])", "got a list, which is not a DataLoader and has no state"),
    ],
)
def test_a_wrong_loop_is_told_why(fork_server, make_spec, open_log, tmp_path, source, sentence):
    script = tmp_path / "train.py"
    begin = "import segue, torch\nrun = segue.session()\nloader = torch.utils.data.DataLoader(range(8))\n"
    script.write_text(begin + source)
    spec = make_spec(recipe=None, program={"command": ["python", str(script)]})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert sentence in report.failure.message


@pytest.mark.matrix
def test_segments_end_after_epochs_where_a_program_counts_them(fork_server, make_program, open_log):
    spec = make_program("--epochs", "4", segment={"epochs": 2}, steps=100)
    runlog = open_log(spec)
    first, second = (fork_server.run_attempt(runlog, spec) for _ in range(2))
    assert (first.stop_reason, first.to_step, first.lost_steps) == (StopReason.BOUND, 16, 0)
    assert (second.stop_reason, second.from_step, second.to_step) == (StopReason.FINISHED, 16, 32)
    assert read_history(runlog.reload()).attempts[1].verdict.kind is VerdictKind.EXACT
