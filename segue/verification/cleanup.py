"""Removes the objects of a verification that passed. If the verification did not pass, all objects stay as evidence."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from segue.runlog import keys
from segue.runlog.entries import Entry, PruneEntry
from segue.runlog.history import read_history
from segue.runlog.log import Stamp
from segue.runlog.open import log_in
from segue.spec import StoreSpec
from segue.stores.base import Store
from segue.verification.verification_record import Verification

log = logging.getLogger(__name__)

_EARLIER_LOOKED_AT = 5
"""Number of earlier verifications whose runs are removed. The objects of older verifications are already removed."""


def tidy(store: Store, history: Sequence[Verification], newest: Verification, *, spec: StoreSpec | None = None) -> None:
    """Remove the checkpoints of a verification that passed, and the runs of earlier verifications that passed.

    The logs and loss curves of the newest verification stay. A second call removes the objects that the first call
    could not remove.

    Raises:
        StoreReadError, StoreWriteError: some objects were not removed. It is safe to call the function again.
    """
    if not newest.is_green:
        return
    for run_id in (newest.undisturbed, newest.disturbed):
        _drop_checkpoints(store, run_id, spec or StoreSpec())
    earlier = [one for one in history if one.slot < newest.slot and one.is_green]
    for one in earlier[-_EARLIER_LOOKED_AT:]:
        for run_id in (one.undisturbed, one.disturbed):
            _drop(store, keys.run_prefix(run_id))


def _drop_checkpoints(store: Store, run_id: str, spec: StoreSpec) -> None:
    runlog = log_in(store, run_id, spec).reload()
    slots = tuple(c.ref.slot for c in read_history(runlog).checkpoints if not c.is_pruned)
    if slots:

        def build(stamp: Stamp) -> Entry:
            return PruneEntry.model_validate(stamp(epoch=0) | {"slots": slots})

        # The record comes before the pruning, so that no reader takes a pruned checkpoint for a damaged one.
        runlog.append(build)
    _drop(store, keys.attempts_prefix(run_id))


def _drop(store: Store, prefix: str) -> None:
    found = [item.key for item in store.list_objects(prefix)]
    if found:
        store.delete(found)
        log.info("objects of a verification removed objects=%d prefix=%s", len(found), prefix)
