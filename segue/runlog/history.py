"""Reads the history of a run from the run's log. Each record is read only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segue.errors import LostRecordError, NothingTrustedError
from segue.runlog.facts import Attempt, Checkpoint, History
from segue.runlog.folding import Folding
from segue.runlog.log import Damage, RunLog, Slot

__all__ = ["Attempt", "Checkpoint", "History", "fold", "read_history", "require_trusted", "require_whole"]


def read_history(log: RunLog) -> History:
    """Return the current history. Only slots that were not read before are read and folded.

    If the log has no new record, the result is the same object as before.
    """
    with log.lock:
        log.refresh()
        kept = log.kept
        if not isinstance(kept, _Kept) or kept.repairs != log.repairs:
            # A record that is read after later records may change their meaning, so the whole log is folded again.
            kept = log.kept = _Kept(Folding(), log.repairs)
        return kept.brought_up(log)


def require_whole(log: RunLog, history: History) -> None:
    """Raise an error if a record of a signed log cannot be read. A person must decide about this record.

    An unsigned log continues without the unreadable record. In a signed log, it would be a risk to continue. Anyone who
    can delete a record could then undo a quarantine or a stop.

    Raises:
        LostRecordError: the log is signed, and an unreadable record was not given up by a person.
    """
    if log.is_signed and history.unread:
        lost = history.unread[0]
        raise LostRecordError(run_id=log.run_id, slot=lost.slot, key=lost.key, why=lost.why)


def require_trusted(log: RunLog, history: History, *, has_checkpoint: bool) -> None:
    """Raise an error if the log is not whole, or if a signed run would start again at step 0.

    A person must decide in both cases.

    Raises:
        LostRecordError: the log is signed, and an unreadable record was not given up by a person.
        NothingTrustedError: the log is signed and has checkpoints or unreadable records, but no usable checkpoint.
    """
    require_whole(log, history)
    if log.is_signed and not has_checkpoint and (history.checkpoints or history.damage):
        counts = {"checkpoints": len(history.checkpoints), "unreadable": len(history.damage)}
        raise NothingTrustedError(run_id=log.run_id, **counts)


def fold(slots: Sequence[Slot], *, damage: tuple[Damage, ...] = (), next_slot: int = 0) -> History:
    """Fold readable slots, in order, into a history."""
    folding = Folding()
    for slot in slots:
        folding.add(slot)
    return folding.history(damage=damage, next_slot=next_slot)


@dataclass
class _Kept:
    """The part of a log that was folded so far. It is cached in the log object."""

    folding: Folding
    repairs: int
    slots: int = 0
    history: History | None = None

    def brought_up(self, log: RunLog) -> History:
        damage, known = log.damage, self.history
        if (
            known is not None
            and self.slots == log.readable
            and (known.damage, known.next_slot) == (damage, log.next_slot)
        ):
            return known
        for slot in log.slots_from(self.slots):
            self.folding.add(slot)
        self.slots = log.readable
        self.history = self.folding.history(damage=damage, next_slot=log.next_slot)
        return self.history
