"""The interface between an attempt and the recipe or program that the attempt trains. The training loop is either
segue's own loop or a loop in the user's code."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from segue.continuity.state_marks import Marks
from segue.continuity.verdict import Prelude
from segue.continuity.witness import StepRow
from segue.curves.curve_rows import NO_METRICS
from segue.data.order import Ids
from segue.records import Finding, Notice, StopReason
from segue.trainer.workloads.components import Component, Progress


class Check(Protocol):
    """Compares the inputs of the next step with the inputs of the same step in the previous attempt."""

    def __call__(self, prelude: Prelude, *, compare_state: bool = True) -> None:
        """If `compare_state` is False, the state is not compared, because the program's own code has run since the
        restore."""
        ...


class StepDue(NamedTuple):
    """The next step, and the requirements for this step."""

    needs_fingerprints: bool
    """Whether the row of this step will be a witness row, or will be compared with a witness row."""
    needs_norms: bool
    """Whether the step's row needs the norms of gradients and parameters."""
    check: Check
    """A check that the workload calls before it makes a step that needs fingerprints. If the resume differs from the
    run, the check raises an error, and the workload must not make the step."""
    before_update: Callable[[], None]
    """A function that the workload calls after the gradient is complete and before the state changes."""
    may_be_late: bool = False
    """Whether the workload may read the step's numbers one step later, so that it does not wait for an accelerator."""


class StepMade(NamedTuple):
    """A completed step. The step is not counted yet, because the attempt may still refuse it."""

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
    """A function that waits for the step's numbers. If there are several ranks, the function also waits for the numbers
    of the other ranks. The function must be called once, before the next save."""
    read_alone: Callable[[], StepMade]
    """A function that waits only for the numbers of this rank. The function is called after another step has failed."""


Steps = Generator[StepDue, StepMade | LateStep | None, StopReason]
"""A generator that yields each due step, receives the completed step, and returns why the attempt ends.

If the generator receives None, it makes a safe point without a step. The generator receives None if the training code
only reports something, or if no step is left.
"""


class Workload(Protocol):
    """A recipe or program in training. A workload provides the state, the position in the data, and the functions that
    a save calls."""

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
        """Whether all ranks hold equal values of this state tensor. If the values differ, the values of rank 0 are
        saved."""
        ...

    def wants_save(self, step: int) -> bool:
        """Whether the user's code asks for a save at the safe point after this number of steps."""
        ...

    @property
    def is_save_of_this_step(self) -> bool:
        """Whether a due save cannot be delayed, because the metric or the folder of the save belongs only to this
        step."""
        ...

    @property
    def on_notice(self) -> Callable[[Notice], None] | None:
        """The user's function for notices. The attempt reads this property once, at the start of the loop."""
        ...

    @property
    def epoch(self) -> int:
        """Epoch of the next sample, from 0."""
        ...

    def steps_to_epoch(self, epoch: int) -> float:
        """Number of steps until epoch `epoch` begins."""
        ...

    def begin(self, *, is_resumed: bool) -> None:
        """Prepare for the first step. The attempt calls `begin` once. `is_resumed` states whether the state was
        restored from a checkpoint."""
        ...

    def finish_step(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Finish a counted step, and return further metrics of the step. The attempt first moves the position, and then
        calls this method."""
        ...

    def make_up(self, *, evaluating: Callable[[], AbstractContextManager[None]]) -> Mapping[str, float]:
        """Make the evaluation that the previous attempt did not make after its last step. The attempt calls this method
        after the verdict on a resume."""
        ...

    @property
    def awaits_metric(self) -> bool:
        """Whether the learning rates of the next step depend on an evaluation that `finish_step` has not made."""
        ...

    def left_out(self) -> frozenset[str]:
        """Fingerprints of the skipped batches near the current position."""
        ...

    def advance(self, start: int, count: int) -> None:
        """Move the position past a counted step that used `count` samples, the first at position `start`."""
        ...

    def evaluate(self) -> float:
        """Compute the user's metric. The training state does not change."""
        ...

    def look_outside(self, trees: dict[str, Any]) -> tuple[Finding, ...]:
        """Return findings about changed state that is in none of the components `trees`. Each finding is returned only
        once. The method adds the record of the untracked state to `trees`.
        """
        ...

    def begin_marks(self) -> Marks:
        """Begin to compute marks of the state's parts. The call must come after a step. The accelerator may still
        compute this step."""
        ...

    def structure_changes(self) -> tuple[str, ...]:
        """Describe in words the changes of modules and optimizers that a resume would not repeat. The call must come at
        a safe point."""
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
