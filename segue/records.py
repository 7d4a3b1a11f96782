"""The nouns: frozen records that reach disk or another process.

A `Record` is a whole document and carries its schema version; a `Value` is a
part of one. Both refuse unknown fields, because a field that is silently
dropped is a setting that silently does nothing.
"""

from __future__ import annotations

import hashlib
import re
from datetime import datetime
from enum import StrEnum
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from segue.shard import Shard


class Value(BaseModel):
    """A frozen part of a record. Non-finite floats survive JSON as the strings NaN and Infinity.

    A field that was renamed keeps its first name as its alias, and is stored under it: stores outlive versions.
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
    """A part of a run spec: what a person asks for is finite, while what a run measures, a loss, may be nan."""

    # JSON has no infinity: it would come back from the log or from Prefect as a string, and no policy can plan with it.
    model_config = ConfigDict(allow_inf_nan=False)


class Record(Value):
    """A frozen document with a schema version."""

    schema_version: Literal[1] = Field(1, description="Version of this record's schema.")


class Capacity(StrEnum):
    """What kind of machine a segment runs on."""

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

    @property
    def is_preemption(self) -> bool:
        """Only these count as interruptions; a `failed` attempt is the user's code, not the provider's will."""
        return self in (StopReason.NOTICE, StopReason.LOST)


class Notice(Value):
    """A warning that this process will be stopped."""

    kind: str = Field(description="Who said so: sigterm, file, recall, orphaned.")
    received_at: AwareDatetime
    grace_seconds: float = Field(ge=0, description="Seconds from receipt to the kill, as far as is known.")


class CheckpointRef(Value):
    """One committed checkpoint, named by the log slot of its commit."""

    slot: int = Field(ge=0)
    step: int = Field(ge=0)
    attempt_id: str


class Environment(Value):
    """What must be equal for a replay to be expected bit for bit."""

    torch: str
    python: str = Field("", description="Its version: bytecode, by which code is compared, depends on it.")
    device: str = Field(description="cpu, or the accelerator's name.")
    instruction_set: str = Field(description="The CPU capability torch dispatches to.")
    processor: str = Field("", description="The CPU's model: kernels choose their instructions by it.")
    threads: int = Field(ge=1, description="Intra-op threads; reductions depend on it.")
    world_size: int = Field(1, ge=1)

    def differs_from(self, other: Environment) -> tuple[str, ...]:
        """Names of the fields in which the two differ; empty means bitwise comparison is fair."""
        names = type(self).model_fields
        return tuple(name for name in names if getattr(self, name) != getattr(other, name))

    @property
    def short_id(self) -> str:
        """A name that two environments share only when they are equal: device, instruction set, counts, a hash."""
        words = f"{self.device} {self.instruction_set} {self.threads}t {self.world_size}r"
        digest = hashlib.sha256(self.model_dump_json().encode()).hexdigest()
        return re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") + f"-{digest[:8]}"


class WeightsFile(Value):
    """A file made outside the run whose weights it began with."""

    name: str
    size_bytes: int = Field(ge=0)
    sha256: str


class Manifest(Value):
    """Everything needed to find, check and restore one checkpoint."""

    step: int = Field(ge=0)
    samples_seen: int = Field(ge=0)
    epoch: int = Field(ge=0, description="Pass over the data that the next sample belongs to.")
    parent: CheckpointRef | None = Field(None, description="Checkpoint the attempt resumed from.")
    shards: tuple[Shard, ...]
    tensor_count: int = Field(ge=0, description="Tensors in the state; their types and digests are in the index.")
    new_bytes: int = Field(0, ge=0, description="What this checkpoint added to the store; the rest was there before.")
    saves_since_full: int = Field(0, ge=0, description="How many saves ago every tensor was stored again.")
    components: dict[str, str] = Field(description="Digest of each component's whole state.")
    environment: Environment
    metric: float | None = Field(None, description="The user's metric at this step, if one was evaluated.")
    imported_from: WeightsFile | None = Field(None, description="Where the weights came from; None: trained here.")

    @property
    def size_bytes(self) -> int:
        return sum(shard.size_bytes for shard in self.shards)


class WitnessRow(Value):
    """What one step looked like from outside, in full precision."""

    step: int = Field(ge=1, description="Global step that this row is the outcome of.")
    loss: float
    grad_norm: float
    param_norm: float = Field(description="After the optimizer step.")
    lr: tuple[float, ...]
    loss_scale: float | None = None
    batch_fingerprint: str = Field(description="Order-free hash of the sample ids; empty where nothing asks for it.")
    input_fingerprint: str = Field(description="Hash of the batch's bytes; likewise.")
    streams: dict[str, str] | None = Field(
        None, description="Hash of each random stream once the batch was drawn; only where the row bears witness."
    )


class VerdictKind(StrEnum):
    """The answer about a resume."""

    EXACT = "exact"
    EQUIVALENT = "equivalent"
    UNVERIFIED = "unverified"
    BROKEN = "broken"


class Finding(Value):
    """One reason in a verdict."""

    component: str = Field(description="What was lost or differs: optimizer, rng.torch, data order, ...")
    channel: str = Field(description="Where it showed: digest, loss, grad_norm, ...")
    step: int | None = Field(None, description="First step that differs; None when seen before any step.")
    sentence: str = Field(description="One sentence a person can act on.")


class Verdict(Value):
    """Whether a resume continued the run, and how much of that was proven."""

    kind: VerdictKind
    findings: tuple[Finding, ...] = ()
    components_compared: int = Field(0, ge=0)
    rows_compared: int = Field(0, ge=0, description="Steps replayed and compared with the sealed witness.")
    environment_changes: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.findings:
            return f"{self.kind}: {self.findings[0].sentence}"
        changed = f"; environment differs in {', '.join(self.environment_changes)}" if self.environment_changes else ""
        return f"{self.kind}: {self.components_compared} components and {self.rows_compared} steps compared{changed}"


class Skip(Value):
    """A stretch of the sample order that the run leaves out, because its numbers went bad there."""

    samples_seen: int = Field(ge=0, description="Position in the sample order at which it begins.")
    sample_count: int = Field(gt=0)

    def overlaps(self, start: int, count: int) -> bool:
        """Whether any of the `count` samples from position `start` on is in it."""
        return self.samples_seen < start + count and start < self.samples_seen + self.sample_count

    @property
    def in_words(self) -> str:
        return f"samples {self.samples_seen} to {self.samples_seen + self.sample_count - 1} of the order"


class Anomaly(Value):
    """A step after which the state is not worth keeping. It is no part of the run: nothing of it was committed."""

    step: int = Field(ge=1, description="Global step that the row would have been the outcome of.")
    kind: Literal["non_finite", "spike"]
    channel: Literal["loss", "grad_norm", "param_norm", "loss_scale"]
    value: float
    limit: float | None = Field(None, description="What the channel had to stay within; None: it had to be finite.")
    batch: Skip = Field(description="The place of its batch in the sample order.")
    sample_ids: tuple[int, ...] = Field((), description="The batch's samples; of very large batches the first ones.")

    @property
    def sentence(self) -> str:
        """What was seen, and where."""
        return f"{self.channel} was {self.value:.6g}{self._limit_in_words} at step {self.step}, {self.batch.in_words}"

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
    deployment: str = Field(description="Prefect deployment that runs it, e.g. segment/spot.")
    parent: CheckpointRef | None = Field(None, description="Where to resume; None starts at step 0.")
    at_most: CheckpointRef | None = Field(
        None, description="Resume from no newer one than this, for resumes from a newer one were broken."
    )
    max_seconds: float | None = Field(
        None, gt=0, description="Wall-clock bound; the loop commits and stops before it. None: until the goal."
    )
    start_within_seconds: float | None = Field(
        None, gt=0, description="Give up waiting for capacity after this long without a first heartbeat."
    )
    skips: tuple[Skip, ...] = Field((), description="What every attempt from now on leaves out, by position.")
    standby: str | None = Field(
        None, alias="spare", description="The standby that makes this attempt, on a machine that is booted."
    )


class CodeFailure(Value):
    """What the user's code raised."""

    type: str
    message: str
    traceback: str


