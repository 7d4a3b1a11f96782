"""A program's current step. It has the inputs of the step, and after the step is made, the numbers of the step."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from segue.continuity.fingerprints import batch_fingerprint, input_fingerprint, streams_fingerprint
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.trainer.programs.batches import SessionBatch
from segue.trainer.programs.step_measures import Measures
from segue.trainer.ranks.collectives import Ranks
from segue.trainer.ranks.consensus import StepNumbers, combined
from segue.trainer.workloads.base import LateStep, StepDue, StepMade
from segue.trainer.workloads.components import Component, Progress
from segue.trainer.workloads.state import RNG_PREFIX
from segue.trainer.workloads.steps.step_result import row_of

_NO_IDS = np.zeros(0, np.uint64)


class StepInProgress:
    """The step that is in progress. There is one step at a time. It is opened at a safe point, and closed at the next
    safe point."""

    def __init__(
        self, progress: Progress, *, components: Mapping[str, Component], measures: Measures, ranks: Ranks
    ) -> None:
        self._progress, self._components = progress, components
        self._measures, self._ranks = measures, ranks
        self._opened: tuple[StepDue, Prelude, SessionBatch | None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self._opened is not None

    def open(self, due: StepDue, batch: SessionBatch | None, *, compare_state: bool) -> None:
        """Begin the due step. If the comparison of its inputs with the run raises an error, no step begins."""
        prelude = self._prelude(batch, with_fingerprints=due.needs_fingerprints)
        due.check(prelude, compare_state=compare_state)
        self._opened = due, prelude, batch
        self._measures.begin(with_norms=due.needs_norms)

    def close(self, *, epoch: int) -> StepMade | LateStep | None:
        """Close the open step, and return its outcome, with this epoch. Return None if no step is open."""
        if self._opened is None:
            return None
        (due, prelude, batch), progress, ranks = self._opened, self._progress, self._ranks
        measured = self._measures.outcome(prelude.step)
        self._opened = None
        ids = batch.ids if batch is not None else _NO_IDS
        # If the samples of a step are unknown, the step counts as one sample.
        start, samples = progress.samples_seen, max(len(ids), 1)

        def read(*, alone: bool = False) -> StepMade:
            outcome, metrics = measured.read()
            row = row_of(prelude, outcome) if alone else _row_on(ranks, prelude, outcome)
            return StepMade(row, start, samples, ids, epoch, metrics)

        is_late = measured.is_late and due.may_be_late
        return LateStep(start, samples, read, partial(read, alone=True)) if is_late else read()

    def _prelude(self, batch: SessionBatch | None, *, with_fingerprints: bool) -> Prelude:
        step = self._progress.step + 1
        if not with_fingerprints:
            return Prelude(step, "", "", None)
        held = {name: c.capture() for name, c in self._components.items() if name.startswith(RNG_PREFIX)}
        ids = batch_fingerprint(batch.ids) if batch is not None and len(batch.ids) else ""
        content = input_fingerprint(batch.content) if batch is not None else ""
        # The row is the same on every rank, like the rows of a recipe.
        streams = streams_fingerprint(held) if self._ranks.count == 1 else None
        return Prelude(step, ids, content, streams)


def _row_on(ranks: Ranks, prelude: Prelude, outcome: StepNumbers) -> StepRow:
    """Make the row of a step; the row is equal on every rank."""
    if ranks.count > 1:
        fingerprints = (prelude.batch_fingerprint, prelude.input_fingerprint)
        outcome, (samples, content) = combined(ranks, outcome, weight=1.0, fingerprints=fingerprints)
        prelude = prelude._replace(batch_fingerprint=samples, input_fingerprint=content)
    return row_of(prelude, outcome)
