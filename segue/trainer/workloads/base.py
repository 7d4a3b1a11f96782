"""The interface between an attempt and the recipe or program that it trains, for loops of segue and of the user."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from segue.continuity.state_marks import Marks
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.curves.schema import NO_METRICS
from segue.data.order import Ids
from segue.records import Finding, Notice, StopReason
from segue.trainer.workloads.components import Component, Progress


class Check(Protocol):
    """Compares the inputs of the next step with the inputs of the same step in the previous attempt."""

    def __call__(self, prelude: Prelude, *, compare_state: bool = True) -> None:
        """With `compare_state=False`, the program's own code has run since the restore, so the state is not
        compared."""
        ...


class StepDue(NamedTuple):
    """The next step, with its requirements."""

    needs_fingerprints: bool
    """Whether the step's row becomes a witness row, or is compared with a witness row."""
    needs_norms: bool
    """Whether the step's row needs the norms of gradients and parameters."""
    check: Check
    """To be called before the step is made; raises an error if a resume differs, and then the step must not be made."""
    before_update: Callable[[], None]
    """To be called after the gradient is complete and before the state changes."""
    may_be_late: bool = False
    """Whether the step's numbers may be read one step later, to avoid waiting for an accelerator."""


class StepMade(NamedTuple):
    """A completed step. It is not counted yet, because the attempt may refuse it."""

    row: StepRow
    start: int
    """Position of the step's first sample."""
    samples: int
    """Number of samples in the step; 1 if unknown."""
    ids: Ids
    """Ids of the samples; empty if unknown."""
    epoch: int
    """Epoch of the step's samples, from 0."""
    metrics: Mapping[str, float] = NO_METRICS
    """Further metrics for the loss curve, by name."""


class LateStep(NamedTuple):
    """A completed step whose numbers have not arrived from the accelerator yet."""

    start: int
    """Position of the step's first sample."""
    samples: int
    read: Callable[[], StepMade]
    """Waits for the step's numbers and, with several ranks, for those of the other ranks. To be called once, before the
    next save."""
    read_alone: Callable[[], StepMade]
    """Waits only for the numbers of this rank, after another step has failed."""


Steps = Generator[StepDue, StepMade | LateStep | None, StopReason]
"""A generator that yields each due step, receives the completed step, and returns why the attempt ends.

If it receives None, it makes a safe point without a step: the training code reports something, or no step is left.
"""


class Workload(Protocol):
    """A recipe or program in training: its state, its position, and the functions that a save calls."""

    progress: Progress
    components: dict[str, Component]

    @property
    def has_metric(self) -> bool:
        """Whether the user has given a metric."""
        ...

    @property
    def is_metric_known(self) -> bool:
        """Whether the user's code has already computed the metric that `evaluate` returns."""
        ...

    @property
    def can_save(self) -> bool:
        """Whether the state can be captured at this safe point."""
        ...

    def is_same_everywhere(self, tensor: str) -> bool:
        """Whether all ranks hold equal values of this state tensor; if not, the values of rank 0 are saved."""
        ...

    @property
    def wants_save(self) -> bool:
        """Whether the user's code asks for a save at this safe point."""
        ...

    @property
    def is_save_of_this_step(self) -> bool:
        """Whether a due save must be made at this step, because the metric or folder belongs to this step only."""
        ...

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        """The user's function for notices; it is read once, at the start of the loop."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the next sample, from 0."""
        ...

    def steps_to_epoch(self, epoch: int) -> float:
        """Number of steps until epoch `epoch` begins."""
        ...

    def begin(self, *, is_resumed: bool) -> None:
        """Called once before the first step. `is_resumed` tells if the state was restored from a checkpoint."""
        ...

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Called after a counted step, with the position already moved; returns further metrics of the step."""
        ...

    def make_up(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Called once a resume is judged; makes the evaluation that the previous attempt still owed after its last
        step."""
        ...

    @property
    def awaits_metric(self) -> bool:
        """Whether the learning rates of the next step depend on an evaluation that `finish_step` did not make."""
        ...

    def left_out(self) -> frozenset[str]:
        """Fingerprints of the skipped batches near the current position."""
        ...

    def advance(self, start: int, count: int) -> None:
        """Move the position past a counted step, which used `count` samples from `start` on."""
        ...

    def evaluate(self) -> float:
        """Compute the user's metric. The training state does not change."""
        ...

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        """Return findings about changed state that is in none of these components; each finding is returned once.

        The record of such state is added to `trees`.
        """
        ...

    def begin_marks(self) -> Marks:
        """Begin to compute marks of the state's parts. To be called after a step, even while an accelerator still
        works."""
        ...

    def structure_changes(self) -> tuple[str, ...]:
        """Describe in words the changes of modules and optimizers that a resume would not repeat. Called at a safe
        point."""
        ...

    def parameter_norm(self) -> float:
        """Norm of all trained parameters."""
        ...

    def changed_by_optimizer(self) -> frozenset[int]:
        """Memory addresses of the tensors that only an optimizer's step changes."""
        ...


def driven(steps: Steps, make: Callable[[StepDue], StepMade | LateStep]) -> StopReason:
    """Make every due step with `make`; return why the attempt ends."""
    try:
        due = next(steps)
        while True:
            try:
                made = make(due)
            except BaseException as error:
                due = steps.throw(error)  # Raises the error again, or continues if nothing is lost.
            else:
                due = steps.send(made)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
