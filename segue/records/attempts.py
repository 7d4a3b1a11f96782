"""An attempt: its capacity and its plan, the notice that it got, its report."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from segue.records.documents import Record, Value
from segue.records.manifest import CheckpointRef
from segue.units import Count, Moment, Seconds, SecondsAboveZero, SecondsOrEndless


class Capacity(StrEnum):
    """The kind of capacity on which a segment runs."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class StopReason(StrEnum):
    """Why an attempt ended."""

    FINISHED = "finished"
    BOUND = "bound"
    NOTICE = "notice"
    LOST = "lost"
    FAILED = "failed"
    FENCED = "fenced"
    OUT_OF_MEMORY = "out_of_memory"
    HUNG = "hung"
    CANCELLED = "cancelled"
    NO_CAPACITY = "no_capacity"
    START_FAILED = "start_failed"

    @property
    def is_preemption(self) -> bool:
        """Whether the provider took the capacity back. The other reasons have a cause in the run, or in a person."""
        return self in (StopReason.NOTICE, StopReason.LOST)

    @property
    def in_words(self) -> str:
        return self.value.replace("_", " ")


class Notice(Value):
    """A warning that this process will be stopped, or a provider's hint that it may be."""

    kind: str = Field(
        description="Source of the notice: sigterm, sigint, sigusr1, file, recall, orphaned, aws, gce or azure; "
        "rebalance for a hint, which only `Recipe.on_notice` gets."
    )
    received_at: Moment
    grace_seconds: SecondsOrEndless = Field(
        description="Seconds from the notice to the kill, as far as is known; inf for a hint."
    )
    phase: str | None = Field(
        None,
        exclude_if=lambda phase: phase is None,  # Older versions refuse a record with a field that they do not know.
        description="What the attempt did when the notice came: build, restore, first step, replay, step, evaluate, "
        "save, rehearsal or end; None: not known.",
    )


class Skip(Value):
    """A range of the sample order that the run skips because of an anomaly."""

    samples_seen: int = Field(ge=0, description="Position in the sample order at which the range begins.")
    sample_count: int = Field(gt=0)

    def overlaps(self, start: int, count: int) -> bool:
        """Whether the range holds any of the `count` samples from position `start` on."""
        return self.samples_seen < start + count and start < self.samples_seen + self.sample_count

    @property
    def in_words(self) -> str:
        return f"samples {self.samples_seen} to {self.samples_seen + self.sample_count - 1} of the order"


class Anomaly(Value):
    """A step with anomalous numbers. Its state was not committed, so the step is no part of the run."""

    step: int = Field(ge=1, description="Global step with the anomaly.")
    kind: Literal["non_finite", "spike"]
    channel: Literal["loss", "grad_norm", "param_norm", "loss_scale"]
    value: float
    limit: float | None = Field(
        None, description="Limit that the value exceeded; None: there was no limit, and the value was not finite."
    )
    batch: Skip = Field(description="Position of the batch in the sample order.")
    sample_ids: tuple[int, ...] = Field((), description="Sample ids of the batch; only the first of a very large one.")

    @property
    def sentence(self) -> str:
        """The value and its position."""
        # Without sample ids, it was a program that trained: its batches have no place in an order.
        batch = f", {self.batch.in_words}" if self.sample_ids else ""
        return f"{self.channel} was {self.value:.6g}{self._limit_in_words} at step {self.step}{batch}"

    @property
    def _limit_in_words(self) -> str:
        if self.limit is None:
            return ""
        return f" ({'above' if self.value > self.limit else 'below'} {self.limit:.6g})"


