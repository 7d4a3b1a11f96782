"""A loop with Accelerate in segments: a program like any other, with its loader iterated in its own way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.support.observers import stop_when_proven

PROGRAM = Path(__file__).parents[1] / "programs/accelerated.py"


@pytest.mark.matrix
def test_a_killed_loop_ends_with_the_weights_of_the_bare_script(fork_server, make_spec, open_log, tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed")

    def make(*options):
        command = ["python", str(PROGRAM), *options, "--save-to", str(tmp_path / "ours.pt")]
        continuity = {"rehearsal": "off", "witness_steps": 2}
        return make_spec(recipe=None, program={"command": command}, steps=1000, continuity=continuity)

    hangs = make("--hang-at", "13")
    runlog = open_log(hangs)
    killed = fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    assert killed.stop_reason is StopReason.LOST
    report = fork_server.run_attempt(runlog, make())
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    assert read_history(runlog.reload()).attempts[1].verdict.kind is VerdictKind.EXACT
    command = [sys.executable, str(PROGRAM), "--save-to", "bare.pt"]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    bare, ours = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, ours[name]) for name, value in bare.items())
