"""Adopts the last save of a killed attempt: commits the save if its bytes are durable but its record is missing."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from pydantic import ValidationError

from segue.checkpoints.saving.ranked_writer import merged
from segue.checkpoints.saving.written import PreparedCommit
from segue.errors import MissingObjectError
from segue.records import CheckpointRef, Manifest, SegmentReport, VerdictKind
from segue.runlog import keys
from segue.runlog.entries import CommitEntry, Entry, ReportEntry
from segue.runlog.history import Attempt, History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.base import Store, ways_to

log = logging.getLogger(__name__)

_GONE: Final = "gone"
_READS = 4
"""Number of reads of a part of a prepared commit. If all reads fail, the part counts as damaged."""
_PREPARED = re.compile(r"[^/]+/attempts/[^/]+/step-([0-9]+)/rank-([0-9]+)\.commit\.json")


def adopt_last_save(runlog: RunLog, *, epoch: int) -> CheckpointRef | None:
    """Commit the newest complete save that an earlier attempt wrote but did not commit.

    Return None if no complete save is newer than all commits. The commit is recorded for the attempt that wrote the
    save. The claim of `epoch` has fenced that attempt. A later read of the checkpoint verifies the bytes. If this
    process crashes, a later attempt adopts the save.

    Raises:
        FencedError: a newer claim exists.
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again.
    """
    if runlog.is_signed:
        return None  # Prepared commits (next to the shards) are not signed, so a signed run adopts nothing.
    history = read_history(runlog)
    if history.damage or history.broken_resumes:
        # An unreadable record may be this commit, its quarantine, or a broken verdict. After broken resumes, the next
        # attempts go back to older checkpoints; a newer commit would disturb this.
        return None
    for attempt in _candidates(history, epoch=epoch):
        manifest = _newest_complete(runlog, attempt, history)
        if manifest is None:
            continue
        ref = _commit(runlog, attempt, manifest, epoch=epoch)
        log.warning("adopted a save that was not committed step=%d attempt=%s", ref.step, ref.attempt_id)
        return ref
    return None


def _candidates(history: History, *, epoch: int) -> Iterator[Attempt]:
    """Return the attempts that may have a save after the newest commit, the newest attempt first."""
    committed_by = history.attempt_named(history.checkpoints[-1].ref.attempt_id) if history.checkpoints else None
    since = committed_by.claim.epoch if committed_by is not None else 0
    for attempt in reversed(history.attempts):
        is_resume = history.parent_of(attempt.claim.segment, attempt.claim.attempt) is not None
        verdict = attempt.verdict
        # An attempt makes no save before its verdict, and no save after a broken verdict.
        is_sound = not is_resume or (verdict is not None and verdict.kind is not VerdictKind.BROKEN)
        if since <= attempt.claim.epoch < epoch and is_sound:
            yield attempt


def _newest_complete(runlog: RunLog, attempt: Attempt, history: History) -> Manifest | None:
    """Return the manifest of an attempt's newest save that all ranks completed.

    Return None if the save is not newer than all commits.
    """
    attempt_id = attempt.claim.attempt_id
    saves: dict[int, dict[int, str]] = {}
    # Listed in two ways: a save that is missing from the listing would be deleted after the next commit.
    for way in ways_to(runlog.store, reads=2):
        for item in way.list_objects(keys.attempt_prefix(runlog.run_id, attempt_id)):
            found = _PREPARED.fullmatch(item.key)
            if found is not None:
                saves.setdefault(int(found[1]), {})[int(found[2])] = item.key
    newest_committed = max((checkpoint.manifest.step for checkpoint in history.checkpoints), default=-1)
    for step in sorted(saves, reverse=True):
        if step <= newest_committed:
            return None
        manifest = _manifest_of(runlog.store, saves[step])
        if manifest is not None and manifest.step == step:
            return manifest
    return None


def _manifest_of(store: Store, by_rank: Mapping[int, str]) -> Manifest | None:
    """Return the manifest of a complete save.

    Return None if the part of a rank is missing or damaged, or if the parts belong to different states.
    """
    read = {rank: _prepared(store, by_rank[rank]) for rank in sorted(by_rank)}
    first = read.get(0)
    if isinstance(first, PreparedCommit) and first.facts.get("lost_ranks"):
        read = {0: first}  # Rank 0 stored the whole state alone. Other parts belong to an ordinary save of this step.
    found = [part for part in read.values() if isinstance(part, PreparedCommit)]
    if not found or None in read.values() or len({part.partition_hash for part in found}) > 1:
        return None
    facts: Mapping[str, Any] = found[0].facts
    written = merged([part.written for part in found]) if len(found) > 1 else found[0].written
    if written is None:
        return None
    try:
        manifest = Manifest.model_validate({**facts, **written.to_json()})
    except ValidationError as error:
        log.warning("ignoring a prepared commit that is not valid problems=%d", error.error_count())
        return None
    there = [rank for rank, part in read.items() if part != _GONE]
    count = 1 if manifest.lost_ranks else manifest.environment.world_size
    return manifest if there == list(range(count)) else None


def _prepared(store: Store, key: str) -> PreparedCommit | Literal["gone"] | None:
    """Return one rank's part of a prepared commit. Return None if the part is damaged in all reads."""
    try:
        read = (PreparedCommit.decode(way.get(key)) for way in ways_to(store, reads=_READS))
        return next(filter(None, read), None)
    except MissingObjectError:
        return _GONE


def _commit(runlog: RunLog, attempt: Attempt, manifest: Manifest, *, epoch: int) -> CheckpointRef:
    attempt_id = attempt.claim.attempt_id

    def build(stamp: Stamp) -> Entry:
        return CommitEntry.model_validate(stamp(epoch=epoch) | {"attempt_id": attempt_id, "manifest": manifest})

    slot = runlog.append(build, epoch=epoch)
    ref = CheckpointRef(slot=slot.number, step=manifest.step, attempt_id=attempt_id)
    report = read_history(runlog).report_of(attempt.claim.segment, attempt.claim.attempt)
    if report is not None:
        runlog.append(lambda stamp: _corrected(stamp, report, ref, epoch=epoch), epoch=epoch)
    return ref


def _corrected(stamp: Stamp, report: SegmentReport, ref: CheckpointRef, *, epoch: int) -> Entry:
    """Return the attempt's report with this commit added. The attempt wrote its report before the commit."""
    to_step = max(report.to_step, ref.step)
    changes = {"checkpoint": ref, "to_step": to_step, "lost_steps": to_step - ref.step}
    return ReportEntry.model_validate(stamp(epoch=epoch) | {"report": report.model_copy(update=changes)})
