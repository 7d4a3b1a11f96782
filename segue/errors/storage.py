"""Defines the errors of stores, the run's log, and the bytes of checkpoints."""

from __future__ import annotations

from segue.errors.base import SegueError, UsageError


class StoreError(SegueError):
    """An operation on a store failed."""


class StoreUnreachableError(StoreError, UsageError):
    """The store cannot be reached, or refuses access."""

    exit_code = 2

    def __init__(self, *, url: str, why: str, fix: str) -> None:
        self.url, self.why = url, why
        super().__init__(f"store {url}: {why}", fix=fix)


class MissingObjectError(StoreError):
    """The store has no object with the requested name."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(
            f"{key} is not in the store.",
            fix="if the object was deleted by mistake, restore it from the bucket's versions.",
        )


class BadKeyError(StoreError):
    """An object key points outside its folder, or is malformed."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(
            f"object key {key!r} was refused: it is not a plain relative path.",
            fix="do not trust the source of this key.",
        )


class FencedError(SegueError):
    """This attempt may no longer write to the run. The attempt must stop and must not try again."""


class SupersededError(FencedError):
    """Another attempt holds a newer claim."""

    def __init__(self, *, epoch: int, newer_epoch: int) -> None:
        self.epoch, self.newer_epoch = epoch, newer_epoch
        super().__init__(
            f"claim epoch {epoch} was superseded by epoch {newer_epoch}: another attempt owns this run now. "
            "This attempt stops without committing.",
            fix="none needed.",
        )


class LogReplacedError(FencedError):
    """The log that this process read is no longer in the store, because the run was deleted and perhaps started
    again.
    """

    def __init__(self, *, run_id: str, url: str, key: str, log_id: str, is_there: bool) -> None:
        self.run_id, self.url, self.key, self.log_id, self.is_there = run_id, url, key, log_id, is_there
        what = "is another record now" if is_there else "is missing"
        super().__init__(
            f"store {url}: {key} {what}, so the log {log_id[:8]} of run {run_id} was deleted or replaced. "
            "This process writes nothing to the new log.",
            fix="none needed if the run was deleted on purpose; otherwise restore its folder from the bucket's "
            "versions or from a backup, and start the run again.",
        )


class LogCutError(StoreError):
    """The run was deleted only in part: the beginning of its log is missing, but later records exist."""

    def __init__(self, *, run_id: str, url: str, begins_with: int | None) -> None:
        self.run_id, self.url, self.begins_with = run_id, url, begins_with
        what = f"its first readable record is {begins_with}" if begins_with is not None else "no record is readable"
        super().__init__(
            f"store {url}: the log of run {run_id} has lost its beginning ({what}). A process of the run may have "
            "written these records while the run was deleted.",
            fix=f"if the run was deleted on purpose, delete the remaining objects below {run_id}/ in the store, and "
            "start the run again. Otherwise restore the log from the bucket's versions or from a backup.",
        )


class UnreadRecordError(StoreError):
    """A record after the claim of an attempt cannot be read, and may be a newer claim. The attempt therefore stops."""

    def __init__(self, *, key: str, epoch: int, why: str) -> None:
        self.key, self.epoch, self.why = key, epoch, why
        super().__init__(
            f"{key} cannot be read ({why}). The record may be a claim that is newer than epoch {epoch}. "
            "This attempt stops without committing.",
            fix="none needed: the next attempt claims the run after that record, and continues from the newest "
            "checkpoint.",
        )


class StalePlanError(SegueError):
    """An attempt was started for a plan that is no longer in force. The attempt must stop and must not try again."""

    def __init__(self, *, segment: int, attempt: int, why: str) -> None:
        self.segment, self.attempt, self.why = segment, attempt, why
        super().__init__(
            f"segment {segment} attempt {attempt} came too late: {why}. The attempt stops without changing the run.",
            fix="none needed.",
        )


