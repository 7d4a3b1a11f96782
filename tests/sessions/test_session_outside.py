"""What a program's loop holds and does not track: named at the first commit, and where a resume differs."""

from __future__ import annotations

import signal

import pytest

from segue.continuity.naming import UNREGISTERED
from segue.records import VerdictKind
from segue.runlog.entries import CommitEntry
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

SCRIPT = """
import collections, sys, time
from pathlib import Path
import torch
from torch import nn
import segue

def main():
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    teacher = nn.Linear(4, 1)
    state = {{"weight": 1.0}}
    losses = []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    is_second = Path("marker").exists()
    Path("marker").touch()
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer{tracked})
        for step in run.steps(60):
            batch = torch.randn(8, 4)
            loss = (state["weight"] * model(batch) - teacher(batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                teacher.weight.lerp_(model.weight, 0.1)
            state["weight"] *= 0.99
            losses.append(loss.item())
            run.report(loss=loss)
            if step == 19 and not is_second:
                time.sleep(600)

main()
"""


OF_LOADER = """
import time
from pathlib import Path
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, default_collate
import segue

class Rows(Dataset):
    def __init__(self):
        self.x = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))
        self.fetched = 0

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        self.fetched += 1
        return self.x[index] * (1 + self.fetched / 1000)

def main():
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    is_second = Path("marker").exists()
    Path("marker").touch()
    loader = DataLoader(Rows(), batch_size=8, shuffle=True)
    loader.difficulty = 1.0
    {changed}
    with segue.session() as run:
        run.track(model=model, optimizer=optimizer)
        batches = run.batches(loader)
        for step in run.steps(60):
            loader.difficulty += 0.01
            loss = (model(next(batches)) * loader.difficulty).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.report(loss=loss)
            if step == 19 and not is_second:
                time.sleep(600)

main()
"""


@pytest.fixture
def resumed(fork_server, make_spec, open_log, tmp_path, monkeypatch):
    """Kill the program after a commit and resume it: what the first commit named, and the verdict."""
    monkeypatch.chdir(tmp_path)

    def run(tracked="", *, script=SCRIPT, run_id="run", **parts):
        (tmp_path / "train.py").write_text(script.format(tracked=tracked, **parts))
        program = {"command": ["python", str(tmp_path / "train.py")]}
        spec = make_spec(program=program, recipe=None, run_id=run_id, steps=60, checkpoints={"every_steps": 10})
        runlog = open_log(spec)
        fork_server.run_attempt(runlog, spec, observer=stop_when_proven(signal.SIGKILL))
        commits = [slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, CommitEntry)]
        fork_server.run_attempt(runlog, spec)
        return commits[0].untracked, read_history(runlog.reload()).attempts[1].verdict

    return run


def test_objects_that_the_loop_holds_and_does_not_track_are_named(resumed):
    untracked, verdict = resumed("")
    fixes = {finding.fix for finding in untracked}
    assert {"register it: run.track(teacher=teacher)", "register it: run.track(state=state)"} <= fixes
    finding = verdict.findings[0]
    assert (verdict.kind, finding.component, finding.channel) == (VerdictKind.BROKEN, UNREGISTERED, "loss")
    assert "teacher (Linear)" in finding.sentence
    assert "run.track(teacher=teacher)" in finding.fix


def test_what_is_tracked_is_not_named_nor_is_a_list_of_losses_that_nothing_reads(resumed):
    untracked, verdict = resumed(", teacher=teacher, state=state")
    assert untracked == ()
    assert (verdict.kind, verdict.rows_compared) == (VerdictKind.EXACT, 8)


def test_what_the_loaders_data_set_counts_is_named(resumed):
    untracked, verdict = resumed(script=OF_LOADER, changed="")
    assert [finding.sentence.partition(":")[0] for finding in untracked] == ["batches.dataset (Rows)"]
    finding = verdict.findings[0]
    assert (verdict.kind, finding.component) == (VerdictKind.BROKEN, UNREGISTERED)
    assert "batches.dataset (Rows): fetched was" in finding.sentence


@pytest.mark.matrix
@pytest.mark.parametrize("script", [SCRIPT, OF_LOADER])
def test_a_resume_is_exact_once_the_advice_was_followed(resumed, script):
    untracked, _ = resumed(script=script, changed="")
    lines = [finding.fix.partition("register it: ")[2] for finding in untracked]
    assert all(line.startswith("run.track(") for line in lines)
    followed = script.replace(
        "        for step in", "".join(f"        {line}\n" for line in lines) + "        for step in"
    )
    untracked, verdict = resumed(script=followed.replace("marker", "other"), run_id="followed", changed="")
    assert (untracked, verdict.kind, verdict.rows_compared) == ((), VerdictKind.EXACT, 8)


def test_what_the_loop_puts_on_its_loader_goes_on_from_the_commit(resumed):
    untracked, verdict = resumed(script=OF_LOADER, changed="loader.dataset.__class__.__getitem__ = lambda s, i: s.x[i]")
    assert (untracked, verdict.kind, verdict.rows_compared) == ((), VerdictKind.EXACT, 8)
