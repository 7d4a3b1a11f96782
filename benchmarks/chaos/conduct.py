"""The chaos benchmark itself: apply a schedule to a world, wait for all runs, judge them."""

from __future__ import annotations

import heapq
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.chaos import processes
from benchmarks.chaos.faults.kind import Undo
from benchmarks.chaos.faults.registry import KINDS
from benchmarks.chaos.judge import Judgement, RunJudge
from benchmarks.chaos.places import FolderPlace
from benchmarks.chaos.runs import spec_of
from benchmarks.chaos.schedule import Fault, Schedule
from benchmarks.chaos.world import NotNowError, World, world_in
from segue.clock import SystemClock
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import StoreError
from segue.runlog.log import RunLog
from segue.stores import LocalStore

_RETRY_SECONDS = 0.5
_PATIENCE_SECONDS = 90.0
"""Longest time that a fault waits for a target before the fault is skipped."""
SETTLE_SECONDS = 300.0
_MUST_BE_ZERO = ("late", "commits_lost", "doubled_steps", "stuck", "processes_left")


@dataclass(frozen=True)
class Options:
    """The options of the benchmark."""

    schedule: Schedule
    seconds: float
    """Time in which new runs are started and faults may come."""
    seed: int = 0
    lanes: int = 3
    """Runs at a time."""
    settle_seconds: float = SETTLE_SECONDS
    """Time after the last fault at which a run that still trains counts as stuck."""
    logs: Path | None = None
    """Folder for the logs of all processes and runs; None: the logs are deleted."""


@dataclass
class Outcome:
    """A fault that was applied to the world."""

    faults: Counter[str] = field(default_factory=Counter)
    skipped: list[str] = field(default_factory=list)


class Timeline:
    """The list of all events, each with its time since the first event."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say, self._begun = say, time.monotonic()
        self.lines: list[str] = []

    def __call__(self, text: str) -> None:
        self.lines.append(f"{time.monotonic() - self._begun:7.1f} s  {text}")
        self._say(self.lines[-1])


class Conductor:
    """Applies the faults of a schedule when they are due, and ends each fault when its time is over."""

    def __init__(self, world: World, schedule: Schedule, *, say: Callable[[str], None]) -> None:
        self.outcome = Outcome()
        self._world, self._say = world, say
        self._begun = time.monotonic()
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        for fault in schedule.faults:
            self._at(fault.at_seconds, lambda fault=fault: self._try(fault))  # type: ignore[misc]

    def run(self, seconds: float) -> None:
        """Wait this number of seconds, and then until every fault is over."""
        while self._due or self._now < seconds:
            while self._due and self._due[0][0] <= self._now:
                heapq.heappop(self._due)[2]()
            self._world.tick()

    @property
    def _now(self) -> float:
        return time.monotonic() - self._begun

    def _at(self, seconds: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (seconds, next(self._order), action))

    def _try(self, fault: Fault) -> None:
        try:
            undo = KINDS[fault.kind].apply(self._world, fault)
        except NotNowError:
            if self._now - fault.at_seconds < _PATIENCE_SECONDS:
                self._at(self._now + _RETRY_SECONDS, lambda: self._try(fault))
            else:
                self.outcome.skipped.append(fault.kind)
                self._say(f"skipped {fault.kind}: nothing to hit")
            return
        self.outcome.faults[fault.kind] += 1
        self._say(f"fault {self.outcome.faults.total()}: {fault.kind} for {fault.for_seconds or 0.0:.1f} s")
        self._at(self._now + (fault.for_seconds or 0.0), lambda: self._end(fault, undo))

    def _end(self, fault: Fault, undo: Undo) -> None:
        try:
            undo()
        except NotNowError:  # What it changed cannot be reached: another fault is in the way.
            self._at(self._now + _RETRY_SECONDS, lambda: self._end(fault, undo))


def measure(options: Options, *, say: Callable[[str], None]) -> dict[str, Any]:
    """Apply the schedule and return the report. No file, process or mount is left behind, even after an error."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="segue-chaos-") as name, _temporary_files_in(Path(name) / "tmp"):
        folder = Path(name)
        timeline = Timeline(say)
        timeline("the undisturbed run")
        expected = _undisturbed(folder)
        with world_in(folder, say=timeline, lanes=options.lanes) as world:
            conductor = Conductor(world, options.schedule, say=timeline)
            conductor.run(options.seconds)
            timeline("no further faults; waiting for the runs to end")
            world.settle(options.settle_seconds)
            stuck = [run.spec.run_id for run in world.live]
            left = world.left_processes() if not stuck else []
            open_flow_runs = world.open_flow_runs() if not stuck else []
            api_url, restarts, recoveries = world.stack.api_url, world.services.restarts, world.recovery.runs
            if options.logs is not None:
                _keep_logs(world, options.logs, timeline)
            # Judged once nothing writes any more, also not what is stuck.
            world.close()
            world.stack.stop()
            left += processes.in_words(processes.of_stack(api_url))
            judgements = [_judged(run.judge, run.spec.run_id, expected) for run in world.runs if run.starts]
            problems = [run.problem for run in world.runs if run.problem]
    return {
        **_figures(judgements, conductor.outcome, stuck=stuck, left=left, has_reference=bool(expected)),
        "problems": problems + [f"{each.run_id}: {problem}" for each in judgements for problem in each.problems],
        "flow_runs_open": open_flow_runs,
        "service_restarts": restarts,
        "recoveries": recoveries,
        "seed": options.seed,
        "lanes": options.lanes,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": round(os.getloadavg()[0], 1),
        "seconds": round(time.monotonic() - started, 1),
    }


