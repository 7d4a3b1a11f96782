"""One faulty or clean resume, made by the code of every attempt. Only this module adds faults."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.continuity.faults import EditedComponent, Fault, Live
from benchmarks.continuity.recipes import RECIPE, edited
from benchmarks.continuity.rules import AFTER_STEPS
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.continuity.witness import StepRow
from segue.data.loader import Feed
from segue.errors import BrokenResumeError
from segue.launch.assignment import Assignment
from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.recipe import Recipe
from segue.recipe_check import built_recipe
from segue.records import Capacity, CheckpointRef, SegmentPlan, SegmentReport
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore
from segue.trainer import attempt
from segue.trainer.resuming.resume import Resume
from segue.trainer.workloads import live_recipe
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.state import capture
from segue.trainer.workloads.steps.step import begin_step

RUN_ID = "run"
_STEPS = 1_000_000
"""Goal of the attempts, which no attempt of the benchmark reaches."""
KEPT_AGO = (1, 10)
"""Number of last steps of an attempt whose state is kept, for faults that restore an older state."""


@dataclass
class Watched:
    """The observations of an attempt."""

    losses: dict[int, float] = field(default_factory=dict)
    older: dict[int, Snapshot] = field(default_factory=dict)
    metric: float | None = None
    """Result of `evaluate` at the end."""
    report: SegmentReport | None = None
    was_restored: bool = False
    history: History = field(default_factory=History)


@dataclass(frozen=True)
class _Older(Mapping[int, Mapping[str, Any]]):
    """Kept states as trees. Each access decodes new copies."""

    kept: Mapping[int, Snapshot]

    def __getitem__(self, steps_ago: int) -> Mapping[str, Any]:
        snapshot = self.kept[steps_ago]
        copies = {name: tensor.clone() for name, tensor in snapshot.tensors.items()}
        return {name: decode_tree(skeleton, copies) for name, skeleton in snapshot.skeletons.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self.kept)

    def __len__(self) -> int:
        return len(self.kept)


def nothing(step: int) -> None:
    """A function that is called at a safe point of an attempt."""


class _Board(NoticeBoard):
    """Gives a notice at a step, so that an attempt ends there in order."""

    def __init__(self, watched: Watched, *, stop_step: int, at_step: Callable[[int], None] = nothing) -> None:
        super().__init__(SystemClock())
        self._watched, self._stop_step, self._at_step = watched, stop_step, at_step
        self.progress = Progress()
        self.farthest = Progress()
        """Position of the live objects, including witness steps after the last commit."""
        self.components: Mapping[str, Component] = {}

    @property
    def is_empty(self) -> bool:
        return False  # Every safe point is looked at closely: an attempt ends at its step.

    @property
    def first_kind(self) -> str | None:
        # The training loop asks for it at each safe point, and nothing else does.
        ago = self._stop_step - self.progress.step
        if ago in KEPT_AGO and ago not in self._watched.older:
            self._watched.older[ago] = take(capture(self.components))
        self._at_step(self.progress.step)
        if ago <= 0:
            self.leave("bench", grace_seconds=NO_KILL_COMING_SECONDS)
        return super().first_kind


def spec_of(config: Mapping[str, Any], *, seed: int, threads: int = 1) -> RunSpec:
    return RunSpec.parse(
        {
            "run_id": RUN_ID,
            "recipe": RECIPE,
            "steps": _STEPS,
            "config": dict(config),
            "seed": seed,
            "threads": threads,
            "device": "cpu",
            # Never by the number of steps: an attempt commits where it ends.
            "checkpoints": {"every_steps": _STEPS},
            "liveness": {"heartbeat_seconds": 3600.0},
            # Each attempt here is a rehearsal itself.
            "continuity": {"rehearsal": "off"},
        }
    )


class NothingCommittedError(Exception):
    """An attempt that should have ended with a checkpoint has none. The error shows the attempt's report."""


def newest_parent(folder: Path) -> CheckpointRef:
    """The newest checkpoint of the run in `folder`.

    Raises:
        NothingCommittedError: the run has no checkpoint.
    """
    history = read_history(_log(folder))
    if history.newest is None:
        failures = [report.failure.traceback for report in history.reports if report.failure]
        raise NothingCommittedError("\n".join(failures) or "no attempt has reported a failure")
    return history.newest.ref


