"""Deletes the checkpoints that retention no longer keeps, and the leftover objects of killed attempts."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

from segue.checkpoints import retention
from segue.records import CheckpointRef, VerdictKind
from segue.runlog import keys
from segue.runlog.entries import Entry, PruneEntry
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import CheckpointSpec
from segue.stores.base import Store, StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_MOST_TIDIED = 20
"""Number of earlier attempts whose unfinished objects are removed.

Earlier sweeps removed the unfinished objects of older attempts.
"""

_MOST_LEFT = 100
"""Maximum number of objects whose failed deletion is tried again.

A higher number would delay the next save.
"""

_SHARD = re.compile(r"[^/]+/(attempts/([^/]+)/step-[0-9]+/[^/]+)")


class Pruner:
    """Deletes checkpoints for one attempt.

    If a deletion fails, the pruner repeats the deletion after later checkpoints. The next attempt also repeats it.
    """

    def __init__(self, *, epoch: int, retention: CheckpointSpec, tiers: Sequence[Store]) -> None:
        self._epoch, self._retention, self._tiers = epoch, retention, tiers
        self._has_swept = False
        self._left: set[str] = set()
        """Names of at most `_MOST_LEFT` objects that could not be deleted. The next prune tries to delete them
        again.
        """

    def prune(self, runlog: RunLog) -> None:
        """Delete the checkpoints that retention no longer keeps.

        After the first commit, also delete objects that no record names.

        Raises:
            FencedError, UnreadRecordError: a newer claim exists, or may exist.
            StoreWriteError, StoreReadError: the log could not be read or written. It is safe to call the method again.
        """
        history = read_history(runlog)
        if history.unread:
            log.warning("pruning skipped, because a log record cannot be read key=%s", history.unread[0].key)
            return
        slots = self._superfluous(history)
        if slots:

            def build(stamp: Stamp) -> Entry:
                return PruneEntry.model_validate(stamp(epoch=self._epoch) | {"slots": slots})

            # The prune is recorded first, so that a reader never takes a pruned checkpoint for a damaged checkpoint.
            runlog.append(build, epoch=self._epoch)
            unkept = {name for c in history.checkpoints if c.ref.slot in slots for name in _names_of(c)}
            # A kept manifest may refer to shards of an earlier checkpoint: unchanged tensors are not stored again.
            self._delete(runlog.run_id, (unkept | self._left) - names_in_use(history, without=slots))
        if not self._has_swept:
            self._has_swept = True
            self._sweep(runlog, history)

    def _superfluous(self, history: History) -> tuple[int, ...]:
        proven = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
        verified = [resume.parent for resume in history.resumes if resume.verdict.kind in proven]
        kept = retention.slots_to_keep(
            history.checkpoints, keep=self._retention.keep, best=self._retention.best, verified_parents=verified
        )
        return retention.slots_to_prune(history.checkpoints, kept=kept)

    def drop_earlier_tries(self, runlog: RunLog, commit: CheckpointRef) -> None:
        """Delete the objects that remain from earlier tries of this committed save.

        After the commit, no attempt can adopt these objects.
        """
        history = read_history(runlog)
        used = names_in_use(history)
        for store in self._tiers if not history.damage else ():
            try:
                found = store.list_objects(keys.step_prefix(runlog.run_id, commit.attempt_id, commit.step))
                names = {item.key.removeprefix(f"{runlog.run_id}/") for item in found}
                self._delete(runlog.run_id, names - used, tiers=[store])
            except StoreReadError as error:
                log.warning("could not delete objects of earlier tries of a save store=%s reason=%s", store.url, error)

    def _sweep(self, runlog: RunLog, history: History) -> None:
        """Delete shards of earlier attempts that no record names.

        The claims of later attempts fence the earlier attempts, which therefore write no more records.

        Raises:
            FencedError, UnreadRecordError: a newer claim exists, or may exist. The attempt of this claim may adopt the
                shards.
            StoreReadError: the log could not be read.
        """
        if history.damage:
            return  # An unreadable record may name any shard.
        runlog.require_claim(self._epoch)
        used = names_in_use(history)
        earlier = [attempt.claim.attempt_id for attempt in history.attempts if attempt.claim.epoch < self._epoch]
        for store in self._tiers:
            try:
                found = [item.key for item in store.list_objects(keys.attempts_prefix(runlog.run_id))]
                shards = [match for key in found if (match := _SHARD.fullmatch(key))]
                epochs = {match[1]: keys.epoch_of(match[2], log_id=runlog.log_id) for match in shards}
                orphans = {name for name, epoch in epochs.items() if epoch is not None and epoch < self._epoch}
                self._delete(runlog.run_id, orphans - used, tiers=[store])
                store.drop_unfinished(keys.metrics_prefix(runlog.run_id))
                for attempt_id in earlier[-_MOST_TIDIED:]:
                    store.drop_unfinished(keys.attempt_prefix(runlog.run_id, attempt_id))
            except (StoreReadError, StoreWriteError) as error:
                log.warning("could not search for leftovers of earlier attempts store=%s reason=%s", store.url, error)

    def _delete(self, run_id: str, names: set[str], *, tiers: Sequence[Store] | None = None) -> None:
        self._left -= names
        for store in tiers or self._tiers:
            try:
                store.delete([f"{run_id}/{name}" for name in sorted(names)])
            except StoreWriteError as error:
                # Deleting a missing object is not an error. The next attempt searches for all leftover objects.
                self._left = set(sorted(self._left | names)[:_MOST_LEFT])
                log.warning("pruned shards could not be deleted, retrying later reason=%s", error)


def _names_of(checkpoint: Checkpoint) -> list[str]:
    """Return the names of the shards and the prepared commits of a checkpoint."""
    ranks = range(checkpoint.manifest.environment.world_size)
    prepared = [keys.prepared_name(checkpoint.ref.attempt_id, checkpoint.manifest.step, rank) for rank in ranks]
    return [*prepared, *(shard.key for shard in checkpoint.manifest.shards)]


def names_in_use(history: History, *, without: Sequence[int] = ()) -> set[str]:
    """Return the names of the objects of all checkpoints that are neither pruned nor in the slots `without`."""
    unpruned = (c for c in history.checkpoints if not c.is_pruned and c.ref.slot not in without)
    return {name for checkpoint in unpruned for name in _names_of(checkpoint)}
