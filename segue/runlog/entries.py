"""Entries: the records that a slot of the run's log can hold."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import crc32c
from pydantic import Field, JsonValue, TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError

from segue.errors import DamagedRecordError
from segue.records import (
    Capacity,
    CheckpointRef,
    Environment,
    Finding,
    Manifest,
    Record,
    SegmentPlan,
    SegmentReport,
    Verdict,
    WitnessRow,
)
from segue.spec import RunSpec
from segue.units import Figures, Moment, Money, Prices, Seconds


class Entry(Record):
    """The fields that all records of the log have."""

    entry_id: str = Field(description="Unique id, by which a writer recognizes its own record when an answer was lost.")
    written_at: Moment = Field(description="Time of writing, for people; no decision depends on it.")
    epoch: int = Field(0, ge=0, description="Claim epoch of the writer; 0 for the controller.")
    log_id: str = Field(
        "",
        description="Id of the log that it was written for, which is the entry id of the log's first record. Empty in "
        "the first record itself, and in records of earlier versions.",
    )


class OpenEntry(Entry):
    """The run spec: at the start of a run, and again when the run is resumed with a changed spec or after a stop."""

    kind: Literal["open"] = "open"
    spec: RunSpec


Action = Literal["run", "import", "finished", "hopeless", "failed", "broken", "stopped", "cancelled", "budget"]
"""`import`, `stopped` and `cancelled` are chosen by a person: a stop of the run, a cancelled segment. `budget`: the
money that the run may cost is used up."""


class DecisionEntry(Entry):
    """A decision, its reason, and the numbers behind it."""

    kind: Literal["decision"] = "decision"
    plan: SegmentPlan | None = Field(description="Plan of the next segment; None when the run ends.")
    action: Action
    reason: str
    numbers: Figures = Field(default_factory=dict)


class ClaimEntry(Entry):
    """An attempt takes the right to write to the run."""

    kind: Literal["claim"] = "claim"
    attempt_id: str
    segment: int
    attempt: int
    capacity: Capacity
    host: str
    trainer_pid: int
    segment_pid: int = Field(description="Process that started the trainer; a notice is sent to it.")
    environment: Environment
    flow_run_id: str | None = None


class StartEntry(Entry):
    """A start of an attempt on its pool: its duration, or that it took too long."""

    kind: Literal["start"] = "start"
    segment: int
    attempt: int
    number: int = Field(ge=1, description="Which start of the attempt; 1: the first.")
    deployment: str
    outcome: Literal["slow", "claimed", "start_failed", "withdrawn"] = Field(
        description="`slow`: another start was asked for beside it; `claimed`: it trains the attempt; `start_failed`: "
        "it was given up; `withdrawn`: it was not needed any more."
    )
    seconds: Seconds = Field(
        description="Seconds from the moment a worker took it to the claim, or so far; 0: none took it."
    )
    reason: str = Field("", description="What was compared, for a person.")


class CommitEntry(Entry):
    """A commit: the checkpoint exists from this record on."""

    kind: Literal["commit"] = "commit"
    attempt_id: str
    manifest: Manifest
    untracked: tuple[Finding, ...] = Field(
        (), description="State that training has changed and no component holds, when it was first seen."
    )


class SealEntry(Entry):
    """The witness rows of the steps that followed a commit."""

    kind: Literal["seal"] = "seal"
    attempt_id: str
    checkpoint: CheckpointRef
    rows: tuple[WitnessRow, ...]


class VerdictEntry(Entry):
    """The verdict about an attempt's resume."""

    kind: Literal["verdict"] = "verdict"
    attempt_id: str
    parent: CheckpointRef
    verdict: Verdict
    replay: tuple[WitnessRow, ...] = Field(
        (), description="Replayed rows that were compared with the witness; the loss curve may not have them."
    )


class DrillEntry(Entry):
    """The verdict of a resume rehearsal."""

    kind: Literal["drill"] = "drill"
    checkpoint: CheckpointRef
    verdict: Verdict
    seconds: Seconds = Field(description="Seconds from the start of the rehearsal's process to the verdict.")
    process_values: tuple[str, ...] = Field(
        (), description="Values of the setup that are another in each process, by component and path."
    )


class ReportEntry(Entry):
    """The end of an attempt; written by the attempt itself, or by the controller if the attempt was lost."""

    kind: Literal["report"] = "report"
    report: SegmentReport


class HandoverEntry(Entry):
    """An attempt on on-demand capacity is about to be recalled, because a standby has booted and takes over."""

    kind: Literal["handover"] = "handover"
    standby: str = Field(alias="spare")
    deployment: str
    segment: int
    attempt: int
    reason: str
    numbers: Figures = Field(
        default_factory=dict,
        description="`waited_seconds`: how long the standby waited for spot; `held_seconds`: since it got a machine.",
    )


class QuarantineEntry(Entry):
    """A checkpoint is quarantined, or an unreadable record is given up: nothing resumes from it, and its bytes stay."""

    kind: Literal["quarantine"] = "quarantine"
    slot: int
    checkpoint: CheckpointRef | None = None
    reason: str