def make_attempt(
    folder: Path,
    spec: RunSpec,
    *,
    segment: int,
    stop_step: int,
    parent: CheckpointRef | None = None,
    fault: Fault | None = None,
    older: Mapping[int, Snapshot] | None = None,
    is_judged: bool = True,
    goes_on: bool = True,
    at_step: Callable[[int], None] = nothing,
    measures: bool = False,
) -> Watched:
    """Make one attempt in the store `folder` until it has done `stop_step`, and watch it.

    After the verdict `broken`, training of the live objects continues without segue, so that losses can be compared, if
    the caller permits this. Without `is_judged`, the attempt trains from the parent even if state was lost. `at_step`
    is called at each safe point. With `measures`, the attempt ends with a call of `evaluate`.

    Raises:
        NotApplicableError: the fault changes nothing in this resume.
    """
    fault, watched = fault or Fault(), Watched()
    live = Live(recipe=None, older=_Older(older or {}), seed=spec.seed)  # type: ignore[arg-type]

    def watch(step: int) -> None:
        at_step(step)
        if measures and step >= stop_step and watched.metric is None and live.recipe.evaluate is not None:
            live.recipe.model.eval()
            watched.metric = live.recipe.evaluate(live.recipe.model)
            live.recipe.model.train()

    board = _Board(watched, stop_step=stop_step, at_step=watch)
    plan = SegmentPlan(
        segment=segment, attempt=1, capacity=Capacity.SPOT, deployment="bench", parent=parent, at_most=parent
    )
    store = LocalStore(folder).create()
    with edited(**fault.edit), _faulty(fault, live, watched, board, is_judged=is_judged) as feeds:
        with suppress(BrokenResumeError):
            watched.report = attempt.run_attempt(
                Assignment(spec=spec, plan=plan),
                runlog=RunLog(store, RUN_ID),
                board=board,
                clock=SystemClock(),
                shards=InlineWriter([store]),
            )
        if parent is not None and watched.was_restored and goes_on:
            _go_on(live.recipe, feeds[0], watched, seen=board.farthest, until_step=parent.step + AFTER_STEPS)
    watched.history = read_history(_log(folder))
    return watched


@contextmanager
def _faulty(fault: Fault, live: Live, watched: Watched, board: _Board, *, is_judged: bool) -> Iterator[list[Feed]]:
    """Apply the fault to the attempt in this block, and record its observations."""
    feeds: list[Feed] = []

    def built(*args: Any, **names: Any) -> Recipe:
        live.recipe = built_recipe(*args, **names)
        if fault.built is not None:
            fault.built(live.recipe)
        return live.recipe

    def fed(*args: Any, **names: Any) -> Feed:
        feeds.append(Feed(*args, **names))
        if fault.fed is not None:
            fault.fed(feeds[0])
        return feeds[0]

    class FaultyResume(Resume):
        def restore(self, components: Mapping[str, Component]) -> None:
            live.components = board.components = components
            progress = components["progress"]
            assert isinstance(progress, Progress)
            board.progress = progress
            wrapped = {
                name: EditedComponent(name, inner, fault.trees[name], live) if name in fault.trees else inner
                for name, inner in components.items()
            }
            super().restore(wrapped)
            watched.was_restored = True
            if fault.restored is not None:
                fault.restored(live)

        def check_state(self, *args: Any, **names: Any) -> None:
            board.farthest = replace(board.progress)
            super().check_state(*args, **names)
            if fault.checked is not None:
                fault.checked(live)

        def add_replayed(self, row: StepRow) -> None:
            watched.losses[row.step] = row.loss
            board.farthest = replace(board.progress)
            was_pending, is_first = self.is_pending, len(watched.losses) == 1
            super().add_replayed(row)
            if fault.replayed is not None and was_pending and is_first:
                fault.replayed(live)

    class UnjudgedResume(FaultyResume):
        is_pending = False

        def check_state(self, *args: Any, **names: Any) -> None:
            board.farthest = replace(board.progress)
            if fault.checked is not None:
                fault.checked(live)

        def add_replayed(self, row: StepRow) -> None:
            watched.losses[row.step] = row.loss

        def settle(self) -> None:
            pass

    with (
        mock.patch.multiple(live_recipe, built_recipe=built, Feed=fed),
        mock.patch.object(attempt, "Resume", FaultyResume if is_judged else UnjudgedResume),
    ):
        yield feeds


def _go_on(recipe: Recipe, feed: Feed, watched: Watched, *, seen: Progress, until_step: int) -> None:
    """Continue to train the live objects from their current state."""
    batches = feed.batches(seen.samples_seen)
    for step in range(seen.step + 1, until_step + 1):
        try:
            watched.losses[step] = begin_step(recipe, [next(batches).content], step=step).read().outcome.loss
        except Exception:
            watched.losses[step] = math.nan  # A traceback is not overlooked.
            return


def _log(folder: Path) -> RunLog:
    return RunLog(LocalStore(folder).create(), RUN_ID)