def passed(report: dict[str, Any]) -> bool:
    """Whether every run finished in time, and no check failed."""
    is_whole = report["runs"] > 0 and report["finished"] == report["runs"] and report["final_identical"]
    return bool(is_whole) and not any(report[name] for name in (*_MUST_BE_ZERO, "problems"))


def _figures(
    judgements: list[Judgement], outcome: Outcome, *, stuck: list[str], left: list[str], has_reference: bool
) -> dict[str, Any]:
    different = [each.run_id for each in judgements if each.is_finished and not each.is_identical]
    return {
        "runs": len(judgements),
        "faults": dict(sorted(outcome.faults.items())),
        "finished": sum(each.is_finished for each in judgements),
        "late": sum(each.late_seconds > 0 for each in judgements),
        "commits_lost": sum(each.commits_lost for each in judgements),
        "doubled_steps": sum(each.doubled_steps for each in judgements),
        "final_identical": has_reference and not different,
        "stuck": len(stuck),
        "processes_left": len(left),
        "faults_applied": outcome.faults.total(),
        "kinds_applied": len(outcome.faults),
        "skipped": dict(sorted(Counter(outcome.skipped).items())),
        "attempts": sum(each.attempts for each in judgements),
        "commits": sum(each.commits for each in judgements),
        "different_runs": different,
        "stuck_runs": stuck,
        "left": left,
    }


@contextmanager
def _temporary_files_in(folder: Path) -> Iterator[None]:
    """Processes that are started in the block use this folder for temporary files, because torch and Prefect leave some
    behind."""
    folder.mkdir()
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["TMPDIR"]
        if before is not None:
            os.environ["TMPDIR"] = before


def _undisturbed(folder: Path) -> dict[str, str]:
    """Digests of all state of an undisturbed run."""
    place = FolderPlace(folder / "undisturbed", is_mounted=False)
    spec = spec_of(0, place, pause_seconds=0.0)
    run_here(spec, open_run(spec, clock=SystemClock()), on_line=lambda _: None)
    judge = RunJudge(spec, lambda: RunLog(LocalStore(folder / "undisturbed" / "store"), spec.run_id))
    return judge.final_state()


def _judged(judge: RunJudge, run_id: str, expected: dict[str, str]) -> Judgement:
    try:
        return judge.finish(expected)
    except StoreError as error:
        return Judgement(run_id, problems=[f"its log cannot be read: {error}"])


def _keep_logs(world: World, target: Path, timeline: Timeline) -> None:
    """Copy the files that explain a failure."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "timeline.txt").write_text("\n".join(timeline.lines) + "\n")
    for file in world.stack.logs.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    for run in world.runs:
        lines = [f"{slot.number} {slot.entry.model_dump_json()}" for slot in run.log.slots]
        (target / f"{run.spec.run_id}.log").write_text("\n".join(lines) + "\n")
