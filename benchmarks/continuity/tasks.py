"""Parts of the matrix that one process makes: a reference attempt, and the resumes that begin with this attempt."""

from __future__ import annotations

import math
import random
import shutil
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.continuity.controls import CONTROLS, RESUME_STEP, WINDOW_STEPS, Control
from benchmarks.continuity.edits import EDIT_KINDS
from benchmarks.continuity.faults import Kind, NotApplicableError
from benchmarks.continuity.optimizers import OPTIMIZER_KINDS, SCHEDULE_KINDS
from benchmarks.continuity.recipes import FEATURES
from benchmarks.continuity.rules import AFTER_STEPS, has_outlier, is_mean_worse, windows
from benchmarks.continuity.states import EXTRA_KINDS, MODE_KINDS, STREAM_KINDS, WEIGHT_KINDS
from benchmarks.continuity.trial import RUN_ID, Watched, make_attempt, newest_parent, spec_of
from benchmarks.crash import leftovers
from segue.records import CheckpointRef, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import LocalStore

KINDS: tuple[Kind, ...] = (
    *OPTIMIZER_KINDS,
    *SCHEDULE_KINDS,
    *STREAM_KINDS,
    *WEIGHT_KINDS,
    *MODE_KINDS,
    *EXTRA_KINDS,
    *EDIT_KINDS,
)
_REFUSED, _RAISED = "refused", "raised"
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it


@dataclass(frozen=True)
class Outcome:
    """The outcome of one resume."""

    name: str
    """Name of the kind of fault, or of the control."""
    model: str
    optimizer: str
    seed: int
    step: int
    verdict: str
    """Verdict of the resume. `refused`: the recipe was not restored. `raised`: a step raised before a verdict, which
    counts as not detected. `none`: nothing was judged."""
    component: str | None = None
    """Component of the first finding."""
    found_at: int | None = None
    """Step of the first finding; None: before the first step."""
    commits: int = 0
    is_advised: bool = False
    """Whether the first finding has a fix."""
    is_as_expected: bool = True
    """For a control, whether the verdict is as expected. For a fault, whether the finding has one of the right
    names."""
    is_mean_worse: bool | None = None
    has_outlier: bool | None = None
    seconds: float = 0.0

    @property
    def is_detected(self) -> bool:
        return self.verdict in {VerdictKind.BROKEN, _REFUSED}


@dataclass(frozen=True)
class FaultyTask:
    """One reference attempt, and one resume from it for each kind. All attempts have the same config."""

    model: str
    optimizer: str
    seed: int
    step: int
    kinds: tuple[str, ...]

    def run(self) -> list[Outcome]:
        chosen = [kind for kind in KINDS if kind.name in self.kinds]
        with tempfile.TemporaryDirectory(prefix="segue-continuity-", dir=workplace()) as name:
            folder = Path(name)
            config = {"model": self.model, "optimizer": self.optimizer, **chosen[0].config}
            spec = spec_of(config, seed=self.seed)
            reference = make_attempt(folder / "whole", spec, segment=0, stop_step=self.step)
            outcomes = [self._resume(folder, kind, reference, config) for kind in chosen]
        return [outcome for outcome in outcomes if outcome is not None]

    def _resume(self, folder: Path, kind: Kind, reference: Watched, config: Mapping[str, Any]) -> Outcome | None:
        """Return the outcome; None if the fault changes nothing."""
        started = time.monotonic()
        shutil.copytree(folder / "whole", folder / "trial")
        try:
            parent = newest_parent(folder / "trial")
            spec = spec_of(config, seed=self.seed)
            stop_step = parent.step + WINDOW_STEPS
            watched = make_attempt(
                folder / "trial",
                spec,
                segment=1,
                stop_step=stop_step,
                parent=parent,
                fault=kind.fault,
                older=reference.older,
            )
        finally:
            shutil.rmtree(folder / "trial")
        failure = watched.report.failure if watched.report is not None else None
        if failure is not None and failure.type.endswith(NotApplicableError.__name__):
            return None
        seconds = time.monotonic() - started
        outcome = _outcome(self, kind.name, parent, reference.losses, watched, seconds=seconds)
        return replace(outcome, is_as_expected=outcome.component in kind.components)


