"""Which checkpoint to resume from: the newest that reads back whole. Damaged ones are set aside, never deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from segue.checkpoints.digests import Digests
from segue.checkpoints.incremental import Base
from segue.checkpoints.shards import read_stored
from segue.checkpoints.snapshot import Snapshot, snapshot_of
from segue.entries import Entry, QuarantineEntry
from segue.errors import CheckpointError
from segue.history import Checkpoint, read_history
from segue.runlog import RunLog, Stamp
from segue.stores.base import Store

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restorable:
    """A checkpoint and its verified bytes."""

    checkpoint: Checkpoint
    snapshot: Snapshot
    digests: Digests
    """What the committed state is."""
    base: Base
    """What a save may refer to."""


def newest_valid(runlog: RunLog, *, epoch: int, fast: Sequence[Store] = ()) -> Restorable | None:
    """The newest checkpoint of the run that verifies, read whole; None when there is none to take.

    Stores in `fast` are asked first: what they hold counts where it is byte for byte what was committed.

    Every checkpoint that does not verify, and every slot of the log that cannot be read, is named in the log by a
    quarantine record before the next one is tried.

    Raises:
        FencedError: a newer claim exists.
        StoreReadError: the store did not say; trying again is safe.
    """
    _name_damaged_slots(runlog, epoch=epoch)
    for checkpoint in reversed(read_history(runlog).usable):
        try:
            stored = read_stored([*fast, runlog.store], run_id=runlog.run_id, manifest=checkpoint.manifest)
            snapshot = snapshot_of(stored)
        except CheckpointError as error:
            log.warning("checkpoint set aside step=%d reason=%s", checkpoint.manifest.step, error)
            quarantine(runlog, checkpoint=checkpoint, reason=str(error), epoch=epoch)
            continue
        return Restorable(checkpoint, snapshot, stored.digests, stored.base)
    return None


def quarantine(runlog: RunLog, *, checkpoint: Checkpoint, reason: str, epoch: int) -> None:
    """Set a checkpoint aside so that nothing resumes from it. Its bytes stay."""

    def build(stamp: Stamp) -> Entry:
        common = stamp(epoch=epoch)
        return QuarantineEntry.model_validate(
            common | {"slot": checkpoint.ref.slot, "checkpoint": checkpoint.ref, "reason": reason}
        )

    runlog.append(build, epoch=epoch)


def _name_damaged_slots(runlog: RunLog, *, epoch: int) -> None:
    history = read_history(runlog)
    for damage in history.damage:
        if damage.slot in history.named_damage:
            continue
        log.warning("log record set aside key=%s reason=%s", damage.key, damage.why)

        def build(stamp: Stamp, slot: int = damage.slot, why: str = f"{damage.key}: {damage.why}") -> Entry:
            return QuarantineEntry.model_validate(stamp(epoch=epoch) | {"slot": slot, "reason": why})

        runlog.append(build, epoch=epoch)
