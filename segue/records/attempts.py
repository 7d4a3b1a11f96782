"""The records of an attempt: its capacity, plan, notice and report."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from segue.records.documents import Record, Value
from segue.records.machines import SlowRank
from segue.records.manifest import CheckpointRef
from segue.units import Count, Moment, Seconds, SecondsAboveZero, SecondsOrEndless


class Capacity(StrEnum):
    """The kind of capacity on which a segment runs."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


class StopReason(StrEnum):
    """The reason why an attempt ended."""

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
        """Whether the provider took the capacity back. The run or a person causes all other stop reasons."""
        return self in (StopReason.NOTICE, StopReason.LOST)

    @property
    def in_words(self) -> str:
        return self.value.replace("_", " ")


class Notice(Value):
    """A warning that the provider will stop this process, or a hint that the provider may stop it."""

    kind: str = Field(
        description="Source of the notice: sigterm, sigint, sigusr1, file, recall, orphaned, aws, gce or azure. "
        "rebalance: a hint, passed only to `Recipe.on_notice`."
    )
    received_at: Moment
    grace_seconds: SecondsOrEndless = Field(
        description="Known or estimated seconds from the notice to the kill; inf for a hint."
    )
    phase: str | None = Field(
        None,
        exclude_if=lambda phase: phase is None,  # Older versions refuse a record with a field that they do not know.
        description="Activity of the attempt when the notice came: build, restore, first step, replay, step, evaluate, "
        "save, rehearsal or end; None: not known.",
    )


class Skip(Value):
    """A range of positions in the sample order that the run skips because of an anomaly."""

    samples_seen: int = Field(ge=0, description="Position in the sample order at which the range begins.")
    sample_count: int = Field(gt=0)

    def overlaps(self, start: int, count: int) -> bool:
        """Whether the range contains any of the `count` samples that begin at position `start`."""
        return self.samples_seen < start + count and start < self.samples_seen + self.sample_count

    @property
    def in_words(self) -> str:
        return f"samples {self.samples_seen} to {self.samples_seen + self.sample_count - 1} of the order"


class Anomaly(Value):
    """A step with anomalous numbers. The state after this step was not committed, so the step is not part of the
    run.
    """

    step: int = Field(ge=1, description="Global step with the anomaly.")
    kind: Literal["non_finite", "spike"]
    channel: Literal["loss", "grad_norm", "param_norm", "loss_scale"]
    value: float
    limit: float | None = Field(
        None, description="Limit that the value exceeded; None: no limit applied, because the value was not finite."
    )
    batch: Skip = Field(description="Position of the batch in the sample order.")
    sample_ids: tuple[int, ...] = Field(
        (), description="Sample ids of the batch; for a very large batch, only the first ids."
    )

    @property
    def sentence(self) -> str:
        """Return one sentence with the anomalous value, the limit of the value, and the step."""
        # Without sample ids, the run trains a program, and a program's batches have no position in a sample order.
        batch = f", {self.batch.in_words}" if self.sample_ids else ""
        return f"{self.channel} was {self.value:.6g}{self._limit_in_words} at step {self.step}{batch}"

    @property
    def _limit_in_words(self) -> str:
        if self.limit is None:
            return ""
        return f" ({'above' if self.value > self.limit else 'below'} {self.limit:.6g})"


class PoolRequest(Value):
    """A request for an attempt's machine on one of several spot pools."""

    deployment: str
    after_seconds: Seconds = Field(
        0.0,
        description="Seconds from the decision to the request. If the attempt has a machine before this time has "
        "passed, there is no request.",
    )


class SegmentPlan(Record):
    """The decision for the next segment: capacity, bound and parent."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    capacity: Capacity
    deployment: str = Field(description="Prefect deployment that runs the segment, e.g. segment/spot.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint from which to resume; None: start at step 0.")
    at_most: CheckpointRef | None = Field(
        None,
        description="Newest checkpoint from which the attempt may resume, because resumes from newer "
        "checkpoints were "
        "broken; None: no limit.",
    )
    max_seconds: SecondsAboveZero | None = Field(
        None,
        description="Longest wall-clock time of the segment in seconds; the loop commits and stops before "
        "this time ends. "
        "None: no bound.",
    )
    stop_at_step: int | None = Field(
        None, gt=0, description="Step after which the segment commits and ends; None: no planned end by steps."
    )
    stop_at_epoch: int | None = Field(
        None, gt=0, description="Epoch before which the segment commits and ends; None: no planned end by epochs."
    )
    start_within_seconds: SecondsAboveZero | None = Field(
        None,
        description="Capacity timeout: longest wait in seconds until the attempt claims the run; None: no timeout.",
    )
    skips: tuple[Skip, ...] = Field(
        (), description="Ranges of the sample order that this attempt and later attempts skip."
    )
    standby: str | None = Field(
        None,
        alias="spare",
        description="Standby whose booted machine runs this attempt; None: a new machine runs this attempt.",
    )
    delay_seconds: Seconds = Field(0.0, description="Back-off: seconds from the decision to the start of the attempt.")
    keeps_machine: bool = Field(
        False, description="Whether the machine is kept for the next segment after the planned end of this segment."
    )
    ignores_deadline: bool = Field(
        False,
        description="Whether the attempt uses spot although the deadline requires on-demand, because the "
        "budget is too "
        "small for on-demand.",
    )
    pools: tuple[PoolRequest, ...] = Field(
        (),
        exclude_if=lambda pools: not pools,  # Older versions refuse a record with a field that they do not know.
        description="The spot pools on which a machine is requested, if there are several; the first is `deployment`. "
        "The first machine that claims the attempt trains the attempt.",
    )
    log_id: str = Field("", description="Id of the log that contains this decision; empty in plans of older versions.")
    avoided_nodes: tuple[str, ...] = Field(
        (),
        exclude_if=lambda nodes: not nodes,  # Older versions refuse a record with a field that they do not know.
        description="Nodes of the cluster that the attempt avoids if other nodes fit, because they were bad.",
    )

    def on_pool(self, deployment: str) -> SegmentPlan:
        """Return the plan for an attempt that runs on this pool."""
        return self if deployment == self.deployment else self.model_copy(update={"deployment": deployment})


class CodeFailure(Value):
    """The exception that the user's code raised, or the stacks of a hang."""

    type: str
    message: str
    traceback: str = Field(description="Traceback of the exception; for a hang, the stack of every thread.")
    is_transient: bool = Field(
        False, description="Whether a retry may help, because a disk, a network or a worker process failed."
    )


