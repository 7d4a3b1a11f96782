"""Records: frozen values that reach disk or another process.

A `Record` is a whole document with a schema version; a `Value` is a part of a record. Both refuse unknown fields,
because a setting in a silently dropped field would have no effect.
"""

from __future__ import annotations

import hashlib
import re
from enum import StrEnum
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from segue.shard import Shard
from segue.units import MOST_COUNT, Count, Moment, Seconds, SecondsAboveZero, SecondsOrEndless


class Value(BaseModel):
    """A frozen part of a record. Non-finite floats survive JSON as the strings NaN and Infinity.

    A renamed field keeps its first name as its alias and is stored under that name, because stores outlive versions.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class FiniteValue(Value):
    """A part of a run spec, whose numbers are finite; measured values, such as a loss, may be nan."""

    # JSON has no infinity: the log and Prefect would return it as a string, and no policy can plan with it. If a URL
    # with a password is refused, the error must not contain the URL.
    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True)


class Record(Value):
    """A frozen document with a schema version."""

    schema_version: Literal[1] = Field(1, description="Version of this record's schema.")


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


class CheckpointRef(Value):
    """A reference to a committed checkpoint, by the log slot of its commit."""

    slot: int = Field(ge=0, le=MOST_COUNT)
    step: int = Field(ge=0, le=MOST_COUNT)
    attempt_id: str


def _of_accelerator(default: Any, description: str) -> Any:
    """A field that only environments with an accelerator have; records of other environments do not change."""
    return Field(default, exclude_if=lambda value: value == default, description=description)


class Environment(Value):
    """The software and hardware that must be equal for a replay to match bit for bit."""

    torch: str
    python: str = Field("", description="Python version; the bytecode by which code is compared depends on it.")
    device: str = Field(description="`cpu`, or the accelerator's name.")
    instruction_set: str = Field(description="CPU capability that torch dispatches to.")
    processor: str = Field("", description="CPU model; kernels select their instructions by it.")
    threads: int = Field(ge=1, description="Intra-op threads; the order of reductions depends on it.")
    world_size: int = Field(1, ge=1)
    arithmetic: int = Field(
        1, ge=1, description="How segue itself computes: 1 sums the gradient norm by parameter group, 2 by model order."
    )
    deterministic: bool = Field(
        False,
        # Left out if it is not set: so names of environments do not change, and older versions can read the record.
        exclude_if=lambda is_set: not is_set,
        description="Whether torch was limited to deterministic kernels; the bits of results may then differ.",
    )

    device_processors: int = _of_accelerator(
        0, "Multiprocessors of the accelerator; masks of dropout depend on it. Parts of one device share its name."
    )
    driver: str = _of_accelerator("", "Version of the accelerator's driver.")
    libraries: str = _of_accelerator("", "Versions of CUDA, cuDNN and NCCL, or of their counterparts.")
    reduced_precision: str = _of_accelerator("", "Which products torch may round, as to TF32.")
    kernel_choice: str = _of_accelerator("", "How kernels are chosen: by timing them, or by rule.")
    packages: dict[str, str] = Field(
        default_factory=dict,
        exclude_if=lambda packages: not packages,
        description="Versions of the installed packages that the training code imports, as far as they were loaded.",
    )

    def differs_from(self, other: Environment) -> tuple[str, ...]:
        """Names of the fields that differ; bitwise comparison is valid if there are none.

        `packages` is not among them, because training does not depend on most packages.
        """
        names = (name for name in type(self).model_fields if name != "packages")
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    def other_packages(self, other: Environment) -> tuple[str, ...]:
        """Packages that both have, in different versions, as "numpy 2.4.5 (now 2.4.6)"; `other` is the current one."""
        names = [name for name in self.packages if self.packages[name] != other.packages.get(name, self.packages[name])]
        return tuple(f"{name} {self.packages[name]} (now {other.packages[name]})" for name in names)

    @property
    def short_id(self) -> str:
        """A name that only equal environments share: device, instruction set, counts, a hash."""
        parts = f"{self.device} {self.instruction_set} {self.threads}t {self.world_size}r"
        digest = hashlib.sha256(self.model_dump_json(exclude={"packages"}).encode()).hexdigest()
        return re.sub(r"[^a-z0-9]+", "-", parts.lower()).strip("-") + f"-{digest[:8]}"


class WeightsFile(Value):
    """A file from outside the run that holds its initial weights."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Fork(Value):
    """The checkpoint of another run in the same store, with which a run began."""

    run_id: str
    attempt_id: str = Field(description="Attempt that committed the checkpoint.")
    step: int = Field(ge=0)
    reset: tuple[str, ...] = Field((), description="Parts that were not taken from it, as asked for.")

    @property
    def name(self) -> str:
        """The checkpoint, as `segue run --from` takes it."""
        return f"{self.run_id}@{self.step}"