class LiftEntry(Entry):
    """A quarantine is lifted by a person: the checkpoint, or the record, has been read and is sound."""

    kind: Literal["lift"] = "lift"
    slot: int = Field(description="The slot of the checkpoint or record, as the quarantine names it.")
    reason: str


class PruneEntry(Entry):
    """Checkpoints whose bytes are about to be deleted, because retention no longer keeps them."""

    kind: Literal["prune"] = "prune"
    slots: tuple[int, ...]


class PricesEntry(Entry):
    """The prices that hold from here on, from the source that the run spec names."""

    kind: Literal["prices"] = "prices"
    source: str = Field(description="`pools.prices` of the run spec that was asked.")
    prices: Prices = Field(description="Price per hour by deployment.")
    taken_at: Moment = Field(description="When the source gave these prices.")
    problem: str | None = Field(None, description="Why reading the prices failed; the last known prices stay in force.")


class SpendingEntry(Entry):
    """Costs that count against the budget and are not in this run's log: of the store's other runs, of own standbys."""

    kind: Literal["spending"] = "spending"
    month: str = Field(description="The calendar month, as 2026-11.")
    others_cost: Money = Field(description="Cost of all other runs of the store in that month.")
    standby_cost: Money = Field(0.0, description="Cost of this run's standbys so far.")
    standby_month_cost: Money = Field(0.0, description="The part of it in that month.")


class ModelEntry(Entry):
    """A candidate of a retraining, or another version in service: `segue/retraining/model_record.py`."""

    kind: Literal["model"] = "model"
    record: dict[str, JsonValue]


class VerificationEntry(Entry):
    """The outcome of a scheduled verification: `segue/verification/verification_record.py`."""

    kind: Literal["verification"] = "verification"
    record: dict[str, JsonValue]


AnyEntry = Annotated[
    OpenEntry
    | DecisionEntry
    | ClaimEntry
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
    | ModelEntry
    | VerificationEntry,
    Field(discriminator="kind"),
]

_ADAPTER: TypeAdapter[AnyEntry] = TypeAdapter(AnyEntry)
_HEAD = b'{"crc32c":"%08x","entry":'
_HEAD_BYTES = len(_HEAD % 0)


def encode(entry: Entry) -> bytes:
    """The entry as JSON, after a checksum of its bytes, so that a flipped bit that still parses is detected."""
    return framed(body_of(entry))


def decode(data: bytes, *, key: str) -> AnyEntry:
    """The entry that `encode` wrote.

    Raises:
        DamagedRecordError: the bytes are not what `encode` wrote.
    """
    return parse(unframed(data, key=key), key=key)


def body_of(entry: Entry) -> bytes:
    """The entry as JSON."""
    try:
        return entry.model_dump_json().encode()
    except PydanticSerializationError:
        # Surrogates, from a file name that is not UTF-8: a traceback with such a name must not cost the report.
        return type(entry).model_validate(_in_whole_characters(entry.model_dump())).model_dump_json().encode()


def framed(body: bytes) -> bytes:
    """A record's body (the entry and perhaps its signature) after the body's checksum."""
    return _HEAD % crc32c.crc32c(body) + body + b"}"


def unframed(data: bytes, *, key: str) -> bytes:
    """The body of a record.

    Raises:
        DamagedRecordError: the bytes are not what `framed` made.
    """
    if not is_intact(data):
        raise DamagedRecordError(key=key, why="its checksum does not match its bytes")
    return data[_HEAD_BYTES:-1]


def parse(body: bytes, *, key: str) -> AnyEntry:
    """The entry of a body without signature.

    Raises:
        DamagedRecordError: the body is no entry, or an entry of a newer version.
    """
    try:
        return _ADAPTER.validate_json(body)
    except ValidationError as error:
        version = _newest_version(error)
        why = (
            f"schema version {version} is newer than this segue"
            if version > 1
            else f"not a log record ({error.error_count()} problems)"
        )
        raise DamagedRecordError(key=key, why=why) from None


def is_intact(data: bytes) -> bool:
    """Whether the bytes are a record as it was written, by this version of segue or by another."""
    return data[-1:] == b"}" and data[:_HEAD_BYTES] == _HEAD % crc32c.crc32c(memoryview(data)[_HEAD_BYTES:-1])


def entry_id_in(data: bytes) -> str | None:
    """The id of a record, signed or not, of any version; None if the bytes are no record. Nothing is verified."""
    try:
        found = json.loads(data)["entry"]["entry_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _in_whole_characters(value: object) -> object:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_in_whole_characters(key): _in_whole_characters(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_whole_characters(item) for item in value]
    return value


def _newest_version(error: ValidationError) -> int:
    """The highest schema version in the refused record or its parts; 1 when there is none."""
    found = []
    for problem in error.errors(include_url=False, include_context=False):
        value = problem["input"]
        if problem["type"] == "union_tag_invalid" and isinstance(value, dict):
            value = value.get("schema_version")  # For an unknown kind, pydantic reports only the whole record.
        elif problem["loc"][-1:] != ("schema_version",):
            continue
        found.append(value if isinstance(value, int) else 1)
    return max(found, default=1)
