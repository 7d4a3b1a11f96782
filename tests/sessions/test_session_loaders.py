"""Inner loops without a loader that lasts: one that is made in each epoch, and numbers."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice

import pytest
import torch

from segue.errors import SessionError
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.trainer.programs.batches import BatchesComponent
from segue.trainer.programs.loaders import Loaders

SCRIPT = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import segue

run, to = segue.session(), sys.argv[1]
torch.manual_seed(0)
x = torch.randn(40, 4)
model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
run.track(model=model, optimizer=optimizer)


def made(shuffle=True):
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8, shuffle=shuffle)


def train(a, b):
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(a), b)
    loss.backward()
    optimizer.step()
    run.report(loss=loss)


for epoch in run.epochs(4):
LOOP
torch.save(model.state_dict(), to)
"""
EACH_EPOCH = """
    loader = made()
    for a, b in run.batches(loader):
        train(a, b)
"""
UNNAMED = """
    for number, (a, b) in run.enumerate(made(shuffle=epoch % 2 == 0)):
        train(a, b)
"""
NUMBERS = """
    for number in run.batches(range(5)):
        rows = torch.randperm(40)[: 8 + number]
        train(x[rows], x[rows].sum(1, keepdim=True))
"""
GROWING = """
    for number in run.batches(range(3 + epoch)):
        train(x[number::4], x[number::4].sum(1, keepdim=True))
"""
IN_TURNS = """
    kept = globals().setdefault("both", [made(), made()])
    for a, b in run.batches(kept[epoch % 2]):
        train(a, b)
"""
HANDED_OVER = """
    for a, b in both[epoch % 2]:
        train(a, b)
"""
ONE_MORE = """
    for a, b in run.batches(made()):
        train(a, b)
    for a, b in run.batches(made()) if epoch else ():
        train(a, b)
"""


@pytest.fixture
def start(fork_server, make_spec, open_log, tmp_path):
    """A function: one attempt at a script, up to this step; its report and the history."""

    def start(loop, **fields):
        script = tmp_path / "train.py"
        before = "both = [run.batches(made()), run.batches(made())]\n" if loop is HANDED_OVER else ""
        script.write_text(SCRIPT.replace("for epoch", f"{before}for epoch").replace("LOOP", loop))
        spec = make_spec(
            recipe=None,
            program={"command": ["python", str(script), str(tmp_path / "ours.pt")]},
            steps=1000,
            **({"continuity": {"rehearsal": "off", "witness_steps": 2}} | fields),
        )
        runlog = open_log(spec)
        report = fork_server.run_attempt(runlog, spec)
        return report, read_history(runlog.reload())

    return start


@pytest.mark.parametrize(
    "loop",
    [
        EACH_EPOCH,
        *(pytest.param(loop, marks=pytest.mark.matrix) for loop in (NUMBERS, UNNAMED, GROWING, HANDED_OVER)),
    ],
)
def test_it_goes_on_in_the_middle_of_an_epoch_as_the_bare_script_does(start, tmp_path, loop):
    first, _ = start(loop, segment={"steps": 12})
    assert (first.stop_reason, first.failure, first.to_step) == (StopReason.BOUND, None, 12)
    second, history = start(loop)
    assert (second.stop_reason, second.failure) == (StopReason.FINISHED, None)
    verdict = history.attempts[1].verdict
    assert (verdict.kind, verdict.rows_compared, verdict.findings) == (VerdictKind.EXACT, 2, ())
    command = [sys.executable, str(tmp_path / "train.py"), str(tmp_path / "bare.pt")]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    bare, ours = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, ours[name]) for name, value in bare.items())


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        (IN_TURNS, "got a loader that another loader had replaced"),
        (ONE_MORE, "got more loaders than in the epoch"),
    ],
)
def test_a_loader_whose_position_would_be_lost_is_refused(start, loop, said):
    report, _ = start(loop)
    assert report.stop_reason is StopReason.FAILED
    assert said in report.failure.message
    assert "Fix: make all loaders before the loop, and call run.batches(loader) for each of them there" in (
        report.failure.message
    )


def test_a_pass_over_numbers_goes_on_in_the_same_range_only():
    before = BatchesComponent(range(5), seed=0)
    assert [batch.content for batch in islice(before.one_pass(), 3)] == [0, 1, 2]
    same, other = BatchesComponent(range(5), seed=0), BatchesComponent(range(6), seed=0)
    same.restore(before.capture())
    assert [batch.content for batch in same.one_pass()] == [3, 4]
    assert [batch.content for batch in same.one_pass()] == [0, 1, 2, 3, 4]
    other.restore(before.capture())
    with pytest.raises(SessionError, match=r"run.batches\(range\(0, 6\)\) was run.batches\(range\(0, 5\)\)"):
        list(other.one_pass())


def test_equal_ranges_are_one_loader_and_another_takes_its_place_in_the_next_epoch():
    loaders = Loaders(seed=0)
    name, batches = loaders.new(range(5))
    loaders.put(name, range(5), batches)
    assert loaders.known(range(5)) is batches
    assert loaders.known(range(6)) is None
    with pytest.raises(SessionError, match="more loaders"):
        loaders.take_over(range(6))
    loaders.begin_epoch()
    assert loaders.take_over(range(6)) is batches
    assert loaders.by_name == {"batches": range(6)}