class Manifest(Value):
    """The record by which one checkpoint is found, checked and restored."""

    step: int = Field(ge=0, le=MOST_COUNT)
    samples_seen: int = Field(ge=0, le=MOST_COUNT)
    epoch: int = Field(ge=0, le=MOST_COUNT, description="Pass over the data to which the next sample belongs.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint from which the attempt resumed.")
    shards: tuple[Shard, ...]
    tensor_count: int = Field(ge=0, description="Tensors in the state; their types and digests are in the index.")
    new_bytes: int = Field(0, ge=0, description="Bytes that this checkpoint added to the store.")
    saves_since_full: int = Field(0, ge=0, description="Saves since the last one that stored every tensor.")
    components: dict[str, str] = Field(description="Digest of each component's whole state.")
    environment: Environment
    metric: float | None = Field(None, description="The user's metric at this step; None if it was not evaluated.")
    imported_from: WeightsFile | None = Field(None, description="File of the imported weights; None: trained here.")
    forked_from: Fork | None = Field(None, description="Checkpoint of another run; None: of this run alone.")

    @field_serializer("shards")
    def _shards_as_json(self, shards: tuple[Shard, ...]) -> list[dict[str, Any]]:
        return [shard.to_json() for shard in shards]

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)

    @property
    def origin(self) -> str | None:
        """The origin of its state, if no step of this run led to it."""
        if self.forked_from is not None:
            return f"forked from {self.forked_from.name}"
        return None if self.imported_from is None else f"imported from {self.imported_from.name}"


class StateMark(Value):
    """One part of the state after a step, as a few bytes: large tensors are sampled evenly."""

    digest: str = Field(description="Hash of its values, bit for bit.")
    plain: str = Field(description="Hash of its values that are no floating-point numbers, and of all shapes.")
    norm: float | None = Field(None, description="L2 norm of its finite floating-point values; None: it has none.")


class WitnessRow(Value):
    """The outcome of one step, in full precision."""

    step: int = Field(ge=1, description="Global step whose outcome this is.")
    loss: float
    grad_norm: float
    param_norm: float = Field(description="Parameter norm after the optimizer step.")
    lr: tuple[float, ...]
    loss_scale: float | None = None
    batch_fingerprint: str = Field(description="Hash of the sample ids, in any order; empty if it is not needed.")
    input_fingerprint: str = Field(description="Hash of the batch's bytes; empty if it is not needed.")
    streams: dict[str, str] | None = Field(
        None, description="Hash of each random stream after the batch was drawn; None if it is not needed."
    )
    state: dict[str, StateMark] | None = Field(
        None, description="The parts of the state after the step, by name; None except in the last row of a witness."
    )


class VerdictKind(StrEnum):
    """The answer about a resume."""

    EXACT = "exact"
    EQUIVALENT = "equivalent"
    UNVERIFIED = "unverified"
    BROKEN = "broken"


class Finding(Value):
    """One reason in a verdict."""

    component: str = Field(description="Component that was lost or differs: optimizer, rng.torch, data order, ...")
    channel: str = Field(description="Measurement that shows it: digest, loss, grad_norm, ...")
    step: int | None = Field(None, description="First step that differs; None if found before any step.")
    sentence: str = Field(description="What differs, with the evidence.")
    fix: str = Field("", description="What to do about it; empty in records of older versions.")

    @property
    def with_fix(self) -> str:
        """The sentence, followed by the fix."""
        return f"{self.sentence}. Fix: {self.fix}" if self.fix else self.sentence


_MOST_LOST = 4


