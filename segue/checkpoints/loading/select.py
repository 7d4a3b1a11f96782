"""Selects the newest checkpoint that verifies. A damaged checkpoint is quarantined, and is never deleted."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from segue.checkpoints.format.digests import Digests
from segue.checkpoints.format.index import Base
from segue.checkpoints.format.limits import refuse_more_than
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.loading.adoption import adopt_last_save
from segue.checkpoints.loading.quarantine import give_up_record, quarantine
from segue.checkpoints.loading.read import Selection, read_stored
from segue.checkpoints.loading.snapshot import snapshot_of
from segue.errors import CheckpointError
from segue.records import CheckpointRef
from segue.runlog import keys
from segue.runlog.history import Checkpoint, read_history, require_trusted, require_whole
from segue.runlog.log import RunLog
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.stores.retry import patiently

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Restorable:
    """A checkpoint and its verified bytes."""

    checkpoint: Checkpoint
    snapshot: Snapshot
    digests: Digests
    """Digests of the committed state."""
    base: Base
    """The tensors to which an incremental save may refer."""


class Readers(Protocol):
    """The ranks that restore together."""

    @property
    def is_leader(self) -> bool: ...

    def first_of(self, text: str) -> str:
        """Return the first non-empty text of all ranks, in the order of the ranks. All ranks must call this method."""
        ...


def newest_valid(
    runlog: RunLog,
    *,
    epoch: int,
    at_most: CheckpointRef | None = None,
    fast: Sequence[Store] = (),
    readers: Readers | None = None,
    own: Selection | None = None,
    memory_bytes: int | None = None,
) -> Restorable | None:
    """Return the newest checkpoint of the run whose bytes all verify. Return None if no checkpoint verifies.

    If an earlier attempt completed a save but did not commit it, the function first commits this save. If `at_most` is
    given, the function commits no save and skips checkpoints that were committed after `at_most`. A copy in the stores
    of `fast` is used if the copy matches the committed bytes.

    The function writes a quarantine record for every damaged checkpoint before it tries the next checkpoint. Every slot
    of the log that cannot be read also gets a quarantine record. All ranks use the newest checkpoint that all ranks
    could read. If `own` is given, each rank reads only the part of the checkpoint that it needs. `memory_bytes` is the
    memory limit of this process in bytes. None means no limit.

    Raises:
        FencedError: a newer claim exists.
        StoreReadError: the store could not be read. It is safe to call the function again.
        NothingTrustedError: the log is signed, and no checkpoint is usable.
        LostRecordError: the log is signed, and a record cannot be read.
        MachineTooSmallError: the memory of this machine or its container is too small for the newest checkpoint.
    """
    leads = readers is None or readers.is_leader
    if leads:
        patiently(lambda: _name_damaged_slots(runlog, epoch=epoch), what="log")
    if leads and at_most is None:
        _adopt(runlog, epoch=epoch)
    usable = patiently(lambda: read_history(runlog), what="log").usable
    newest_first = [c.ref.slot for c in reversed(usable) if at_most is None or c.ref.slot <= at_most.slot]
    while True:
        slot = str(newest_first.pop(0)) if leads and newest_first else ""
        slot = slot if readers is None else readers.first_of(slot)
        if not slot:
            require_trusted(runlog, read_history(runlog), has_checkpoint=False)
            return None
        checkpoint = _at(runlog, int(slot))
        manifest = checkpoint.manifest
        if own is None:  # With `own`, the index shows later which bytes this rank reads.
            refuse_more_than(memory_bytes, manifest.size_bytes, key=f"the checkpoint of step {manifest.step}")
        read = partial(_read, runlog, checkpoint, fast, own=own, memory_bytes=memory_bytes)
        found = patiently(read, what="checkpoint")
        damage = "" if isinstance(found, Restorable) else str(found)
        if readers is not None:
            damage = readers.first_of(damage)
        if not damage and isinstance(found, Restorable):
            return found
        log.warning("checkpoint quarantined step=%d reason=%s", checkpoint.manifest.step, damage)
        if leads:
            patiently(partial(quarantine, runlog, checkpoint=checkpoint, reason=damage, epoch=epoch), what="log")


def _adopt(runlog: RunLog, *, epoch: int) -> None:
    try:
        patiently(partial(adopt_last_save, runlog, epoch=epoch), what="saves without a commit")
    except (StoreReadError, StoreWriteError) as error:
        log.warning("could not search for saves without a commit reason=%s", error)


def _at(runlog: RunLog, slot: int) -> Checkpoint:
    """Return the checkpoint that was committed in this slot. Rank 0 chose the slot for all ranks."""
    for checkpoint in read_history(runlog).checkpoints:
        if checkpoint.ref.slot == slot:
            return checkpoint
    why = f"rank 0 found a checkpoint in slot {slot}, but this rank finds no checkpoint there"
    raise StoreReadError(url=runlog.store.url, key=keys.log_key(runlog.run_id, slot), why=why)


def _read(
    runlog: RunLog,
    checkpoint: Checkpoint,
    fast: Sequence[Store],
    *,
    own: Selection | None,
    memory_bytes: int | None,
) -> Restorable | CheckpointError:
    tiers, manifest = [*fast, runlog.store], checkpoint.manifest
    try:
        stored = read_stored(tiers, run_id=runlog.run_id, manifest=manifest, own=own, memory_bytes=memory_bytes)
        return Restorable(checkpoint, snapshot_of(stored), stored.digests, stored.base)
    except CheckpointError as error:
        return error


def _name_damaged_slots(runlog: RunLog, *, epoch: int) -> None:
    """Write a quarantine record for each record that cannot be read. Pruning and adoption need these quarantine
    records."""
    history = read_history(runlog)
    require_whole(runlog, history)
    for damage in history.unread:
        log.warning("giving up a log record that cannot be read key=%s reason=%s", damage.key, damage.why)
        give_up_record(runlog, slot=damage.slot, reason=damage.why, epoch=epoch)
