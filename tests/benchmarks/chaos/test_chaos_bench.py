"""The chaos benchmark as a whole: a schedule from a file is played and passed, and Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

ROOT = Path(__file__).parents[3]
COMMAND = [sys.executable, "-m", "benchmarks", "chaos"]
FIGURES = {"runs", "faults", "finished", "late", "commits_lost", "doubled_steps", "final_identical", "stuck"}


@pytest.mark.timeout(1500)
def test_a_schedule_from_a_file_is_played_and_loses_nothing_and_leaves_nothing(tmp_path):
    faults = [
        {"kind": "trainer-kill", "at_seconds": 12},
        {"kind": "store-away", "at_seconds": 14, "for_seconds": 4},
        {"kind": "parent-kill", "at_seconds": 20},
        {"kind": "notice", "at_seconds": 30},
    ]
    (tmp_path / "faults.json").write_text(json.dumps({"faults": faults}))
    logs = tmp_path / "logs"
    command = [*COMMAND, "--schedule", str(tmp_path / "faults.json"), "--lanes", "2", "--json", "--logs", str(logs)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\nlogs: {logs}"
    report = json.loads(done.stdout)
    assert report.keys() >= FIGURES | {"processes_left"}
    assert sum(report["faults"].values()) + sum(report["skipped"].values()) == len(faults)
    assert report["faults"].keys() >= {"parent-kill", "store-away"}
    assert (report["finished"], report["final_identical"]) == (report["runs"], True)
    assert (report["commits_lost"], report["doubled_steps"], report["stuck"]) == (0, 0, 0)


@pytest.mark.soak
def test_ctrl_c_leaves_neither_files_nor_processes_nor_mounts(tmp_path):
    command = [*COMMAND, "--minutes", "5", "--lanes", "2"]
    run = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)})
    give_up_at = time.monotonic() + 120
    while not any(b"prefect.engine" in command_line(pid) for pid in processes_of(tmp_path)):
        assert time.monotonic() < give_up_at
        time.sleep(0.2)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=120)
    assert run.returncode != 0
    assert processes_of(tmp_path) == []
    assert str(tmp_path) not in Path("/proc/mounts").read_text()
    assert list(tmp_path.iterdir()) == []


def processes_of(folder: Path) -> list[int]:
    """Those whose temporary folder is in it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                if f"TMPDIR={folder}".encode() in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # It ended while we looked.
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
