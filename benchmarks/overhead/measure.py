"""Whole processes, interleaved: what a step costs under segue, over the same step without it, and how much later the
first one comes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.common.child import child_environment
from benchmarks.overhead import peers, training
from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.launch.launcher import launch
from segue.spec import RunSpec

Say = Callable[[str], None]


class Size(NamedTuple):
    """One size of model, and how many of its steps are measured."""

    name: str
    width: int
    steps: int


SIZES = (Size("small", 448, 1_200), Size("large", 1_600, 240))
_SKIPPED = 0.25
"""Share of the steps that do not count: the first ones allocate, and segue then makes its first checkpoint."""
_SAMPLES = 16_385
"""One more than a power of four."""
_SECONDS_TO_SAVE = 1e6
"""The interval of saves: `bench checkpoint` measures those."""


class Run(NamedTuple):
    """What one process needed."""

    step_seconds: float
    startup_seconds: float


def measure(rounds: int, *, say: Say) -> dict[str, Any]:
    """Ratios as medians over rounds, in each of which every loop runs once."""
    found: dict[tuple[str, str], list[Run]] = {}
    for number in range(rounds):
        for size in SIZES:
            for name, run in _LOOPS.items():
                say(f"round {number + 1} of {rounds}: {size.name}, {name}")
                found.setdefault((size.name, name), []).append(run(size))
    report: dict[str, Any] = {"rounds": rounds, "samples": _SAMPLES}
    for name, bare in _OVER.items():
        figures = {
            f"{size.name}_x_bare": _median_ratio(found[size.name, name], found[size.name, bare]) for size in SIZES
        }
        pairs = [
            (mine.startup_seconds, other.startup_seconds)
            for size in SIZES
            for mine, other in zip(found[size.name, name], found[size.name, bare], strict=True)
        ]
        figures["startup_seconds_beyond_bare"] = round(statistics.median(a - b for a, b in pairs), 3)
        report[name] = figures
    for name in ("bare_loader", "bare"):
        report[name] = {
            f"{size.name}_step_ms": round(1e3 * statistics.median(r.step_seconds for r in found[size.name, name]), 3)
            for size in SIZES
        }
    return report


def _median_ratio(mine: list[Run], others: list[Run]) -> float:
    return round(statistics.median(a.step_seconds / b.step_seconds for a, b in zip(mine, others, strict=True)), 4)


def _bare(size: Size, *options: str) -> Run:
    return _process(training.__file__, size, *options)


def _peer(size: Size, framework: str) -> Run:
    return _process(peers.__file__, size, "--framework", framework)


def _process(script: str, size: Size, *options: str) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps.json")
        command = [sys.executable, script, *_options(size, stamps), *options]
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        subprocess.run(command, check=True, env=child_environment(), cwd=folder, **quiet)  # type: ignore[call-overload]
        return _read(stamps)


def _under_segue(size: Size, *, is_program: bool) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        stamps = Path(folder, "stamps.json")
        what: dict[str, Any] = {"program": {"command": ["python", training.__file__, *_options(size, stamps)]}}
        if not is_program:
            config = {"width": size.width, "samples": _SAMPLES, "stamps": str(stamps)}
            what = {"recipe": f"{training.__name__}:build", "config": config}
        spec = RunSpec.parse(
            {
                "run_id": "overhead",
                "steps": size.steps,
                "threads": 1,
                "store": {"url": str(Path(folder, "store"))},
                "checkpoints": {"every_seconds": _SECONDS_TO_SAVE, "max_work_at_risk_seconds": _SECONDS_TO_SAVE},
                "continuity": {"rehearsal": "off"},
            }
            | what
        )
        clock = SystemClock()
        runlog = open_run(spec, clock=clock)
        plan = decide_next(runlog, spec, clock=clock).plan
        assert plan is not None
        code = launch(Assignment(spec=spec, plan=plan), on_line=lambda _: None).wait()
        assert code == 0, f"the trainer ended with exit code {code}"
        return _read(stamps)


def _options(size: Size, stamps: Path) -> list[str]:
    numbers = ["--steps", str(size.steps), "--width", str(size.width), "--samples", str(_SAMPLES)]
    return [*numbers, "--stamps", str(stamps)]


def _read(stamps: Path) -> Run:
    noted = json.loads(stamps.read_text())
    times = noted["stamps"]
    first = int(len(times) * _SKIPPED)
    counted = times[first:]
    return Run((counted[-1] - counted[0]) / (len(counted) - 1), times[1] - noted["started"])


_LOOPS: dict[str, Callable[[Size], Run]] = {
    "bare_loader": lambda size: _bare(size, "--loader"),
    "recipe": lambda size: _under_segue(size, is_program=False),
    "bare": _bare,
    "session": lambda size: _under_segue(size, is_program=True),
    "lightning": lambda size: _peer(size, "lightning"),
    "accelerate": lambda size: _peer(size, "accelerate"),
}
_OVER = {"recipe": "bare_loader", "session": "bare", "lightning": "bare_loader", "accelerate": "bare_loader"}
"""Each loop with the bare one that draws its batches in the same way."""