class Verdict(Value):
    """The answer to whether a resume continued the run, and how much was compared for it."""

    kind: VerdictKind
    findings: tuple[Finding, ...] = ()
    components_compared: int = Field(0, ge=0)
    rows_compared: int = Field(0, ge=0, description="Steps replayed and compared with the sealed witness.")
    environment_changes: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = Field((), description="What the training code does not show; it proves nothing.")
    noise: dict[str, float] = Field(
        default_factory=dict,
        exclude_if=lambda noise: not noise,
        description="Largest measured relative difference between replays from one state, by channel; the tolerances "
        "follow from it. Empty: no difference is known, and kernels count as deterministic.",
    )

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.findings and self.kind is VerdictKind.UNVERIFIED and self.findings[0].channel == "carried":
            return f"{self.kind}: {self._lost_in_words}"
        if self.findings:
            return f"{self.kind}: {self.findings[0].with_fix}"
        changed = f"; environment differs in {', '.join(self.environment_changes)}" if self.environment_changes else ""
        unknown = f"; not compared: {', '.join(self.not_compared)}" if self.not_compared else ""
        counts = f"{self.components_compared} components and {self.rows_compared} steps compared"
        if self.kind is VerdictKind.UNVERIFIED and not self.rows_compared:
            why = "the previous attempt recorded no step after the checkpoint, or this one ended before it repeated one"
            counts = f"{self.components_compared} components compared, but no step: {why}"
        noisy = "; within the noise of kernels that are not deterministic" if self.noise else ""
        return f"{self.kind}: {counts}{noisy}{changed}{unknown}"

    @property
    def _lost_in_words(self) -> str:
        """State that training carries from step to step but the resume lacks, although all compared state is equal."""
        lost = [finding for finding in self.findings if finding.channel == "carried"]
        counts = f"{self.components_compared} components and {self.rows_compared} steps"
        more = f"; {len(lost) - _MOST_LOST} more" if len(lost) > _MOST_LOST else ""
        said = "; ".join(finding.sentence for finding in lost[:_MOST_LOST])
        fixes = "; ".join(dict.fromkeys(finding.fix for finding in lost if finding.fix))
        fix = f". Fix: {fixes}" if fixes else ""
        return f"exact only in what was compared ({counts}); not restored: {said}{more}{fix}"


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


class Heartbeat(Record):
    """A sign of life, overwritten in place. A changing counter, not a timestamp, shows that the attempt is alive."""

    attempt_id: str
    counter: Count
    phase: Literal["starting", "restoring", "training", "stopping"]
    step: Count
    loss: float | None = None
    step_seconds: Seconds | None = None
    last_commit_step: Count | None = None
    ends_in_seconds: Seconds | None = Field(
        None, description="Seconds to the planned end of the segment at its pace; None: no such end, or not known."
    )
    trainer_pid: int
    cadence: str | None = Field(None, description="Current save interval and its reason.")
    saves_delayed: Count = Field(0, description="Saves that had to wait until the previous one was written.")
    trouble: str | None = Field(None, description="Reason why a save is being retried; None without a failure.")
    peak_memory_bytes: Count | None = Field(None, description="Largest resident memory of the trainer so far.")
    memory_bytes: Count | None = Field(None, description="Memory of the trainer now that cannot be reclaimed.")
    memory_limit_bytes: int | None = Field(None, gt=0, description="Memory limit of its control group; None: none.")
    rows: tuple[WitnessRow, ...] = Field(
        (), description="Rows after saves that are not sealed yet, for a resume after a kill."
    )
    beat_at: Moment


class ParentRecord(Record):
    """The parent of an open run, overwritten in place. A changing counter, not a timestamp, shows that it is alive."""

    run_id: str
    parent_id: str = Field("", description="Id of this parent; empty while a start was requested and none has begun.")
    flow_run_id: str | None = None
    server_id: str = Field("", description="What names its orchestrator's server; empty: not known.")
    host: str = ""
    machine: str = Field("", description="The machine, as `segue.process.this_machine` gives it.")
    process: str = Field("", description="The parent's process there, as `segue.process.ProcessRef` writes it.")
    counter: int = Field(0, ge=0)
    has_left: bool = Field(False, description="Whether this parent ended before the run did.")
    waiting: str | None = Field(None, description="What an attempt without a machine waits for; None: for nothing.")
    unguarded: str | None = Field(None, description="Why nothing would start this parent again; None: recovery looks.")
    # Left out if there is none: older versions refuse a record with a field that they do not know.
    adopted_by: str | None = Field(
        None,
        exclude_if=lambda name: name is None,
        description="Heartbeat of the later slot whose flow run runs this slot first; None: the flow run is its own.",
    )
    timeout_seconds: SecondsAboveZero = Field(description="Without a new heartbeat for this long, the parent is dead.")
    beat_at: Moment
