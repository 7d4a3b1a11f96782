"""The drill: train once without interruption, once with SIGKILLs, and compare the two final states bit for bit."""

from __future__ import annotations

import logging
import random
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from segue.clock import Clock, SystemClock
from segue.continuity.recipe_diff import UNTRACKED
from segue.controller.local_run import run_here
from segue.controller.steps import open_run
from segue.errors import DrillFailedError
from segue.launch.launcher import Trainer
from segue.launch.output import Line
from segue.recipe import import_build, users_line
from segue.records import CodeFailure, Record, SegmentPlan, Verdict, VerdictKind
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.sessions import require_program
from segue.spec import CheckpointSpec, LivenessSpec, RunSpec, StoreSpec

log = logging.getLogger(__name__)

_LINES_KEPT = 20
_BUDGETS = ("max_failures", "max_transient_failures", "max_out_of_memory", "max_hung")

Progress = Callable[[str, int], None]
"""Called while the drill works, with the name of a run (reference or killed) and the step it has committed."""


def _no_progress(run: str, step: int) -> None:
    return


class DrillReport(Record):
    """What a drill found."""

    recipe: str
    steps: int
    kills: int = Field(description="Kills that really hit a training attempt.")
    identical: bool = Field(description="Every component of the two final checkpoints is equal bit for bit.")
    verdict: VerdictKind = Field(description="The worst verdict of all resumes; unverified when none was needed.")
    verdicts: tuple[Verdict, ...]
    differing: tuple[str, ...] = Field((), description="Components in which the two final checkpoints differ.")
    ended: str = Field(description="Why the killed run ended; anything but finished is itself a finding.")
    failure: CodeFailure | None = Field(None, description="What the recipe raised in the killed run, if it did.")
    seconds: float

    @property
    def passed(self) -> bool:
        """Resumes were made and all of them continued the run."""
        good = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
        return self.kills > 0 and self.identical and self.verdict in good


class _Output:
    """What the training processes print: into the log, and the last lines of it kept."""

    def __init__(self) -> None:
        self.last: deque[str] = deque(maxlen=_LINES_KEPT)

    def __call__(self, line: Line) -> None:
        log.info("%s", line.text)
        self.last.append(line.text)