class SegmentPlan(Record):
    """The decision for the next segment: capacity, bound, parent."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    capacity: Capacity
    deployment: str = Field(description="Prefect deployment that runs the segment, e.g. segment/spot.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint from which to resume; None: start at step 0.")
    at_most: CheckpointRef | None = Field(
        None, description="Newest checkpoint from which to resume, because resumes from newer ones were broken."
    )
    max_seconds: SecondsAboveZero | None = Field(
        None, description="Wall-clock bound in seconds; the loop commits and stops before it. None: no bound."
    )
    stop_at_step: int | None = Field(
        None, gt=0, description="Step at which the segment commits and ends; None: no end."
    )
    stop_at_epoch: int | None = Field(None, gt=0, description="Pass over the data before which it does; None: no end.")
    start_within_seconds: SecondsAboveZero | None = Field(
        None, description="Longest wait for capacity in seconds, until the attempt claims the run."
    )
    skips: tuple[Skip, ...] = Field((), description="Ranges of the sample order that this and later attempts skip.")
    standby: str | None = Field(
        None, alias="spare", description="Standby that runs this attempt on its booted machine; None: a new machine."
    )
    delay_seconds: Seconds = Field(0.0, description="Back-off: seconds from the decision to the attempt's start.")
    keeps_machine: bool = Field(
        False, description="Whether the machine is kept at a planned end, for the segment after this one."
    )
    ignores_deadline: bool = Field(
        False, description="Whether the attempt stays on spot although the deadline requires on-demand, for the budget."
    )
    log_id: str = Field("", description="Id of the log in which it was decided; empty in plans of earlier versions.")


class CodeFailure(Value):
    """The exception that the user's code raised, or where it hung."""

    type: str
    message: str
    traceback: str = Field(description="Traceback of the exception; for a hang, the stack of every thread.")
    is_transient: bool = Field(
        False, description="Whether a retry may help, because a disk, a network or a worker process failed."
    )


class SegmentReport(Record):
    """The end of one attempt, and its results."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    attempt_id: str | None = Field(description="Id of the attempt; None when it never claimed the run.")
    capacity: Capacity
    stop_reason: StopReason
    from_step: Count
    to_step: Count = Field(description="Last step reached, committed or not.")
    checkpoint: CheckpointRef | None = Field(None, description="Newest checkpoint that this attempt committed.")
    samples_seen: Count = 0
    lost_steps: Count = Field(0, description="Steps after the last commit that must be done again.")
    seconds: Seconds = Field(0.0, description="Seconds from claim to end, by the writer's clock.")
    train_seconds: Seconds = Field(0.0, description="Seconds from the first new step to the last, with saves.")
    train_steps: Count = Field(0, description="Steps in `train_seconds`.")
    startup_seconds: Seconds = Field(0.0, description="Seconds from claim to the first new step.")
    save_seconds: Seconds | None = Field(
        None, description="Usual seconds from a snapshot to its commit; None: no checkpoint was committed."
    )
    save_cost_seconds: Seconds | None = Field(None, description="Usual seconds of training that a save took away.")
    got_capacity: bool = Field(
        True, description="False when it had no machine of a pool: the wait ended without one, or it was an import."
    )
    was_refused: bool = Field(
        False,
        exclude_if=lambda is_set: not is_set,  # Older versions refuse a record with a field that they do not know.
        description="Whether its pool could not start it at all: the cluster refused, or did not answer.",
    )
    notice: Notice | None = None
    failure: CodeFailure | None = None
    anomaly: Anomaly | None = Field(None, description="Anomaly that ended the attempt.")
    peak_memory_bytes: Count | None = Field(
        None, description="Largest resident memory of the trainer; None: not measured."
    )
    note: str | None = Field(None, description="Further information for a person.")
    finish_reason: str | None = Field(
        None, description="Why the training code ended the run at `to_step`, before its goal; None if it did not."
    )

    @property
    def has_code_failed(self) -> bool:
        """Whether the user's code raised; anomalies have a separate budget."""
        return self.stop_reason is StopReason.FAILED and self.anomaly is None

    @property
    def is_own_fault(self) -> bool:
        """Whether the cause is in the run itself, so that other capacity would not help."""
        return self.has_code_failed or self.stop_reason in (StopReason.OUT_OF_MEMORY, StopReason.HUNG)
