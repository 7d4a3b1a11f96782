"""Defines the kinds of records in the log of a run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from segue.errors import DamagedRecordError
from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Finding,
    Machine,
    MachineCheck,
    Manifest,
    Record,
    SeenPools,
    SegmentPlan,
    SegmentReport,
    Verdict,
    WitnessRow,
)
from segue.runlog.framing import framed, in_whole_characters, newest_version, unframed
from segue.spec import RunSpec
from segue.units import Figures, Moment, Money, Prices, Seconds


def _is_unset(value: object) -> bool:
    """Whether a field is left out of the record. Older versions refuse fields that they do not know."""
    return value in (None, ())


class Entry(Record):
    """The common fields of all records of the log."""

    entry_id: str = Field(
        description="Unique id; if an answer of the store was lost, the writer recognizes its own record by this id."
    )
    written_at: Moment = Field(description="Time of writing, for people; no decision depends on this time.")
    epoch: int = Field(0, ge=0, description="Claim epoch of the writer; 0 for the controller.")
    log_id: str = Field(
        "",
        description="Id of the log for which this record was written: the entry id of the first record of the log. "
        "The id is empty in the first record itself, and in records that older versions of segue wrote.",
    )


class OpenEntry(Entry):
    """The run spec, written when a run starts, and when it is resumed after a stop or with a changed spec."""

    kind: Literal["open"] = "open"
    spec: RunSpec


Action = Literal["run", "import", "finished", "hopeless", "failed", "broken", "stopped", "cancelled", "budget"]
"""A person causes the actions `import`, `stopped` (stop of the run) and `cancelled` (cancellation of a segment).

