"""Whole processes that take turns. They measure the time of a step under segue, divided by the time of the same step
without segue, and the delay of the first step."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from benchmarks.common.child import child_environment, compile_checkout
from benchmarks.common.memory import family, pss_bytes
from benchmarks.overhead import peers, training
from benchmarks.overhead.turns import Training, Turns
from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.launch.assignment import Assignment
from segue.launch.registry import launch
from segue.spec import LivenessSpec, RunSpec

Say = Callable[[str], None]


class Size(NamedTuple):
    """One size of model, and the number of its steps in a turn."""

    name: str
    width: int
    turn_steps: int


SIZES = (Size("small", 448, 80), Size("large", 1_600, 10))
TURNS = 24
_SKIPPED = 4
"""Number of first turns that do not count, because the first steps allocate memory, and segue then makes its first
checkpoint."""
_ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_TOP_PAD_": str(2**28),
}
"""Settings with which glibc keeps the memory that a step has freed. By default, some processes return freed memory to
the system. Every step of these processes then requests its pages again, which takes up to a third of a bare step."""
_SAMPLES = 16_385
"""Number of samples: one more than a power of four."""
_SECONDS_TO_SAVE = 1e6
"""Interval of saves. The benchmark `checkpoint` measures the saves themselves."""


class Run(NamedTuple):
    """The times of one process."""

    seconds: float
    """Seconds of all turns that count."""
    startup_seconds: float
    memory_bytes: int
    """Memory of the process and its helpers before the last turn, without mapped files."""


def measure(rounds: int, *, say: Say) -> dict[str, Any]:
    """Ratios, as medians over rounds. In each round, every loop is a process, and the processes take turns."""
    os.environ.update(_ALLOCATOR)  # Of all processes that are started from here on.
    compile_checkout()
    found: dict[tuple[str, str], list[Run]] = {}
    for number in range(rounds):
        for size in SIZES:
            say(f"round {number + 1} of {rounds}: {size.name}")
            for name, run in _one_round(size, first=number).items():
                found.setdefault((size.name, name), []).append(run)
    report: dict[str, Any] = {"rounds": rounds, "samples": _SAMPLES}
    for name, bare in _OVER.items():
        figures = {
            f"{size.name}_x_bare": _median_ratio(found[size.name, name], found[size.name, bare]) for size in SIZES
        }
        pairs = [
            (mine, other)
            for size in SIZES
            for mine, other in zip(found[size.name, name], found[size.name, bare], strict=True)
        ]
        beyond = [mine.startup_seconds - other.startup_seconds for mine, other in pairs]
        figures["startup_seconds_beyond_bare"] = round(statistics.median(beyond), 3)
        for size in SIZES:
            sized = zip(found[size.name, name], found[size.name, bare], strict=True)
            extra_bytes = statistics.median(mine.memory_bytes - other.memory_bytes for mine, other in sized)
            figures[f"{size.name}_memory_mb_beyond_bare"] = round(extra_bytes / 1e6, 1)
        report[name] = figures
    for name in ("bare_loader", "bare"):
        report[name] = {
            f"{size.name}_step_ms": round(
                1e3 * statistics.median(run.seconds for run in found[size.name, name]) / _counted_steps(size), 3
            )
            for size in SIZES
        }
    return report


def _one_round(size: Size, *, first: int) -> dict[str, Run]:
    """Run every loop once, in an order that begins with another loop in each round."""
    names = [*_LOOPS][first % len(_LOOPS) :] + [*_LOOPS][: first % len(_LOOPS)]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        trainings: dict[str, Loop] = {}
        turns = {name: Turns(Path(folder, name)) for name in names}
        for name in names:  # One after the other, so that each starts on a machine that does nothing else.
            trainings[name] = _LOOPS[name](size, Path(folder, name))
            opened.callback(trainings[name].kill)
            turns[name].stop_after_turn(trainings[name])
        for _ in range(TURNS - 1):
            for name in names:
                turns[name].go_on(trainings[name])
                turns[name].stop_after_turn(trainings[name])
        return {name: _ended(turns[name], trainings[name]) for name in names}


def _ended(turns: Turns, training: Loop) -> Run:
    memory_bytes = pss_bytes(family(training.pid))
    turns.go_on(training)
    code = training.wait()
    assert code == 0, f"a training process ended with exit code {code}"
    startup_seconds, seconds = turns.notes()
    return Run(sum(seconds[_SKIPPED:]), startup_seconds, memory_bytes)


def _median_ratio(mine: list[Run], others: list[Run]) -> float:
    return round(statistics.median(a.seconds / b.seconds for a, b in zip(mine, others, strict=True)), 4)


def _counted_steps(size: Size) -> int:
    return size.turn_steps * (TURNS - _SKIPPED)


def _steps(size: Size) -> int:
    return size.turn_steps * TURNS + 1  # The last turn ends where another step begins.


class Loop(Training, Protocol):
    """A process that trains in one of the loops."""

    @property
    def pid(self) -> int: ...

    def wait(self) -> int | None: ...

    def kill(self) -> None: ...


class _Script(subprocess.Popen[bytes]):
    """A process that runs a script."""

    def freeze(self) -> None:
        """Stop the process, and return when it has stopped or ended."""
        self.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def thaw(self) -> None:
        self.send_signal(signal.SIGCONT)


def _bare(size: Size, folder: Path, *options: str) -> Loop:
    return _script(training.__file__, size, folder, *options)


def _peer(size: Size, folder: Path, framework: str) -> Loop:
    return _script(peers.__file__, size, folder, "--framework", framework)


def _script(script: str, size: Size, folder: Path, *options: str) -> Loop:
    command, no = [sys.executable, script, *_options(size, folder), *options], subprocess.DEVNULL
    return _Script(command, env=child_environment(), cwd=folder, stdin=no, stdout=no, stderr=no)


def _under_segue(size: Size, folder: Path, *, is_program: bool) -> Loop:
    what: dict[str, Any] = {"program": {"command": ["python", training.__file__, *_options(size, folder)]}}
    if not is_program:
        config = {"width": size.width, "samples": _SAMPLES, "turns": str(folder), "turn_steps": size.turn_steps}
        what = {"recipe": f"{training.__name__}:build", "config": config}
    # A stopped process finds its next heartbeat due as soon as it goes on.
    liveness = {"heartbeat_seconds": LivenessSpec().heartbeat_seconds * len(_LOOPS)}
    return launched(one_thread_spec(folder, steps=_steps(size), what=what | {"liveness": liveness}))


def one_thread_spec(folder: Path, *, steps: int, what: dict[str, Any]) -> RunSpec:
    """A run with one thread, a store in this folder, and one save at its end."""
    saves = {"every_seconds": _SECONDS_TO_SAVE, "max_work_at_risk_seconds": _SECONDS_TO_SAVE}
    fields = {"run_id": "overhead", "steps": steps, "threads": 1, "store": {"url": str(folder / "store")}}
    return RunSpec.parse(fields | {"checkpoints": saves, "continuity": {"rehearsal": "off"}} | what)


def launched(spec: RunSpec) -> Loop:
    """The process of the first attempt of this run."""
    clock = SystemClock()
    runlog = open_run(spec, clock=clock)
    plan = decide_next(runlog, spec, clock=clock).plan
    assert plan is not None
    return cast("Loop", launch(Assignment(spec=spec, plan=plan), on_line=lambda _: None))  # A local one has a pid.


def _options(size: Size, folder: Path) -> list[str]:
    numbers = {"steps": _steps(size), "width": size.width, "samples": _SAMPLES, "turn-steps": size.turn_steps}
    return [*(word for name, number in numbers.items() for word in (f"--{name}", str(number))), "--turns", str(folder)]


_LOOPS: dict[str, Callable[[Size, Path], Loop]] = {
    "bare_loader": lambda size, folder: _bare(size, folder, "--loader"),
    "recipe": lambda size, folder: _under_segue(size, folder, is_program=False),
    "bare": _bare,
    "session": lambda size, folder: _under_segue(size, folder, is_program=True),
    "lightning": lambda size, folder: _peer(size, folder, "lightning"),
    "accelerate": lambda size, folder: _peer(size, folder, "accelerate"),
}
_OVER = {"recipe": "bare_loader", "session": "bare", "lightning": "bare_loader", "accelerate": "bare_loader"}
"""Each loop with the bare loop that draws its batches in the same way."""