class SegmentReport(Record):
    """What became of one attempt."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    attempt_id: str | None = Field(description="None when the attempt never claimed the run.")
    capacity: Capacity
    stop_reason: StopReason
    from_step: int = Field(ge=0)
    to_step: int = Field(ge=0, description="Last step reached, committed or not.")
    checkpoint: CheckpointRef | None = Field(None, description="Newest checkpoint this attempt committed.")
    samples_seen: int = Field(0, ge=0)
    lost_steps: int = Field(0, ge=0, description="Steps after the last commit that must be done again.")
    seconds: float = Field(0.0, ge=0, description="From claim to end, by the writer's own clock.")
    train_seconds: float = Field(0.0, ge=0, description="From the first new step to the last, saves included.")
    train_steps: int = Field(0, ge=0, description="Steps that `train_seconds` covers.")
    startup_seconds: float = Field(0.0, ge=0, description="From claim to the first new step.")
    save_seconds: float | None = Field(
        None, ge=0, description="Usually from a snapshot to its commit; None: nothing was committed."
    )
    save_cost_seconds: float | None = Field(None, ge=0, description="Training time that a save usually took away.")
    got_capacity: bool = Field(
        True, description="False when it had no machine of a pool: the wait was given up, or it was an import."
    )
    notice: Notice | None = None
    failure: CodeFailure | None = None
    anomaly: Anomaly | None = Field(None, description="The step that ended it, when its numbers went bad.")
    note: str | None = Field(None, description="Anything else a person should know.")

    @property
    def has_code_failed(self) -> bool:
        """Whether the user's code raised; a step whose numbers went bad has a budget of its own."""
        return self.stop_reason is StopReason.FAILED and self.anomaly is None


class Heartbeat(Record):
    """A sign of life, overwritten in place. Liveness is the counter moving, not a timestamp."""

    attempt_id: str
    counter: int = Field(ge=0)
    phase: Literal["starting", "restoring", "training", "stopping"]
    step: int = Field(ge=0)
    loss: float | None = None
    step_seconds: float | None = None
    last_commit_step: int | None = None
    trainer_pid: int
    cadence: str | None = Field(None, description="How often it saves just now, and why.")
    saves_delayed: int = Field(0, ge=0, description="Saves that had to wait until the one before was written.")
    trouble: str | None = Field(None, description="Why a save is being tried again; None while all is well.")
    rows: tuple[WitnessRow, ...] = Field((), description="Newest rows, to widen the overlap after a kill.")
    beat_at: datetime