The action `budget` means that the budget of the run is used up.
"""


class DecisionEntry(Entry):
    """A decision, with its reason and the numbers on which it is based."""

    kind: Literal["decision"] = "decision"
    plan: SegmentPlan | None = Field(description="Plan of the next segment; None: the run ends.")
    action: Action
    reason: str
    numbers: Figures = Field(default_factory=dict)


class ClaimEntry(Entry):
    """The record by which an attempt takes the right to write to the run."""

    kind: Literal["claim"] = "claim"
    attempt_id: str
    segment: int
    attempt: int
    capacity: Capacity
    host: str
    trainer_pid: int
    segment_pid: int = Field(
        description="Id of the process that started the trainer; notices are sent to this process."
    )
    environment: Environment
    flow_run_id: str | None = None
    deployment: str | None = Field(
        None,
        exclude_if=_is_unset,
        description="Pool of the machine that runs the attempt, if the machine was requested on several pools.",
    )
    machines: tuple[Machine, ...] = Field((), exclude_if=_is_unset, description="Machines of all ranks.")
    machine_check: MachineCheck | None = Field(
        None, exclude_if=_is_unset, description="Check of rank 0's machine before the claim; None: not made."
    )


class MachineEntry(Entry):
    """A machine that failed the check before the claim, so that the attempt did not train there."""

    kind: Literal["machine"] = "machine"
    segment: int
    attempt: int
    deployment: str
    machine: Machine
    machine_check: MachineCheck


class StartEntry(Entry):
    """One start of an attempt on its pool, with the outcome and the duration of the start."""

    kind: Literal["start"] = "start"
    segment: int
    attempt: int
    number: int = Field(ge=1, description="Number of this start among the starts of the attempt, from 1.")
    deployment: str
    outcome: Literal["requested", "slow", "claimed", "start_failed", "withdrawn"] = Field(
        description="`requested`: the start was requested on a different pool than the first start; `slow`: the "
        "start took too long, and another start was requested; `claimed`: this start runs the "
        "attempt; `start_failed`: the start failed; `withdrawn`: the start was no longer needed."
    )
    seconds: Seconds = Field(
        description="Seconds from the moment at which a worker took the start until the claim, or until this record "
        "if there was no claim; 0: no worker took the start."
    )
    reason: str = Field("", description="The compared numbers, in words.")


class CommitEntry(Entry):
    """A commit. The checkpoint exists from this record on."""

    kind: Literal["commit"] = "commit"
    attempt_id: str
    manifest: Manifest
    untracked: tuple[Finding, ...] = Field(
        (),
        description="Untracked state that was found for the first time at this commit, and parts of the loss curve "
        "that were damaged when the attempt resumed.",
    )


class SealEntry(Entry):
    """The witness rows of the steps after a commit."""

    kind: Literal["seal"] = "seal"
    attempt_id: str
    checkpoint: CheckpointRef
    rows: tuple[WitnessRow, ...]


class VerdictEntry(Entry):
    """The verdict about the resume of one attempt."""

    kind: Literal["verdict"] = "verdict"
    attempt_id: str
    parent: CheckpointRef
    verdict: Verdict
    replay: tuple[WitnessRow, ...] = Field(
        (), description="Replayed rows that were compared with the witness; the stored loss curve may lack these rows."
    )


class DrillEntry(Entry):
    """The verdict of a resume rehearsal."""

    kind: Literal["drill"] = "drill"
    checkpoint: CheckpointRef
    verdict: Verdict
    seconds: Seconds = Field(description="Seconds from the start of the rehearsal process to the verdict.")
    process_values: tuple[str, ...] = Field(
        (), description="Values of the setup that differ from process to process, by component and path."
    )


class ReportEntry(Entry):
    """The end of an attempt. The attempt writes this record. If the attempt was lost, the controller writes it."""

    kind: Literal["report"] = "report"
    report: SegmentReport


class HandoverEntry(Entry):
    """The record that a standby has booted and takes over. The parent writes it before it recalls the on-demand
    attempt."""

    kind: Literal["handover"] = "handover"
    standby: str = Field(alias="spare")
    deployment: str
    segment: int
    attempt: int
    reason: str
    numbers: Figures = Field(
        default_factory=dict,
        description="`waited_seconds`: time for which the standby waited for spot; `held_seconds`: time since the "
        "standby got a machine.",
    )


class QuarantineEntry(Entry):
    """The record that a checkpoint is quarantined, or that an unreadable record is given up.

    No attempt uses a quarantined checkpoint or a given-up record, but their bytes are kept.
    """

    kind: Literal["quarantine"] = "quarantine"
    slot: int
    checkpoint: CheckpointRef | None = None
    reason: str


class LiftEntry(Entry):
    """The record by which a person lifts a quarantine, after the checkpoint or the record was read without damage."""

    kind: Literal["lift"] = "lift"
    slot: int = Field(description="Slot of the checkpoint or record, the same as in the quarantine entry.")
    reason: str


class PruneEntry(Entry):
    """The checkpoints that retention no longer keeps. The bytes of these checkpoints are deleted after this record is
    written."""

    kind: Literal["prune"] = "prune"
    slots: tuple[int, ...]


class PricesEntry(Entry):
    """The prices that apply from this record on, from the price source in the run spec."""

    kind: Literal["prices"] = "prices"
    source: str = Field(description="Source of the prices: `pools.prices` of the run spec.")
    prices: Prices = Field(description="Price per hour by deployment.")
    taken_at: Moment = Field(description="Time at which these prices were read from the source.")
    problem: str | None = Field(None, description="Why reading the prices failed; the last known prices stay in force.")


class SpendingEntry(Entry):
    """Costs that count against the budget but have no report in this log: those of other runs and of this run's
    standbys."""

    kind: Literal["spending"] = "spending"
    month: str = Field(description="Calendar month, e.g. 2026-11.")
    others_cost: Money = Field(description="Cost of all other runs of the store in that month.")
    standby_cost: Money = Field(0.0, description="Cost of the standbys of this run so far.")
    standby_month_cost: Money = Field(0.0, description="Part of `standby_cost` that falls into that month.")


class PoolsEntry(Entry):
    """What other runs of the store measured on the pools of this run. Decisions use these measurements as a prior."""

    kind: Literal["pools"] = "pools"
    seen: SeenPools


class ModelEntry(Entry):
    """A candidate of a retraining, or a change of the version in service. See `segue/retraining/model_record.py`."""

    kind: Literal["model"] = "model"
    record: dict[str, JsonValue]


class VerificationEntry(Entry):
    """The outcome of a scheduled verification. See `segue/verification/verifications.py`."""

    kind: Literal["verification"] = "verification"
    record: dict[str, JsonValue]


AnyEntry = Annotated[
    OpenEntry
    | DecisionEntry
    | ClaimEntry
    | MachineEntry
    | StartEntry
    | CommitEntry
    | SealEntry
    | VerdictEntry
    | DrillEntry
    | ReportEntry
    | HandoverEntry
    | QuarantineEntry
    | LiftEntry
    | PruneEntry
    | PricesEntry
    | SpendingEntry
    | PoolsEntry
    | ModelEntry
    | VerificationEntry,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[AnyEntry] = TypeAdapter(AnyEntry)


def encode(entry: Entry) -> bytes:
    """Return the entry as JSON after a checksum. The checksum detects flipped bits that still give valid JSON."""
    return framed(body_of(entry))


def decode(data: bytes, *, key: str) -> AnyEntry:
    """Return the entry that `encode` wrote.

    Raises:
        DamagedRecordError: the bytes are not what `encode` wrote.
    """
    return parse(unframed(data, key=key), key=key)


def body_of(entry: Entry) -> bytes:
    """Return the entry as JSON."""
    try:
        return entry.model_dump_json().encode()
    except PydanticSerializationError:
        # The text has surrogates, from a file name that is not UTF-8. A traceback with such a name must not prevent the
        # report.
        return type(entry).model_validate(in_whole_characters(entry.model_dump())).model_dump_json().encode()


def parse(body: bytes, *, key: str) -> AnyEntry:
    """Return the entry of a body without a signature.

    Raises:
        DamagedRecordError: the body is not an entry, or is an entry of a newer version of segue.
    """
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        version = newest_version(error)
        why = (
            f"schema version {version} is newer than this segue"
            if version > 1
            else f"not a log record ({error.error_count()} problems)"
        )
        raise DamagedRecordError(key=key, why=why) from None
