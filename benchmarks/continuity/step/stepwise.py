"""A real attempt whose steps are made one at a time, so that each step can be measured."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.continuity.tasks import workplace
from benchmarks.continuity.trial import RUN_ID
from segue.checkpoints.saving.committer import Writer
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.notices.board import NoticeBoard
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore
from segue.trainer import attempt
from segue.trainer.workloads.base import StepDue, StepMade, Steps
from segue.trainer.workloads.live_recipe import LiveRecipe

WITNESS_STEPS = 8


class StepKind(StrEnum):
    """The work of a step in addition to training."""

    PLAIN = "plain"
    NORMS = "norms"
    """The step measures norms, as one of `NORMS_EVERY_STEPS` steps does."""
    WITNESS = "witness"
    """The step's row is kept as a witness row. There are eight such steps after each commit."""
    LAST = "last"
    """The step is the last of the eight witness steps."""
    SAVING = "saving"
    """A save follows the step."""


Step = Callable[[], StepKind]
"""A function that makes the step and all work of the loop until the next step is due. It returns the kind of the
step."""
Visit = Callable[[LiveRecipe, Step], object]


class Stored:
    """The content of an attempt's store after its end."""

    def __init__(self, runlog: RunLog) -> None:
        found = runlog.store.list_objects(f"{runlog.run_id}/")
        self.curve_bytes = sum(item.size_bytes for item in found if item.key.endswith(".parquet"))
        self.entries = [slot.entry for slot in runlog.reload().slots]


def attempt_by_steps(spec: RunSpec, visit: Visit) -> Stored:
    """Make an attempt in a separate store, and call `visit` for each step. `visit` must make the step. The thread that
    commits is idle at the start of each visit.
    """
    writers: list[Writer] = []

    class KnownWriter(Writer):
        def __init__(self, *args: Any, **names: Any) -> None:
            super().__init__(*args, **names)
            writers.append(self)

    def driven(steps: Steps, make: Callable[[StepDue], StepMade]) -> StopReason:
        live: LiveRecipe = make.__self__  # type: ignore[attr-defined]
        due, witnessed = next(steps), 0

        def step() -> StepKind:
            nonlocal due, witnessed
            made_for, due = due, steps.send(make(due))
            if not made_for.needs_fingerprints:
                witnessed = 0
                kind = StepKind.NORMS if made_for.needs_norms else StepKind.PLAIN
                return StepKind.SAVING if due.needs_fingerprints else kind
            witnessed += 1
            return StepKind.LAST if witnessed == WITNESS_STEPS else StepKind.WITNESS

        try:
            while True:
                writers[0].wait()
                visit(live, step)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="segue-continuity-", dir=workplace()) as name:
        store = LocalStore(Path(name)).create()
        runlog = RunLog(store, RUN_ID)
        plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.SPOT, deployment="bench")
        with mock.patch.multiple(attempt, driven=driven, Writer=KnownWriter):
            attempt.run_attempt(
                Assignment(spec=spec, plan=plan),
                runlog=runlog,
                board=NoticeBoard(clock),
                clock=clock,
                shards=InlineWriter([store]),
            )
        return Stored(runlog)
