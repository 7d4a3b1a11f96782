"""The local Prefect: a busy port picks another, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from segue.deployments.process.stack import LocalStack, free_port

from segue.errors import OrchestratorError

REPO = Path(__file__).parents[2]


def test_a_busy_port_picks_another():
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        taken = busy.getsockname()[1]
        assert free_port(taken) not in (taken, 0)


def test_a_folder_without_prefect_yaml_is_refused_before_anything_starts(tmp_path):
    stack = LocalStack(tmp_path / "segue", home=tmp_path, say=lambda text: None)
    with pytest.raises(OrchestratorError, match=r"no prefect\.yaml"):
        stack.start()
    assert not (tmp_path / "segue").exists()


@pytest.mark.matrix
@pytest.mark.prefect
def test_ctrl_c_in_the_demo_ends_every_process_and_leaves_one_folder(tmp_path):
    before = {path.name for path in REPO.iterdir()}
    command = [str(Path(sys.executable).with_name("segue")), "demo", "--folder", str(tmp_path / "left")]
    demo = subprocess.Popen(command, cwd=REPO, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seen: list[bytes] = []
    started: set[psutil.Process] = set()
    for line in demo.stdout:
        seen.append(line)
        if b"starting a worker" in line:
            # Server and workers are up or coming up, and soon a trainer of the undisturbed run.
            time.sleep(6)
            started = set(psutil.Process(demo.pid).children(recursive=True))
            os.kill(demo.pid, signal.SIGINT)
            break
    out, _ = demo.communicate(timeout=60)
    _, alive = psutil.wait_procs(started, timeout=10)
    assert len(started) >= 3
    assert alive == []
    assert demo.returncode == 130, b"".join([*seen, out]).decode()
    assert b"Traceback" not in out
    assert {path.name for path in REPO.iterdir()} == before
