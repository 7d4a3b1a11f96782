"""The non-determinism axis: clean resumes under noise, and lost state under the same noise."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.continuity.blind.alone import FIRST_STOP, rehearsed
from benchmarks.continuity.blind.cases import WINDOW_STEPS, Axis, Case
from benchmarks.continuity.blind.outcome import BlindOutcome
from benchmarks.continuity.blind.trial import (
    Bench,
    is_named_at_commit,
    outcome_of,
    parent_of,
    with_finding,
    without_parent,
    workplace,
)
from benchmarks.continuity.blind.world import new_world
from segue.clock import SystemClock
from segue.continuity.noise import UNIT, needs_more
from segue.launch.assignment import Assignment
from segue.records import Capacity, SegmentPlan, VerdictKind
from segue.runlog.history import Checkpoint
from segue.trainer import rehearsal_main
from segue.trainer.replays.fresh import FreshProcesses, Replays
from segue.trainer.replays.replay import replay

NOISY = "benchmarks.continuity.scripts.noisy:with_noise"
LEVELS: dict[str, dict[str, Any]] = {
    "noise of 1e-7": {"size": 1e-7},
    "noise of 1e-5": {"size": 1e-5},
    "noise of 1e-3": {"size": 1e-3},
    "noise of 1e-3, bf16": {"size": 1e-3, "is_bf16": True},
}
"""Relative errors of the gradients. The errors differ in each step of each process."""


@dataclass(frozen=True)
class NoisyRun:
    """Make a first attempt with its rehearsal, which measures the noise, and then clean resumes."""

    case: Case
    rounds: int
    seed: int = 0

    def run(self) -> list[BlindOutcome]:
        with tempfile.TemporaryDirectory(prefix="segue-noise-", dir=workplace()) as name:
            bench = Bench(self.case, Path(name), self.seed, rehearsal="warn")
            first = bench.attempt("store", number=0, stop_step=FIRST_STOP, at_step=rehearsed(bench))
            if first.history.newest is None:
                return [without_parent(self.case, first)]
            drill = first.history.drills[0].verdict.kind.value if first.history.drills else None
            found = [self._clean(bench, number) for number in range(1, self.rounds + 1)]
        return [replace(each, noise=self.case.name, drill=drill) for each in found]

    def _clean(self, bench: Bench, number: int) -> BlindOutcome:
        started = time.monotonic()
        newest = bench.history("store").newest
        assert newest is not None
        stop_step = newest.ref.step + WINDOW_STEPS + 1  # After a notice nobody would be asked for an opinion.
        watched = bench.attempt("store", number=number, stop_step=stop_step, parent=newest.ref)
        return replace(outcome_of(self.case, watched), seconds=time.monotonic() - started)


def lost_under_noise(case: Case, *, seed: int = 0) -> list[BlindOutcome]:
    """Make the rehearsal of a script that loses state, at each level of noise. A script whose loss is not detected
    without noise loses nothing within the window, and counts at no level.
    """
    is_loss = _rehearsed(case, {"size": 0.0}, seed=seed).is_found
    return [
        replace(_rehearsed(case, level, seed=seed), noise=name, acts_after=1 if is_loss else None)
        for name, level in LEVELS.items()
    ]


def _rehearsed(case: Case, level: dict[str, Any], *, seed: int) -> BlindOutcome:
    """The verdict of the rehearsal. Its fresh processes are new worlds in this process, because the start of real
    processes would take minutes."""
    started = time.monotonic()
    case = replace(case, recipe=NOISY, config={"of": case.recipe, **level})
    made = BlindOutcome(case.name, Axis.NOISE, "none")
    with tempfile.TemporaryDirectory(prefix="segue-noise-", dir=workplace()) as name:
        bench = Bench(case, Path(name), seed)
        whole = bench.attempt("store", number=0, stop_step=FIRST_STOP)
        parent = parent_of(whole.history)
        checkpoint = next((each for each in whole.history.usable if parent is not None and each.ref == parent), None)
        if checkpoint is None:
            return without_parent(case, whole)
        verdict = _verdict_of_rehearsal(case, bench, checkpoint)
        early = is_named_at_commit(replace(case, axis=Axis.UNREGISTERED), bench.log("store"))
    made = replace(made, verdict=verdict.kind.value, is_named_at_commit=early, seconds=time.monotonic() - started)
    return with_finding(case, made, verdict.findings[0]) if verdict.kind is VerdictKind.BROKEN else made


def _verdict_of_rehearsal(case: Case, bench: Bench, checkpoint: Checkpoint) -> Any:
    spec = bench.spec("store")
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="bench")
    assignment = Assignment(spec=spec, plan=plan)
    worlds = iter(range(1, 1000))

    def replays(processes: FreshProcesses, *, own: Any, is_own_fresh: bool) -> Replays:
        rows: list[Any] = []
        unit = UNIT
        while needs_more(rows, attempt=own, is_attempt_fresh=is_own_fresh):
            with new_world(case, bench.folder / "scratch", attempt=next(worlds)):
                steps = processes.request.steps
                made = replay(assignment, bench.log("store"), checkpoint, steps=steps, with_formats=True)
            rows.append(made.rows)
            unit = max(unit, made.unit)
        return Replays(tuple(rows), True, unit)

    with (
        mock.patch.object(FreshProcesses, "replays", replays),
        mock.patch.object(FreshProcesses, "has_other_kernels", return_value=False),
        new_world(case, bench.folder / "scratch", attempt=next(worlds)),
    ):
        return rehearsal_main.rehearse(assignment, bench.log("store"), checkpoint, clock=SystemClock()).verdict