class LogMovedError(SegueError):
    """Another process appended to the log after this process read the log, so the decision must be made again."""

    def __init__(self, *, slot: int) -> None:
        self.slot = slot
        super().__init__(f"log slot {slot} was taken by another writer.", fix="read the log and decide again.")


class DamagedRecordError(StoreError):
    """A record of the run's log cannot be read."""

    def __init__(self, *, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(
            f"{key}: {why}. The record is quarantined and the rest of the log is used.", fix="none needed."
        )


class CheckpointError(SegueError):
    """A checkpoint cannot be used."""

    key: str


_NEXT = "The checkpoint is quarantined."
_NEXT_FIX = "none needed; the previous checkpoint is used."


class MissingShardError(CheckpointError):
    """A shard that the manifest names is missing from the store."""

    def __init__(self, *, key: str) -> None:
        self.key = key
        super().__init__(f"{key} is missing from the store. {_NEXT}", fix=_NEXT_FIX)


class TruncatedShardError(CheckpointError):
    """A shard's size differs from the size in its manifest."""

    def __init__(self, *, key: str, expected_bytes: int, found_bytes: int) -> None:
        self.key, self.expected_bytes, self.found_bytes = key, expected_bytes, found_bytes
        super().__init__(f"{key} has {found_bytes} bytes; the manifest says {expected_bytes}. {_NEXT}", fix=_NEXT_FIX)


class CorruptShardError(CheckpointError):
    """A shard's bytes do not match their checksum."""

    def __init__(self, *, key: str, chunk: int, expected: int, found: int) -> None:
        self.key, self.chunk, self.expected, self.found = key, chunk, expected, found
        super().__init__(
            f"{key} chunk {chunk} is damaged: crc32c {found:08x}, manifest {expected:08x}. {_NEXT}", fix=_NEXT_FIX
        )


class MalformedCheckpointError(CheckpointError):
    """The bytes of a checkpoint match their checksums, but contradict the manifest or cannot be parsed."""

    def __init__(self, *, key: str, why: str) -> None:
        self.key, self.why = key, why
        super().__init__(f"{key}: {why}. {_NEXT}", fix=_NEXT_FIX)


class UnsupportedStateError(SegueError):
    """A value in the state has a type that a checkpoint cannot store."""

    def __init__(
        self, *, path: str, type_name: str, fix: str = "give the object a state_dict() of these types"
    ) -> None:
        self.path, self.type_name = path, type_name
        super().__init__(
            f"{path}: cannot store a {type_name}. Checkpoints hold tensors, arrays, numbers, strings, lists, tuples "
            "and dicts, never pickles.",
            fix=f"{fix}.",
        )


class StateTooLargeError(SegueError):
    """The state exceeds a limit above which a checkpoint could not be read again."""

    def __init__(self, *, what: str, found: int, most: int, fix: str) -> None:
        self.what, self.found, self.most = what, found, most
        super().__init__(f"{what}: {found}, but a checkpoint can have at most {most}. Nothing was written.", fix=fix)


class WriterDiedError(SegueError):
    """The process that writes checkpoints ended."""

    def __init__(self, *, exit_code: int | None, why: str) -> None:
        self.exit_code_found, self.why = exit_code, why
        super().__init__(
            f"the writer process ended (exit code {exit_code}: {why}). The process is started again, and the save "
            "is retried.",
            fix="if the process was killed because memory ran out, add memory for one more copy of the state, or set "
            "staging_buffers = 1.",
        )


class WorkAtRiskError(StoreError):
    """No commit has succeeded for longer than max_work_at_risk_seconds."""

    def __init__(self, *, at_risk_seconds: float, allowed_seconds: float, why: str) -> None:
        self.at_risk_seconds, self.allowed_seconds, self.why = at_risk_seconds, allowed_seconds, why
        super().__init__(
            f"{at_risk_seconds:.0f} s of work are not committed, but max_work_at_risk_seconds allows only "
            f"{allowed_seconds:.0f}: {why.partition(' Fix: ')[0]} The run continues from its last commit.",
            fix="repair the store, or set a larger max_work_at_risk_seconds.",
        )
