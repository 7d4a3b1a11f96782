"""DeepSpeed's engine, whose checkpoint folder is committed as the run's state."""

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

PROGRAM = Path(__file__).parents[1] / "programs/deepspeed_engine.py"

pytestmark = pytest.mark.matrix


def test_a_killed_engine_ends_with_the_weights_of_the_bare_script(fork_server, make_spec, open_log, tmp_path):
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install deepspeed")

    def program(*options):
        places = ["--folder", str(tmp_path / "state"), "--save-to", str(tmp_path / "ours.pt")]
        command = ["python", str(PROGRAM), *places, *options]
        return make_spec(recipe=None, program={"command": command}, continuity={"rehearsal": "off", "witness_steps": 2})

    hangs = program("--hang-at", "13")
    runlog = open_log(hangs)
    fork_server.run_attempt(runlog, hangs, observer=stop_when_proven(signal.SIGKILL))
    report = fork_server.run_attempt(runlog, program())
    assert (report.stop_reason, report.failure, report.from_step) == (StopReason.FINISHED, None, 10)
    verdict = read_history(runlog.reload()).attempts[1].verdict
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), 2)
    command = [sys.executable, str(PROGRAM), "--save-to", "bare.pt"]
    subprocess.run(command, cwd=tmp_path, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    bare, ours = torch.load(tmp_path / "bare.pt"), torch.load(tmp_path / "ours.pt")
    assert all(torch.equal(value, ours[name]) for name, value in bare.items())