@dataclass
class _Observer:
    """Reports how far the run has come."""

    progress: Callable[[int], None]

    def __call__(self, trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
        self.progress(read_history(runlog).committed_step)


@dataclass
class _Killer:
    """Kills the trainer once each of its targets is committed, at a random moment at which there is a witness.

    Near a target the trainer runs in slices of milliseconds, and is killed between two of them if its newest commit is
    sealed: a fast recipe can then neither slip through nor be hit between a commit and its seal, where a kill proves
    less. What it computes does not depend on how it is sliced.
    """

    targets: list[int]
    chance: random.Random
    every_steps: int
    progress: Callable[[int], None]
    kills: int = 0

    def __call__(self, trainer: Trainer, runlog: RunLog, plan: SegmentPlan) -> None:
        history = read_history(runlog)
        self.progress(history.committed_step)
        is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
        if not self.targets or not is_claimed or history.committed_step < self.targets[0] - self.every_steps:
            return
        trainer.freeze()
        while not self._is_due(runlog, plan):
            trainer.thaw()
            SystemClock().sleep(self.chance.uniform(0.001, 0.004))
            if trainer.poll() is not None:
                return
            trainer.freeze()
        del self.targets[0]
        trainer.kill()
        self.kills += 1

    def _is_due(self, runlog: RunLog, plan: SegmentPlan) -> bool:
        history = read_history(runlog)
        newest = history.newest
        if newest is None or newest.manifest.step < self.targets[0] or not newest.rows:
            return False
        attempt = history.attempt_of(plan.segment, plan.attempt)
        return attempt is not None and newest.ref in attempt.commits


def drill(recipe: str, *, config: Mapping[str, Any] | None = None, steps: int = 90, kills: int = 2) -> DrillReport:
    """Train `recipe` twice for `steps` steps, once with `kills` SIGKILLs, and compare the two final states.

    `recipe` is package.module:function, found from the current folder; `config` is what the function gets. Both runs
    use processes and a temporary folder of their own. Blocks until both have ended; see `DrillReport.passed`.

    Raises:
        SpecError, RecipeError: it cannot be drilled as asked; nothing was started.
        DrillFailedError: the recipe does not reach its goal even without a kill; shows what it raised, and where.
    """
    fields = {"run_id": "drill", "recipe": recipe, "steps": steps, "config": dict(config or {})}
    return drill_spec(RunSpec.parse(fields, source="the call of segue.drill"), kills=kills)


def drill_spec(
    spec: RunSpec, *, kills: int, progress: Progress = _no_progress, folder: Path | None = None
) -> DrillReport:
    """Run `spec` twice, the second time with `kills` SIGKILLs, and report whether the resumes continued the run.

    Works in `folder` (a temporary one by default), never in the spec's own store.

    Raises:
        RecipeError, ProgramError: there is no such recipe or program; nothing was started.
        DrillFailedError: it does not reach its goal even without a kill.
    """
    if spec.program is not None:
        require_program(spec.program.command)
    else:
        import_build(spec.recipe_path)
    clock: Clock = SystemClock()
    started = clock.monotonic()
    with _folder(folder) as where:
        reference = _prepared(spec, Path(where), "reference", kills=kills)
        runlog = open_run(reference, clock=clock)
        output = _Output()
        ended = run_here(reference, runlog, on_line=output, watch=_Observer(lambda step: progress("reference", step)))
        whole = _final(read_history(runlog), reference, why=ended.reason, output=output)

        killed = _prepared(spec, Path(where), "killed", kills=kills)
        runlog = open_run(killed, clock=clock)
        every = _interval(spec, kills)
        targets = [every * (n + 1) for n in range(kills)]
        killer = _Killer(targets, random.Random(spec.seed), every, lambda step: progress("killed", step))
        ended = run_here(killed, runlog, on_line=_Output(), watch=killer)
        history = read_history(runlog)
    verdicts = tuple(attempt.verdict for attempt in history.attempts if attempt.verdict is not None)
    finished = history.newest if ended.action == "finished" else None
    differing = _differing(whole, finished) if finished else ()
    failure = _failure(history) if ended.action == "failed" else None
    return DrillReport(
        recipe=spec.workload,
        steps=spec.steps,
        kills=killer.kills,
        identical=finished is not None and not differing,
        verdict=_worst(verdicts),
        verdicts=verdicts,
        differing=differing,
        ended="finished" if finished is not None else f"{ended.action}: {_in_words(failure) or ended.reason}",
        failure=failure,
        seconds=round(clock.monotonic() - started, 2),
    )


def _prepared(spec: RunSpec, folder: Path, name: str, *, kills: int) -> RunSpec:
    return spec.model_copy(
        update={
            "run_id": name,
            "store": StoreSpec(url=str(folder)),
            "deadline": None,
            "checkpoints": CheckpointSpec(every_steps=_interval(spec, kills), keep=spec.checkpoints.keep),
            "liveness": LivenessSpec(heartbeat_seconds=0.2),
            "continuity": spec.continuity.model_copy(update={"rehearsal": "off"}),  # This is one.
            "policy": spec.policy.model_copy(update=dict.fromkeys(_BUDGETS, 1)),
        }
    )


def _interval(spec: RunSpec, kills: int) -> int:
    # Room for a commit before each kill and one after the last.
    return max(spec.steps // (kills + 2), 1)


def _final(history: History, spec: RunSpec, *, why: str, output: _Output) -> Checkpoint:
    newest = history.newest
    if newest is None or not history.is_finished(spec):
        failure = _failure(history)
        if failure is None:
            # Processes that end without a report leave nothing but what they printed.
            raise DrillFailedError(workload=spec.workload, why=why, traceback="\n".join(output.last))
        if not _is_raised(failure):
            raise DrillFailedError(workload=spec.workload, why=failure.message, fix="")
        raise DrillFailedError(workload=spec.workload, why=_in_words(failure), traceback=failure.traceback)
    return newest


def _failure(history: History) -> CodeFailure | None:
    """What the recipe raised in the newest attempt that it ended."""
    failures = [report.failure for report in history.last_reports() if report.failure is not None]
    return failures[-1] if failures else None


def _is_raised(failure: CodeFailure) -> bool:
    """Whether the user's code raised it; a refusal of segue's has its own sentence in place of a traceback."""
    return failure.traceback != failure.message


def _in_words(failure: CodeFailure | None) -> str:
    """Type, message and the line of the user's code that raised it; a refusal of segue's as it is."""
    if failure is None:
        return ""
    if not _is_raised(failure):
        return failure.message
    place = users_line(failure.traceback)
    message = failure.message.strip().partition("\nOriginal Traceback")[0].rstrip(".")
    return f"{failure.type} at {place}: {message}" if place else f"{failure.type}: {message}"


def _differing(one: Checkpoint, other: Checkpoint) -> tuple[str, ...]:
    names = one.manifest.components.keys() | other.manifest.components.keys()
    pairs = ((name, one.manifest.components.get(name), other.manifest.components.get(name)) for name in names)
    return tuple(sorted(name for name, before, after in pairs if before != after and name != UNTRACKED))


def _worst(verdicts: tuple[Verdict, ...]) -> VerdictKind:
    order = (VerdictKind.BROKEN, VerdictKind.UNVERIFIED, VerdictKind.EQUIVALENT, VerdictKind.EXACT)
    return min((verdict.kind for verdict in verdicts), key=order.index, default=VerdictKind.UNVERIFIED)


def _folder(folder: Path | None) -> AbstractContextManager[str]:
    if folder is None:
        return tempfile.TemporaryDirectory(prefix="segue-drill-")
    folder.mkdir(parents=True, exist_ok=True)
    return nullcontext(str(folder))
