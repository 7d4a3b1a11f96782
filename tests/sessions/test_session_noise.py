"""Programs whose kernels do not repeat their bits: no other process replays them, so a second attempt tells."""

from __future__ import annotations

import signal

import pytest

from segue.continuity.naming import UNREGISTERED
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

SCRIPT = """
import os
import time
from pathlib import Path
import torch
from torch import nn
import segue

torch.manual_seed(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scale = {{"weight": 1.0}}
started = Path(__file__).with_name("started")
hangs = not started.exists()
started.touch()

def noise(grad):
    chance = torch.Generator().manual_seed(int.from_bytes(os.urandom(7), "little"))
    return grad * (1 + 1e-5 * torch.randn(grad.shape, generator=chance))

for parameter in model.parameters():
    parameter.register_hook(noise)

with segue.session() as run:
    run.track(model=model, optimizer=optimizer{tracked})
    for step in run.steps(60):
        x = torch.randn(8, 4)
        loss = scale["weight"] * (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scale["weight"] *= 0.99
        run.report(loss=loss)
        if step == 19 and hangs:
            time.sleep(600)
"""

# The first process holds at step 19, before it can commit step 20. Several rows, for the loss of the first step
# after a checkpoint is computed from the checkpoint's own weights: noise in gradients shows only in later ones.
KILLED = stop_when_proven(signal.SIGKILL, rows=3)


@pytest.fixture
def noisy(make_spec, tmp_path):
    def make(tracked):
        (tmp_path / "train.py").write_text(SCRIPT.format(tracked=tracked))
        program = {"command": ["python", str(tmp_path / "train.py")]}
        return make_spec(program=program, recipe=None, steps=60, checkpoints={"every_steps": 10})

    return make


@pytest.mark.matrix
def test_the_second_attempt_knows_the_noise_and_the_run_goes_on(fork_server, noisy, open_log):
    spec = noisy(", scale=scale")
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=KILLED)
    first = fork_server.run_attempt(runlog, spec)
    assert first.failure.type == "BrokenResumeError", "one replay proves nothing about kernels"
    second = fork_server.run_attempt(runlog, spec)
    assert second.stop_reason is StopReason.FINISHED, second.failure
    verdict = read_history(runlog.reload()).attempts[2].verdict
    assert verdict.kind is VerdictKind.EQUIVALENT
    assert 0 < max(verdict.noise.values()) < 1e-2


@pytest.mark.matrix
def test_lost_state_stays_broken_under_that_noise(fork_server, noisy, open_log):
    spec = noisy("")
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec, observer=KILLED)
    for _ in range(2):
        report = fork_server.run_attempt(runlog, spec)
        assert report.failure.type == "BrokenResumeError"
    verdict = read_history(runlog.reload()).attempts[2].verdict
    assert (verdict.kind, verdict.findings[0].component) == (VerdictKind.BROKEN, UNREGISTERED)
