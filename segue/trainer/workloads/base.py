"""The interface between an attempt and the recipe or program that it trains, whoever wrote the loop."""

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
    """Compares the inputs that a step is about to read with those that the previous attempt read there."""

    def __call__(self, prelude: Prelude, *, compare_state: bool = True) -> None:
        """`compare_state=False`: the program's own code ran since the state was restored."""
        ...


class StepDue(NamedTuple):
    """The step that is to be made next."""

    needs_fingerprints: bool
    """Whether its row is a witness, or is compared with one."""
    needs_norms: bool
    """Whether its row needs the norms of gradient and parameters."""
    check: Check
    """To be called before the step is made; raises if a resume differs, and the step must not be made then."""
    before_update: Callable[[], None]
    """To be called when the gradient is complete, before the state changes."""
    may_be_late: bool = False
    """Whether its numbers may be read a step later, if that saves a wait for an accelerator."""


class StepMade(NamedTuple):
    """One step that was made. Its position does not count yet: the attempt may refuse the step."""

    row: StepRow
    start: int
    """Position of its first sample."""
    samples: int
    """How many samples it used; 1 if that is not known."""
    ids: Ids
    """The samples themselves; none if they are not known."""
    epoch: int
    """The pass over the data to which its samples belong."""
    metrics: Mapping[str, float] = NO_METRICS
    """Further numbers for the loss curve, by name."""


class LateStep(NamedTuple):
    """One step that was made, and whose numbers are still on their way from an accelerator."""

    start: int
    """Position of its first sample."""
    samples: int
    read: Callable[[], StepMade]
    """Waits for its numbers and, with several ranks, for the others' numbers. Call it once, before the next save."""
    read_alone: Callable[[], StepMade]
    """Waits only for this rank's own numbers, in case another step has failed."""


Steps = Generator[StepDue, StepMade | LateStep | None, StopReason]
"""Yields each step that is due, is sent the step once it is made, and returns why the attempt ends.

If it is sent None, it makes a safe point without a step: the training code reports something, or no step is left.
"""


class Workload(Protocol):
    """A recipe or a program that is being trained: its state, its position, and the functions that a save calls."""

    progress: Progress
    components: dict[str, Component]

    @property
    def has_metric(self) -> bool:
        """Whether the user has given it a metric."""
        ...

    @property
    def is_metric_known(self) -> bool:
        """Whether `evaluate` only returns what the user's code computed already."""
        ...

    @property
    def can_save(self) -> bool:
        """Whether its state can be captured at this safe point."""
        ...

    def is_same_everywhere(self, tensor: str) -> bool:
        """Whether all ranks hold the same values of this tensor of the state; if not, rank 0's count."""
        ...

    @property
    def wants_save(self) -> bool:
        """Whether the user's code asks for a save at this safe point."""
        ...

    @property
    def is_save_of_this_step(self) -> bool:
        """Whether a due save must be of this step, because its metric is known or its state is in a folder."""
        ...

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        """The user's function for notices; read once, when the loop begins."""
        ...

    @property
    def epoch(self) -> int:
        """The pass over the data to which the next sample belongs."""
        ...

    def steps_to_epoch(self, epoch: int) -> float:
        """How many steps are left until that pass begins."""
        ...

    def begin(self, *, is_resumed: bool) -> None:
        """Called once, before the first step. `is_resumed`: the state was restored from a checkpoint."""
        ...

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Called after a step that counts, when the position has moved past it; returns further metrics of the step."""
        ...

    def make_up(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Called once a resume is checked: makes the evaluation that the previous attempt's last step lacks."""
        ...

    @property
    def awaits_metric(self) -> bool:
        """Whether the next step's learning rates depend on an evaluation that `finish_step` did not make."""
        ...

    def left_out(self) -> frozenset[str]:
        """Fingerprints of the batches near the current position that are skipped."""
        ...

    def advance(self, start: int, count: int) -> None:
        """Move the position past a step that counts, with this many samples from `start` on."""
        ...

    def evaluate(self) -> float:
        """The user's metric. The training state stays as it was."""
        ...

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        """Findings about state that training has changed and that none of these components holds; each is given once.

        The record of this state is put among the `trees`.
        """
        ...

    def begin_marks(self) -> Marks:
        """Marks of the parts of the state. Call it after a step; an accelerator may still be at work."""
        ...

    def structure_changes(self) -> tuple[str, ...]:
        """The changes of modules and optimizers that a resume would not build, in words. Called at a safe point."""
        ...

    def parameter_norm(self) -> float:
        """Norm of all parameters that are trained."""
        ...

    def changed_by_optimizer(self) -> frozenset[int]:
        """Addresses of the tensors that change only at an optimizer's step."""
        ...


def driven(steps: Steps, make: Callable[[StepDue], StepMade | LateStep]) -> StopReason:
    """Make every step that is due; return why the attempt ends."""
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
