"""The goodput of a run is that of Google's ml-goodput-measurement on the same steps."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from ml_goodput_measurement.src.goodput import GoodputCalculator, GoodputRecorder

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.policy.spending import charges_of
from segue.records import SegmentPlan
from segue.reports.goodput import goodput_of
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog

pytestmark = pytest.mark.matrix


class Entries:
    """The log of the package, which usually is a service of Google."""

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []
        self.job_start_time = None

    def write_cloud_logging_entry(self, entry: dict[str, Any]) -> None:
        self.written.append(entry)

    def read_cloud_logging_entries(self, *_: Any, **__: Any) -> tuple[list[dict[str, Any]], None]:
        return self.written, None


def measured_by_the_package(runlog: RunLog, history: History, times: Path, cache_dir: Path) -> float:
    """The productive seconds of a run, from the claims of the attempts and the begin of each step."""
    entries = Entries()
    job = GoodputRecorder(runlog.run_id, "goodput", logging_enabled=True, cloud_logger=entries)
    lines = [line.split() for line in times.read_text().splitlines()]
    for attempt in history.attempts:
        job.record_job_start_time(attempt.claim.written_at)
        assert attempt.report is not None
        own = [float(moment) for pid, moment in lines if int(pid) == attempt.claim.trainer_pid]
        for step, moment in enumerate(own, attempt.report.from_step + 1):
            job.record_step_start_time(step, datetime.fromtimestamp(moment, UTC))
    began_at, last = history.attempts[0].claim.written_at, history.attempts[-1]
    assert last.report is not None
    in_steps = last.report.seconds - last.report.phase_seconds["end"]
    ended_at = last.claim.written_at + timedelta(seconds=in_steps)
    job.record_job_end_time(ended_at)
    calculator = GoodputCalculator(runlog.run_id, "goodput", cloud_logger=entries, cache_dir=str(cache_dir))
    percent, _, last_step = calculator.get_job_goodput()
    assert last_step == history.committed_step
    return percent / 100 * (ended_at - began_at).total_seconds()


def dies_after_step_170(pid: int, runlog: RunLog, plan: SegmentPlan) -> bool:
    history = read_history(runlog.reload())
    beat = last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt))
    is_due = beat is not None and beat.step >= 170
    if is_due:
        os.kill(pid, signal.SIGKILL)
    return is_due


def test_the_goodput_of_a_killed_and_resumed_run_is_that_of_the_package(fork_server, make_spec, tmp_path):
    spec = make_spec(
        run_id="peer",
        recipe="tests.reports.timed_recipe:build",
        steps=300,
        config={"pause_seconds": 0.05, "times": str(tmp_path / "times")},
        checkpoints={"every_steps": 100},
        liveness={"heartbeat_seconds": 0.05},
    )
    runlog = open_run(spec, clock=SystemClock())
    fork_server.run_attempt(runlog, spec, observer=dies_after_step_170)
    fork_server.run_to_the_end(runlog, spec)
    history = read_history(runlog.reload())
    ours = goodput_of(history, charges_of(spec, history))
    assert ours.seconds["lost work"] > 60 * 0.05
    # The package is not told how long each save blocked a step.
    theirs = measured_by_the_package(runlog, history, tmp_path / "times", tmp_path) - ours.seconds["saves"]
    assert abs(ours.seconds["training"] - theirs) <= 0.01 * ours.total_seconds, (ours, theirs)
