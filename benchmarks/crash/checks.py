"""The checks after every kill, made by a reader that has only the store and the list of acknowledged records."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.crash.trainer import read_notes
from segue.checkpoints.format.snapshot import Snapshot, digest
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.pruning import names_in_use
from segue.continuity.recipe_diff import NOT_STATE
from segue.errors import CheckpointError
from segue.runlog import keys
from segue.runlog.entries import AnyEntry, CommitEntry
from segue.runlog.history import Checkpoint, History, read_history
from segue.runlog.log import RunLog
from segue.stores import Store

_SHARD = re.compile(r"[^/]+/(attempts/[^/]+/step-[0-9]+/[^/]+)")


class Checker:
    """Reads one run repeatedly, and remembers the earlier records."""

    def __init__(self, open_log: Callable[[], RunLog], notes: Path) -> None:
        """`open_log` returns a log that has read no record yet. `notes` is the file to which the run's trainers
        write."""
        self._open_log, self._notes = open_log, notes
        self.damaged: set[str] = set()
        """Keys of shards that were damaged on purpose, without the run id. Only checkpoints with these shards may be
        quarantined."""
        self.lost: set[int] = set()
        """Slots of commits that were visible or acknowledged, and are now missing."""
        self.torn: set[int] = set()
        """Slots of checkpoints in the log that cannot be read completely."""
        self.records_lost: set[int] = set()
        """Slots of other acknowledged records that are now missing."""
        self.problems: dict[str, None] = {}
        """All other problems, in the order of their discovery."""
        self._seen: dict[int, AnyEntry] = {}
        self._log: RunLog | None = None
        """The history as of the newest check."""

    @property
    def is_sound(self) -> bool:
        return not (self.lost or self.torn or self.records_lost or self.problems)

    def look(self, *, thoroughly: bool = False) -> History:
        """Check everything. The newest checkpoint is read completely. If `thoroughly` is True, all checkpoints are read
        completely."""
        log = self._log = self._open_log().reload()
        history = read_history(log)
        entries: dict[int, AnyEntry] = {slot.number: slot.entry for slot in log.slots}
        for damage in history.damage:
            self._complain(f"slot {damage.slot} of the log is damaged: {damage.why}")
        self._check_nothing_is_gone(entries, {c.ref.slot for c in history.checkpoints})
        self._check_no_commits_conflict(entries)
        self._check_what_is_offered(log, history, thoroughly=thoroughly)
        self._seen |= entries
        return history

    def check_the_end(self) -> None:
        """After the last check, check that every damaged checkpoint was quarantined or pruned."""
        for checkpoint in read_history(self._read_log()).usable:
            if self.is_damaged(checkpoint):
                self._complain(f"the damaged checkpoint of step {checkpoint.ref.step} is still offered")

    def is_damaged(self, checkpoint: Checkpoint) -> bool:
        """Whether a shard of this checkpoint was damaged on purpose. Several checkpoints can share a shard, also one
        whose commit another attempt adds to the log later."""
        return any(shard.key in self.damaged for shard in checkpoint.manifest.shards)

    def final_state(self) -> dict[str, str]:
        """Digests of all state of the newest checkpoint, computed from its bytes; empty if there is no checkpoint."""
        log = self._read_log()
        newest = read_history(log).newest
        found = digest(_read(log, newest)).components if newest else {}
        return {name: digest for name, digest in found.items() if name not in NOT_STATE}

    def orphans(self, store: Store) -> dict[str, int]:
        """Names and sizes in bytes of the shards in the run's folder that no record names."""
        log = self._read_log()
        used = names_in_use(read_history(log))
        listed = store.list_objects(keys.attempts_prefix(log.run_id))
        shards = ((match[1], item.size_bytes) for item in listed if (match := _SHARD.fullmatch(item.key)))
        return {name: size_bytes for name, size_bytes in shards if name not in used}

    def _read_log(self) -> RunLog:
        if self._log is None:
            self._log = self._open_log().reload()
        return self._log

    def _check_nothing_is_gone(self, entries: dict[int, AnyEntry], standing: set[int]) -> None:
        promised = [(note.slot, note.entry_id, note.kind) for note in read_notes(self._notes)]
        promised += [(slot, entry.entry_id, entry.kind) for slot, entry in self._seen.items()]
        for slot, entry_id, kind in promised:
            found = entries.get(slot)
            is_there = found is not None and found.entry_id == entry_id
            if kind == "commit" and not (is_there and slot in standing):
                self.lost.add(slot)
            elif not is_there and kind != "commit":
                self.records_lost.add(slot)

    def _check_no_commits_conflict(self, entries: dict[int, AnyEntry]) -> None:
        commits = (entry for entry in entries.values() if isinstance(entry, CommitEntry))
        for (epoch, step), count in Counter((entry.epoch, entry.manifest.step) for entry in commits).items():
            if count > 1:
                self._complain(f"epoch {epoch} committed step {step} {count} times")

    def _check_what_is_offered(self, log: RunLog, history: History, *, thoroughly: bool) -> None:
        for checkpoint in history.checkpoints:
            if checkpoint.quarantined and not self.is_damaged(checkpoint):
                self._is_torn(checkpoint, f"was quarantined: {checkpoint.quarantined}")
        offered = [c for c in history.usable if not self.is_damaged(c)]
        listed = log.store.list_objects(keys.attempts_prefix(log.run_id)) if offered else []
        sizes = {item.key: item.size_bytes for item in listed}
        for checkpoint in offered:
            for shard in checkpoint.manifest.shards:
                found = sizes.get(f"{log.run_id}/{shard.key}")
                if found != shard.size_bytes:
                    self._is_torn(checkpoint, f"has {found} bytes in {shard.key}, not {shard.size_bytes}")
        for checkpoint in offered if thoroughly else offered[-1:]:
            try:
                _read(log, checkpoint)
            except CheckpointError as error:
                self._is_torn(checkpoint, f"does not read back: {error}")

    def _is_torn(self, checkpoint: Checkpoint, why: str) -> None:
        self.torn.add(checkpoint.ref.slot)
        self._complain(f"the checkpoint of step {checkpoint.ref.step} (slot {checkpoint.ref.slot}) {why}")

    def _complain(self, problem: str) -> None:
        self.problems.setdefault(problem)


def _read(log: RunLog, checkpoint: Checkpoint) -> Snapshot:
    return read_checkpoint(log.store, run_id=log.run_id, manifest=checkpoint.manifest)