@dataclass(frozen=True)
class CleanTask:
    """One run that is resumed repeatedly, as on spot capacity."""

    model: str
    optimizer: str
    seed: int
    control: str
    rounds: int

    def run(self) -> list[Outcome]:
        control = next(control for control in CONTROLS if control.name == self.control)
        config = {"model": self.model, "optimizer": self.optimizer, **control.config(self.model)}
        outcomes = []
        with tempfile.TemporaryDirectory(prefix="segue-continuity-", dir=workplace()) as name:
            folder = Path(name) / "store"
            first = spec_of(config, seed=self.seed)
            losses = dict(make_attempt(folder, first, segment=0, stop_step=RESUME_STEP - control.ends_before).losses)
            specs = [spec_of(config, seed=self.seed, threads=threads) for threads in (1, control.threads)]
            # Damage needs a checkpoint before the newest one.
            for number in range(1, self.rounds + 1 + control.damages_newest):
                outcome = self._round(folder, control, number, spec=specs[number % 2], losses=losses)
                if number > control.damages_newest:
                    outcomes.append(outcome)
        return outcomes

    def _round(self, folder: Path, control: Control, number: int, *, spec: Any, losses: dict[int, float]) -> Outcome:
        started = time.monotonic()
        parent = newest_parent(folder)
        if control.damages_newest and number > 1:
            parent = _damage_newest(folder, chance=random.Random(f"{self.seed} {number}"))
        watched = make_attempt(
            folder, spec, segment=number, stop_step=newest_parent(folder).step + WINDOW_STEPS, parent=parent
        )
        outcome = _outcome(self, control.name, parent, losses, watched, seconds=time.monotonic() - started)
        losses.update(watched.losses)
        return replace(outcome, is_as_expected=outcome.verdict == control.expected)


Task = FaultyTask | CleanTask


def features_of(model: str, optimizer: str) -> frozenset[str]:
    return FEATURES[model] | FEATURES[optimizer]


def workplace() -> Path | None:
    """A folder in memory, if the system has such a folder, because the benchmark does not measure the disk."""
    return _MEMORY if _MEMORY.is_dir() else None


def run_task(task: Task) -> list[Outcome]:
    """Make a task in a process of the pool."""
    return task.run()


def seed_of(*words: object) -> int:
    """A seed that is the same in every process and every session."""
    return zlib.crc32(" ".join(map(str, words)).encode())


def _outcome(
    task: Task, name: str, parent: CheckpointRef, old: Mapping[int, float], watched: Watched, *, seconds: float
) -> Outcome:
    last = watched.history.attempts[-1]
    verdict, component, found_at, fix = "none", None, None, ""
    if last.verdict is not None:
        verdict = last.verdict.kind.value
        if last.verdict.findings:
            first = last.verdict.findings[0]
            component, found_at, fix = first.component, first.step, first.fix
    elif watched.report is not None and watched.report.failure is not None:
        failure = watched.report.failure
        verdict, component = _RAISED if watched.was_restored else _REFUSED, failure.type
        fix = failure.message.partition("Fix:")[2]
    until = parent.step
    before, after = windows(
        {n: loss for n, loss in old.items() if n <= until} | watched.losses, parent_step=parent.step
    )
    is_seen = len(after) == AFTER_STEPS or any(map(math.isnan, after))
    return Outcome(
        name=name,
        model=task.model,
        optimizer=task.optimizer,
        seed=task.seed,
        step=parent.step,
        verdict=verdict,
        component=component,
        found_at=found_at,
        commits=len(last.commits),
        is_advised=bool(fix),
        is_mean_worse=is_mean_worse(before, after) if is_seen else None,
        has_outlier=has_outlier(before, after) if is_seen else None,
        seconds=seconds,
    )


def _damage_newest(folder: Path, *, chance: random.Random) -> CheckpointRef:
    """Damage the newest checkpoint, and return the previous checkpoint."""
    store = LocalStore(folder).create()
    usable = read_history(RunLog(store, RUN_ID)).usable
    leftovers.damage(store, RUN_ID, usable[-1], chance=chance)
    return usable[-2].ref
