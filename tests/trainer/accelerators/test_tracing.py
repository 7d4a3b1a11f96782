"""The trace of a process: one event a line, complete after any end; nothing without the variable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest

from segue.checkpoints.saving import tracing

SCRIPT = """
import os, signal, threading
from segue.checkpoints.saving.tracing import span
def work():
    with span("beside", bytes=3) as facts:
        facts["is_locked"] = True
with span("outer", step=7), span("inner"):
    thread = threading.Thread(target=work, name="helper"); thread.start(); thread.join()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_two_killed_processes_leave_their_events_in_one_file(tmp_path):
    file = tmp_path / "trace.json"
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=os.environ | {tracing.VARIABLE: str(file)}, check=False
        )
        assert done.returncode == -signal.SIGKILL
    events = json.loads(file.read_text().rstrip().rstrip(",") + "]")
    assert [event["name"] for event in events] == ["beside", "inner", "outer"] * 2
    assert len({event["pid"] for event in events}) == 2
    assert events[0]["args"] == {"bytes": 3, "is_locked": True}
    assert (events[0]["tid"], events[2]["args"]) == ("helper", {"step": 7})
    assert all(event["ph"] == "X" and event["dur"] <= events[2]["dur"] for event in events[:3])


def test_without_the_variable_nothing_is_measured(monkeypatch):
    monkeypatch.delenv(tracing.VARIABLE, raising=False)
    monkeypatch.setattr(tracing, "_measured", pytest.fail)
    with tracing.span("anything", step=1):
        pass
