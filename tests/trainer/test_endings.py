"""How an attempt ends: by notice, bound, recall, the user's error, a newer claim."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest

from segue.launch.assignment import Assignment
from segue.notices.recall import recall
from segue.records import Capacity, SegmentPlan, StopReason, VerdictKind
from segue.runlog.entries import ClaimEntry, CommitEntry
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat

SLOW = {"steps": 4000, "config": {"pause_seconds": 0.005}, "checkpoints": {"every_steps": 1000}}


def once_training(action):
    """Act once the attempt has done a step."""

    def observer(pid, log, plan):
        attempt = read_history(log).attempt_of(plan.segment, plan.attempt)
        beat = last_heartbeat(log, attempt)
        if beat is None or beat.phase != "training":
            return False
        action(pid, attempt)
        return True

    return observer


def test_sigterm_commits_at_the_next_safe_point_and_ends_as_notice(fork_server, make_spec, open_log):
    spec = make_spec(**SLOW)
    runlog = open_log(spec)
    report = fork_server.run_attempt(
        runlog, spec, observer=once_training(lambda pid, attempt: os.kill(pid, signal.SIGTERM))
    )
    assert report.stop_reason is StopReason.NOTICE
    assert report.notice.kind == "sigterm"
    assert report.checkpoint.step == report.to_step > 0
    assert report.lost_steps == 0
    newest = read_history(runlog).newest
    assert newest.ref == report.checkpoint
    assert len(newest.rows) == spec.continuity.witness_steps


def test_the_resume_after_a_notice_is_proven_exact(fork_server, make_spec, open_log):
    spec = make_spec(**SLOW)
    runlog = open_log(spec)
    for _ in range(2):
        fork_server.run_attempt(runlog, spec, observer=once_training(lambda pid, attempt: os.kill(pid, signal.SIGTERM)))
    verdict = read_history(runlog).attempts[1].verdict
    assert verdict.kind is VerdictKind.EXACT
    assert verdict.rows_compared == 8
    assert verdict.components_compared == 16


def test_a_notice_before_the_first_step_ends_the_attempt_without_a_commit(fork_server, make_spec, open_log):
    spec = make_spec(**SLOW)
    runlog = open_log(spec)

    def at_the_claim(pid, log, plan):
        if read_history(log).attempt_of(plan.segment, plan.attempt) is None:
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    report = fork_server.run_attempt(runlog, spec, observer=at_the_claim)
    assert report.stop_reason is StopReason.NOTICE
    assert report.lost_steps == 0
    assert read_history(runlog).committed_step == report.to_step


def test_a_notice_file_ends_the_attempt_like_a_signal(fork_server, make_spec, open_log, tmp_path):
    notice = tmp_path / "notice"
    spec = make_spec(**SLOW, liveness={"heartbeat_seconds": 0.05, "notice_file": str(notice)})
    report = fork_server.run_attempt(open_log(spec), spec, observer=once_training(lambda pid, attempt: notice.touch()))
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, "file")
    assert report.checkpoint.step == report.to_step


def test_a_recall_through_the_store_commits_and_ends_as_bound(fork_server, make_spec, open_log):
    spec = make_spec(**SLOW)
    runlog = open_log(spec)

    def call_back(pid, attempt):
        recall(runlog.store, run_id=spec.run_id, attempt_id=attempt.claim.attempt_id, reason="test")

    report = fork_server.run_attempt(runlog, spec, observer=once_training(call_back))
    assert report.stop_reason is StopReason.BOUND
    assert report.checkpoint.step == report.to_step


@pytest.mark.matrix
def test_an_attempt_stops_before_its_wall_clock_bound(fork_server, make_spec, open_log):
    spec = make_spec(**(SLOW | {"checkpoints": {"every_steps": 50}}))
    runlog = open_log(spec)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-", max_seconds=2.5)
    process = fork_server.start(spec, plan)
    process.join(30)
    report = read_history(runlog).report_of(0, 1)
    assert report.stop_reason is StopReason.BOUND
    assert report.checkpoint.step == report.to_step > 0
    # The witness takes eight steps more; the commit itself was in time.
    entries = [slot.entry for slot in runlog.slots]
    claim = next(entry for entry in entries if isinstance(entry, ClaimEntry))
    last_commit = next(entry for entry in reversed(entries) if isinstance(entry, CommitEntry))
    # A save that takes far longer than the one before it, as on a busy machine, makes it a little late.
    assert 1.0 < (last_commit.written_at - claim.written_at).total_seconds() < 2.5 + 1.5


@pytest.mark.matrix
def test_an_orphaned_trainer_commits_and_ends(fork_server, make_spec, open_log, tmp_path):
    spec = make_spec(**SLOW)
    runlog = open_log(spec)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-")
    order = tmp_path / "assignment.json"
    order.write_text(Assignment(spec=spec, plan=plan).model_dump_json())
    # A parent that starts the trainer and is then killed, as a segment flow on a dying worker is.
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, sys, time;"
            f"subprocess.Popen([sys.executable, '-m', 'segue.trainer.main'], stdin=open({str(order)!r}),"
            "stderr=subprocess.DEVNULL, start_new_session=True); time.sleep(600)",
        ]
    )
    deadline = time.monotonic() + 60
    while not any(a.claim for a in read_history(runlog).attempts):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    while (report := read_history(runlog).report_of(0, 1)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert (report.stop_reason, report.notice.kind) == (StopReason.NOTICE, "orphaned")


LEAVER = """
import atexit, pathlib, tempfile, threading, time
import pyarrow, pyarrow.parquet
from segue.testing.recipes import tiny as build

