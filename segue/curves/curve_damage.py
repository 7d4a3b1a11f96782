"""Names the parts of the loss curve that are lost or differ from the manifests of the checkpoints.

A manifest names the parts that an attempt has written since its previous checkpoint, and the manifests of all
checkpoints stay in the run's log. Each save writes the current part again, so a part in the store may have more rows
than its manifest says.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from segue.curves.frame import steps_of_lineage
from segue.errors import MissingObjectError
from segue.process import safe_beside_forks
from segue.records import CheckpointRef, CurveDigest, Finding
from segue.runlog import keys
from segue.runlog.history import Checkpoint, History
from segue.runlog.log import RunLog
from segue.stores.base import Store, StoreReadError

log = logging.getLogger(__name__)

LOSS_CURVE = "loss curve"
"""Component in a finding about a damaged part of the loss curve."""
_PATIENCE_SECONDS = 1.0
_FIX = "restore this object from the bucket's versions or from a backup. The run continues without it"


class DamagedPart(NamedTuple):
    """A part of the loss curve that is lost or differs from its manifest."""

    key: str
    why: str

    @property
    def sentence(self) -> str:
        return f"{self.key} {self.why}"


def up_to(history: History, checkpoint: Checkpoint) -> History:
    """Return a history whose newest usable checkpoint is this checkpoint."""
    until = tuple(c for c in history.checkpoints if c.ref.slot < checkpoint.ref.slot)
    return replace(history, checkpoints=(*until, replace(checkpoint, quarantined=None, is_pruned=False)))


def has_digests(history: History) -> bool:
    """Whether a manifest in the newest checkpoint's lineage names a part of the loss curve."""
    return bool(_named_parts(history))


def damaged_parts(runlog: RunLog, history: History, *, most_read: int | None = None) -> tuple[DamagedPart, ...]:
    """Return the damaged parts of the loss curve up to the newest checkpoint of `history`, the newest part first.

    The function reads at most `most_read` of the newest parts. For the other parts, it reads only the store's listing.
    It ignores parts from older versions of segue, because no manifest names these parts.

    Raises:
        StoreReadError: the store could not be read.
    """
    stored = {item.key for item in runlog.store.list_objects(keys.metrics_prefix(runlog.run_id))}
    found = []
    for number, ((attempt_id, part), (step, digest)) in enumerate(reversed(_named_parts(history).items())):
        key = keys.metrics_key(runlog.run_id, attempt_id, part)
        if key not in stored:
            found.append(DamagedPart(key, "is missing from the store"))
        elif (most_read is None or number < most_read) and (why := _damage(runlog.store, key, step, digest)):
            found.append(DamagedPart(key, why))
    return tuple(found)


def damage_at_resume(runlog: RunLog, history: History, parent: CheckpointRef | None) -> Iterator[Finding]:
    """Yield a finding for each part that is damaged when an attempt resumes from `parent`.

    The function reads only the newest part, so that its cost does not grow with the run. The state does not depend on
    the curve, so the resume continues. If the store cannot be read, the function logs the error and yields nothing.
    """
    checkpoint = history.checkpoint(parent) if parent is not None else None
    if checkpoint is None:
        return
    try:
        damaged = damaged_parts(runlog, up_to(history, checkpoint), most_read=1)
    except StoreReadError as error:
        log.warning("the loss curve was not checked at the resume reason=%s", error)
        return
    for part in damaged:
        log.warning("loss curve part damaged key=%s reason=%s; the resume continues", part.key, part.why)
        sentence = f"{part.key}: {part.why} (found at the resume from step {checkpoint.manifest.step})"
        yield Finding(component=LOSS_CURVE, channel="manifest", sentence=sentence, fix=_FIX)


class DamageSearch(threading.Thread):
    """Searches for damage in a thread during training, so that the first step does not wait for the store."""

    def __init__(self, runlog: RunLog, history: History, parent: CheckpointRef | None) -> None:
        super().__init__(name="segue-curve-damage", daemon=True)
        self._find = partial(damage_at_resume, runlog, history, parent)
        self._found: tuple[Finding, ...] = ()
        self._patience_seconds = _PATIENCE_SECONDS
        self.start()

    def run(self) -> None:
        self._found = tuple(self._find())

    def close(self) -> None:
        """Wait at most one second for the end of the search, so that no file is read while the process ends."""
        self.join(_PATIENCE_SECONDS)

    def take(self) -> tuple[Finding, ...]:
        """Return each finding once. The first call waits at most one second for the end of the search."""
        self.join(self._patience_seconds)
        self._patience_seconds = 0.0
        found, self._found = self._found, ()
        return found


def _named_parts(history: History) -> dict[tuple[str, int], tuple[int, CurveDigest]]:
    """Return the step and the digest of each part in the lineage, from the newest manifest that names the part."""
    lineage = steps_of_lineage(history)
    return {
        (checkpoint.ref.attempt_id, digest.part): (checkpoint.manifest.step, digest)
        for checkpoint in history.checkpoints
        for digest in checkpoint.manifest.curve
        if checkpoint.manifest.step <= lineage.get(checkpoint.ref.attempt_id, (0, -1))[1]
    }


def _damage(store: Store, key: str, step: int, digest: CurveDigest) -> str:
    """Return a text about the difference between a part and its manifest.

    Without a difference, return an empty text.
    """
    try:
        content = store.get(key)
    except MissingObjectError:
        return "is missing from the store"
    except OSError as error:
        return f"cannot be read ({error})"
    with safe_beside_forks():
        return _difference(content, step, digest)


def _difference(content: bytes, step: int, digest: CurveDigest) -> str:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from segue.curves.schema import sha256_of

    try:
        # `read_table` would import pandas. With a Python file, Arrow's threads would need the interpreter lock. If the
        # process ended during the read, they would never get the lock, and Arrow would wait for them for ever.
        table = pq.ParquetFile(pa.BufferReader(content), pre_buffer=False).read(use_threads=False)
        if table.num_rows < digest.rows:
            return f"has {table.num_rows} rows, the manifest of step {step} has {digest.rows}"
        is_same = sha256_of(table.slice(0, digest.rows)) == digest.sha256
    except (pa.ArrowException, OSError, ValueError) as error:
        return f"cannot be read ({error})"
    return "" if is_same else f"differs in its first {digest.rows} rows from the manifest of step {step}"
