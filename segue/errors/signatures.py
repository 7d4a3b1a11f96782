"""Defines the errors of signing keys, and of records or shards that were not signed with the key."""

from __future__ import annotations

from segue.errors.base import SegueError, UsageError
from segue.errors.storage import CheckpointError


def _stop_fix(key: str, slot: int) -> str:
    run_id = key.partition("/")[0]
    return (
        f"find out who can write to the store. Then move {key} out of the store and start the run again. If the run "
        f"then says that record {slot} is missing: segue checkpoints give-up-record {run_id} --record {slot}. See "
        "docs/security.md."
    )


class SigningKeyError(UsageError):
    """A signing key cannot be used."""

    def __init__(self, *, reference: str, why: str, fix: str) -> None:
        self.reference, self.why = reference, why
        super().__init__(f"signing key {reference}: {why}.", fix=fix)


class BadSignatureError(SegueError):
    """A signature does not match the bytes and the key."""

    def __init__(self, *, why: str, key_id: str) -> None:
        self.why, self.key_id = why, key_id
        super().__init__(f"{why} (key {key_id}).", fix="do not use the bytes; find out who wrote them.")


class SigningKeyNeededError(UsageError):
    """The log of a run is signed, but no signing key was given."""

    def __init__(self, *, run_id: str) -> None:
        self.run_id = run_id
        super().__init__(
            f"the log of {run_id} is signed, but no signing key was given.",
            fix="set [store] signing_key in the run spec to env:NAME or file:/path; for a command without a run "
            "spec, set "
            "the environment variable SEGUE_SIGNING_KEY_FROM to that value.",
        )


class UnsignedLogError(UsageError):
    """A signing key was given, but the log of the run is not signed."""

    def __init__(self, *, run_id: str, key: str) -> None:
        self.run_id, self.key = run_id, key
        super().__init__(
            f"a signing key was given, but {key} of the log of {run_id} is not signed.",
            fix="start a run with another id; or, if this run was never signed, continue it without signing_key.",
        )


class ForgedRecordError(SegueError):
    """A record of a signed log was not signed with the key of the log."""

    def __init__(self, *, key: str, slot: int, why: str) -> None:
        self.key, self.slot, self.why = key, slot, why
        super().__init__(f"{key} is forged: {why}. The record was not used.", fix=_stop_fix(key, slot))


class ReplayedRecordError(SegueError):
    """A record of a signed log is a copy of a record from another slot, run or log."""

    def __init__(self, *, key: str, slot: int, signed_for: str) -> None:
        self.key, self.slot, self.signed_for = key, slot, signed_for
        super().__init__(
            f"{key} is a copy: it was signed for {signed_for}. The record was not used.", fix=_stop_fix(key, slot)
        )


class BrokenChainError(SegueError):
    """A record of a signed log was replaced, because a later record was signed as the successor of a different
    record.
    """

    def __init__(self, *, key: str, slot: int, later_slot: int) -> None:
        self.key, self.slot, self.later_slot = key, slot, later_slot
        super().__init__(
            f"{key} was replaced: record {later_slot} of the log was written after another record {slot}.",
            fix=_stop_fix(key, slot),
        )


class ForgedShardError(CheckpointError):
    """The bytes of a shard match their checksum but not their signed hash. Somebody replaced the bytes on purpose."""

    def __init__(self, *, key: str, chunk: int, expected: str, found: str) -> None:
        self.key, self.chunk, self.expected, self.found = key, chunk, expected, found
        super().__init__(
            f"{key} chunk {chunk} is forged: SHA-256 {found[:12]}..., signed manifest {expected[:12]}... "
            "The checkpoint is quarantined.",
            fix="find out who can write to the store. The run continues from the previous checkpoint.",
        )


class LostRecordError(SegueError):
    """A record in the middle of a signed log, perhaps a quarantine or a stop, is missing or damaged."""

    def __init__(self, *, run_id: str, slot: int, key: str, why: str) -> None:
        self.run_id, self.slot, self.key, self.why = run_id, slot, key, why
        super().__init__(
            f"record {slot} of the signed log of {run_id} cannot be read ({key}: {why}). The record may have "
            "quarantined a checkpoint or stopped the run, so segue makes no decision without it.",
            fix=f"restore {key} from the bucket's versions or from a backup. If that is not possible, look "
            "at the records before and after it, then continue without it: segue checkpoints give-up-record "
            f"{run_id} --record {slot}",
        )


class NothingTrustedError(SegueError):
    """A signed run has checkpoints or unreadable records, but no usable checkpoint."""

    def __init__(self, *, run_id: str, checkpoints: int, unreadable: int) -> None:
        self.run_id, self.checkpoints, self.unreadable = run_id, checkpoints, unreadable
        super().__init__(
            f"run {run_id} has {checkpoints} checkpoints and {unreadable} unreadable records in its signed log, but no "
            "usable checkpoint. The run does not start again at step 0 automatically.",
            fix="restore the objects from the bucket's versions, or start a run with another id.",
        )