class Kept:
    def __del__(self):
        pathlib.Path("destroyed").touch()

kept = Kept()
rows = open("rows", "w")
rows.write("1, 2")
atexit.register(pathlib.Path("left").touch)
table = pyarrow.table({"loss": [1.0, 2.0]})
parquet = pyarrow.parquet.ParquetWriter("losses.parquet", table.schema)
parquet.write_table(table)
temporary = tempfile.NamedTemporaryFile(dir=".", prefix="temporary")

def beside():
    while True:
        pathlib.Path("beside").touch()
        time.sleep(0.01)

threading.Thread(target=beside, daemon=True).start()
"""


@pytest.mark.matrix
def test_a_trainer_ends_as_python_does_for_the_users_objects(make_spec, open_log, tmp_path):
    (tmp_path / "leaver.py").write_text(LEAVER)
    spec = make_spec(recipe="leaver:build", steps=2)
    runlog = open_log(spec)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-")
    ended = subprocess.run(
        [sys.executable, "-m", "segue.trainer.main"],
        input=Assignment(spec=spec, plan=plan).model_dump_json().encode(),
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert read_history(runlog.reload()).report_of(0, 1).stop_reason is StopReason.FINISHED
    assert (tmp_path / "left").exists()
    assert (tmp_path / "rows").read_text() == "1, 2"
    assert (tmp_path / "destroyed").exists()
    assert pyarrow.parquet.read_table(tmp_path / "losses.parquet")["loss"].to_pylist() == [1.0, 2.0]
    assert not list(tmp_path.glob("temporary*"))
    assert b"Traceback" not in ended.stderr


def test_a_step_that_raises_is_reported_with_its_traceback_and_commits_nothing_after(fork_server, make_spec, open_log):
    spec = make_spec(config={"raise_at_step": 15})
    runlog = open_log(spec)
    report = fork_server.run_attempt(runlog, spec)
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == "ArithmeticError"
    assert "this recipe raises here, as its config asks" in report.failure.traceback
    assert "recipes.py" in report.failure.traceback
    assert read_history(runlog).committed_step == 10


def test_a_recipe_that_cannot_be_built_is_reported(fork_server, make_spec, open_log):
    spec = make_spec(config={"width": "wide"})
    report = fork_server.run_attempt(open_log(spec), spec)
    assert report.stop_reason is StopReason.FAILED
    assert report.failure.type == "ValueError"


def test_an_attempt_that_a_newer_claim_has_fenced_commits_nothing_more(fork_server, make_spec, open_log):
    spec = make_spec(steps=4000, config={"pause_seconds": 0.005}, checkpoints={"every_steps": 20})
    runlog = open_log(spec)
    zombie = fork_server.start(spec, SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-"))
    while not read_history(runlog).checkpoints:
        time.sleep(0.02)
    successor = fork_server.start(spec, SegmentPlan(segment=0, attempt=2, capacity=Capacity.SPOT, deployment="-"))
    zombie.join(30)
    time.sleep(0.5)
    successor.kill()
    successor.join()
    slots = runlog.reload().slots
    second_claim = next(s.number for s in slots if isinstance(s.entry, ClaimEntry) and s.entry.attempt == 2)
    assert zombie.exitcode == 13
    assert all(s.entry.epoch != 1 for s in slots if s.number > second_claim)


@pytest.mark.matrix
@pytest.mark.parametrize("copies", [2])
def test_an_attempt_that_is_started_twice_trains_once(fork_server, make_spec, open_log, copies):
    spec = make_spec(config={"pause_seconds": 0.01})
    runlog = open_log(spec)
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="-")
    processes = [fork_server.start(spec, plan) for _ in range(copies)]
    for process in processes:
        process.join(30)
    assert sorted(process.exitcode for process in processes) == [0, 13]
    assert len(read_history(runlog.reload()).attempts) == 1
