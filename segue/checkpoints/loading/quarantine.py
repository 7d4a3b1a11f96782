"""Quarantines checkpoints and records.

No attempt resumes from a quarantined checkpoint until a person lifts the quarantine.
"""

from __future__ import annotations

from segue.errors import CheckpointError, DamagedCheckpointError, NoLostRecordError, NotQuarantinedError
from segue.runlog import keys
from segue.runlog.entries import Entry, LiftEntry, QuarantineEntry
from segue.runlog.history import Checkpoint, read_history
from segue.runlog.log import RunLog, Stamp


def quarantine(runlog: RunLog, *, checkpoint: Checkpoint, reason: str, epoch: int) -> None:
    """Quarantine a checkpoint, so that no attempt resumes from it. The bytes of the checkpoint are kept.

    Raises:
        FencedError, UnreadRecordError: a newer claim exists, or may exist.
        StoreWriteError, StoreReadError: the store could not be used. It is safe to call the function again.
    """

    def build(stamp: Stamp) -> Entry:
        facts = {"slot": checkpoint.ref.slot, "checkpoint": checkpoint.ref, "reason": reason}
        return QuarantineEntry.model_validate(stamp(epoch=epoch) | facts)

    runlog.append(build, epoch=epoch)


def give_up_record(runlog: RunLog, *, slot: int, reason: str, epoch: int) -> None:
    """Give up an unreadable record of the run's log, so that segue no longer tries to read this record.

    If the unreadable record was a commit, the checkpoint of this commit stays quarantined for good.

    Raises:
        All errors that `quarantine` raises.
    """
    facts = {"slot": slot, "reason": f"{keys.log_key(runlog.run_id, slot)}: {reason}"}
    runlog.append(lambda stamp: QuarantineEntry.model_validate(stamp(epoch=epoch) | facts), epoch=epoch)


def give_up_by_name(runlog: RunLog, slot: int) -> str:
    """Give up a record at the request of a person. Return the reason why the record cannot be read.

    Raises:
        NoLostRecordError: the record can be read, was given up before, or does not exist.
        StoreWriteError, StoreReadError: the store could not be used. It is safe to call the function again.
    """
    unread = {damage.slot: damage.why for damage in read_history(runlog.reload()).unread}
    if slot not in unread:
        raise NoLostRecordError(run_id=runlog.run_id, slot=slot, unread=tuple(unread))
    give_up_record(runlog, slot=slot, reason=f"{unread[slot]}; given up by a person", epoch=0)
    return unread[slot]


def lift(runlog: RunLog, *, step: int) -> str:
    """Read and verify a checkpoint, then lift its quarantine. Return the reason for the quarantine.

    Raises:
        NotQuarantinedError: there is no quarantined checkpoint of this step.
        DamagedCheckpointError: the checkpoint is damaged.
        StoreWriteError, StoreReadError: the store could not be used. It is safe to call the function again.
    """
    from segue.checkpoints.loading.read import read_stored

    history = read_history(runlog.reload())
    quarantined = {c.manifest.step: c for c in history.checkpoints if c.quarantined is not None and not c.is_pruned}
    found = quarantined.get(step)
    if found is None:
        raise NotQuarantinedError(run_id=runlog.run_id, step=step, quarantined=tuple(quarantined))
    try:
        read_stored([runlog.store], run_id=runlog.run_id, manifest=found.manifest)
    except CheckpointError as error:
        steps_there = tuple(c.manifest.step for c in history.usable)
        raise DamagedCheckpointError(step=step, key=error.key, damage=str(error), steps_there=steps_there) from None
    facts = {"slot": found.ref.slot, "reason": "the bytes were read again and verified"}
    runlog.append(lambda stamp: LiftEntry.model_validate(stamp(epoch=0) | facts))
    return found.quarantined or ""