class SegmentReport(Record):
    """The record of how one attempt ended, and of the steps that the attempt completed."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    attempt_id: str | None = Field(description="Id of the attempt; None if the attempt never claimed the run.")
    capacity: Capacity
    stop_reason: StopReason
    from_step: Count
    to_step: Count = Field(description="Last step that the attempt completed, committed or not.")
    checkpoint: CheckpointRef | None = Field(
        None, description="Newest checkpoint that this attempt committed; None: no commit."
    )
    samples_seen: Count = 0
    lost_steps: Count = Field(
        0, description="Lost work: number of steps after the last commit, which must be run again."
    )
    seconds: Seconds = Field(
        0.0, description="Seconds from the claim to the end, on the clock of the machine that wrote this report."
    )
    phase_seconds: dict[str, Seconds] = Field(
        default_factory=dict,
        exclude_if=lambda seconds: not seconds,  # Older versions refuse a record with a field that they do not know.
        description="Seconds from the claim to the end by phase: build, restore, replay, first step, step, evaluate, "
        "save, rehearsal, end; empty: the attempt did not write this report.",
    )
    train_seconds: Seconds = Field(
        0.0, description="Seconds from the first new step to the last step, including saves."
    )
    train_steps: Count = Field(0, description="Number of steps in `train_seconds`.")
    startup_seconds: Seconds = Field(0.0, description="Seconds from the claim to the first new step.")
    save_seconds: Seconds | None = Field(
        None, description="Usual time in seconds from the safe point of a save to its commit; None: no commit."
    )
    save_cost_seconds: Seconds | None = Field(
        None, description="Usual time in seconds for which a save delays training; None: not measured."
    )
    got_capacity: bool = Field(
        True,
        description="Whether the attempt ran on a machine of a pool. False: the wait for capacity ended "
        "without a machine, or "
        "the attempt was an import.",
    )
    was_refused: bool = Field(
        False,
        exclude_if=lambda is_set: not is_set,  # Older versions refuse a record with a field that they do not know.
        description="Whether the pool could not start the attempt: the cluster refused the request or did not answer.",
    )
    notice: Notice | None = None
    failure: CodeFailure | None = None
    anomaly: Anomaly | None = Field(None, description="Anomaly that ended the attempt.")
    peak_memory_bytes: Count | None = Field(
        None, description="Peak resident memory of the trainer in bytes; None: not measured."
    )
    note: str | None = Field(None, description="Further information for a person.")
    median_step_seconds: Seconds | None = Field(
        None,
        exclude_if=lambda seconds: seconds is None,
        description="Median duration of a step in seconds, without saves; None: too few steps.",
    )
    slowness: float | None = Field(
        None,
        exclude_if=lambda slowness: slowness is None,
        description="Duration of the newest steps divided by the usual duration on like hardware, if the machine was "
        "slow at the end; None: it was not slow.",
    )
    slow_ranks: tuple[SlowRank, ...] = Field(
        (), exclude_if=lambda ranks: not ranks, description="Ranks that were slower than the other ranks at the end."
    )
    leaves_machine: bool = Field(
        False,
        exclude_if=lambda is_set: not is_set,
        description="Whether the next attempt avoids this machine, or the machine of a slow rank, because the machine "
        "is slow.",
    )
    zone: str = Field(
        "",
        exclude_if=lambda zone: not zone,  # Older versions refuse a record with a field that they do not know.
        description="Zone of the machine, from the cloud's metadata service; empty: not known.",
    )
    finish_reason: str | None = Field(
        None,
        description="Reason that the training code gave for ending the run at `to_step`, before the goal; "
        "None: the "
        "training code did not end the run.",
    )

    @property
    def has_code_failed(self) -> bool:
        """Whether the user's code raised an exception. Anomalies are excluded, because they have a separate budget."""
        return self.stop_reason is StopReason.FAILED and self.anomaly is None

    @property
    def is_own_fault(self) -> bool:
        """Whether the run itself caused the end, so that other capacity would not help."""
        return self.has_code_failed or self.stop_reason in (StopReason.OUT_OF_MEMORY, StopReason.HUNG)
