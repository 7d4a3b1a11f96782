"""The time of a resume of a large state, from the start of its process to the first step, and the memory for it."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.accelerator.report import Figure
from benchmarks.continuity.tasks import workplace
from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.launch.registry import launch
from segue.records import SegmentReport, StopReason
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

_SMALL_BYTES = 1_000_000
_LIMIT_SECONDS = 300.0


class _Pair(NamedTuple):
    first: SegmentReport
    resumed: SegmentReport
    resume_seconds: float


def measure_resume(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """Train a run for a few steps, and resume the run in a new process. The store is in the page cache."""
    small = _resumed(device, _SMALL_BYTES)
    yield Figure("resume of 1 MB, from the start of its process to the first step", small.resume_seconds, "s")
    large = _resumed(device, size_bytes)
    yield Figure("resume, from the start of its process to the first step", large.resume_seconds, "s", 6.0)

    def memory(of_large: SegmentReport, of_small: SegmentReport) -> float:
        return ((of_large.peak_memory_bytes or 0) - (of_small.peak_memory_bytes or 0)) / size_bytes

    yield Figure("host memory while training", memory(large.first, small.first), "x state", 1.15)
    yield Figure("host memory at a resume", memory(large.resumed, small.resumed), "x state", 2.1)


def _resumed(device: torch.device, size_bytes: int) -> _Pair:
    with tempfile.TemporaryDirectory(prefix="segue-accelerator-", dir=workplace()) as folder:
        spec = RunSpec.parse(
            {
                "run_id": "heavy",
                "recipe": "benchmarks.accelerator.recipes:heavy",
                "config": {"size_bytes": size_bytes},
                "steps": 4,
                "ranks": 1,
                "device": "auto" if device.type == "cuda" else "cpu",
                "store": {"url": str(Path(folder) / "store")},
                "checkpoints": {"every_steps": 2},
                "continuity": {"rehearsal": "off", "witness_steps": 1},
            }
        )
        runlog = open_run(spec, clock=SystemClock())
        first, _ = _attempt(runlog, spec)
        return _Pair(first, *_attempt(runlog, spec.model_copy(update={"steps": 8})))


def _attempt(runlog: RunLog, spec: RunSpec) -> tuple[SegmentReport, float]:
    """Return the report of the attempt, and the time from the start of its process to its first step."""
    plan = decide_next(runlog, spec, clock=SystemClock()).plan
    assert plan is not None
    began, lines = time.time(), list[str]()
    trainer = launch(Assignment(spec=spec, plan=plan), on_line=lambda line: lines.append(line.text))
    try:
        code = trainer.wait(_LIMIT_SECONDS)
    finally:
        trainer.kill()
    report = report_or_lost(runlog.reload(), plan, TrainerEnd(code))
    if report.stop_reason is not StopReason.FINISHED:
        raise RuntimeError("\n".join([f"the attempt ended as {report.stop_reason}", *lines[-20:]]))
    attempt = read_history(runlog.reload()).attempt_of(plan.segment, plan.attempt)
    assert attempt is not None
    return report, attempt.claim.written_at.timestamp() - began + (report.startup_seconds or 0.0)
