"""Reads the history of a run from the run's log. Each record is read only once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segue.errors import LostRecordError, NothingTrustedError
from segue.records import CheckpointRef, SeenPools, SegmentReport
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    LiftEntry,
    MachineEntry,
    OpenEntry,
    PoolsEntry,
    PricesEntry,
    PruneEntry,
    QuarantineEntry,
    ReportEntry,
    SealEntry,
    SpendingEntry,
    StartEntry,
    VerdictEntry,
)
from segue.runlog.facts import Attempt, Checkpoint, History
from segue.runlog.folded_parts import FoldedAttempts, FoldedCheckpoints, FoldedDecisions, FoldedEvidence, Grown
from segue.runlog.log import Damage, RunLog, Slot
from segue.spec import RunSpec

__all__ = ["Attempt", "Checkpoint", "History", "fold", "read_history", "require_trusted", "require_whole"]


def read_history(log: RunLog) -> History:
    """Return the current history. Only new slots are read and added to the history.

    If the log has no new record, the result is the object of the previous call.
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

    An unsigned log continues without an unreadable record, but a signed log must not. If it did, anyone who can delete
    a record could undo a quarantine or a stop.

    Raises:
        LostRecordError: the log is signed, and no person has given up the unreadable record.
    """
    if log.is_signed and history.unread:
        lost = history.unread[0]
        raise LostRecordError(run_id=log.run_id, slot=lost.slot, key=lost.key, why=lost.why)


def require_trusted(log: RunLog, history: History, *, has_checkpoint: bool) -> None:
    """Raise an error if the log is not whole, or if a signed run would start again at step 0. A person must then
    decide.

    Raises:
        LostRecordError: the log is signed, and no person has given up the unreadable record.
        NothingTrustedError: the log is signed and has checkpoints or unreadable records, but no usable checkpoint.
    """
    require_whole(log, history)
    if log.is_signed and not has_checkpoint and (history.checkpoints or history.damage):
        counts = {"checkpoints": len(history.checkpoints), "unreadable": len(history.damage)}
        raise NothingTrustedError(run_id=log.run_id, **counts)


def fold(slots: Sequence[Slot], *, damage: tuple[Damage, ...] = (), next_slot: int = 0) -> History:
    """Return the history of readable slots, which must be in order."""
    folding = Folding()
    for slot in slots:
        folding.add(slot)
    return folding.history(damage=damage, next_slot=next_slot)


@dataclass
class _Kept:
    """The history of the records read until now, cached in the log object."""

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


class Folding:
    """Builds a history from records. Records must be added in the order of their slots."""

    def __init__(self) -> None:
        self._spec: RunSpec | None = None
        self._checkpoints = FoldedCheckpoints()
        self._attempts = FoldedAttempts()
        self._starts = Grown[StartEntry]()
        self._unfit_machines = Grown[MachineEntry]()
        self._reports = Grown[SegmentReport]()
        self._decisions = FoldedDecisions()
        self._evidence = FoldedEvidence()
        self._spending: SpendingEntry | None = None
        self._seen_pools = SeenPools()
        self._highest_epoch = 0
        self._fresh_from = 0
        self._earlier_plans: frozenset[tuple[int, int]] = frozenset()

    def add(self, slot: Slot) -> None:
        """Add the next record. A record is ignored if an earlier record has a higher claim epoch.

        A writer appends a record after a newer claim only if it did not read the log.
        """
        entry = slot.entry
        if 0 < entry.epoch < self._highest_epoch:
            return
        match entry:
            case OpenEntry():
                self._open(entry)
            case DecisionEntry():
                self._decide(slot.number, entry)
            case ClaimEntry():
                self._attempts.claim(entry)
                self._decisions.claim(entry)
            case CommitEntry():
                self._commit(slot.number, entry)
            case SealEntry():
                self._checkpoints.seal(entry.checkpoint.slot, entry.rows)
            case VerdictEntry():
                self._attempts.judge(entry)
                self._evidence.judge(entry)
            case DrillEntry():
                self._evidence.rehearse(entry)
            case ReportEntry():
                self._reports.append(entry.report)
                self._attempts.report(entry.report)
            case HandoverEntry():
                self._decisions.hand_over(entry)
            case QuarantineEntry() | LiftEntry() | PruneEntry():
                self._checkpoints.change(entry)
            case PricesEntry() | SpendingEntry() | PoolsEntry() | StartEntry() | MachineEntry():
                self._note(entry)
        self._highest_epoch = max(self._highest_epoch, entry.epoch)

    def history(self, *, damage: tuple[Damage, ...], next_slot: int) -> History:
        """Return the history of the records that were added before this call. Later records do not change the
        result.
        """
        decisions, evidence = self._decisions, self._evidence
        return History(
            spec=self._spec,
            checkpoints=self._checkpoints.read(),
            attempts=self._attempts.read(),
            starts=self._starts.read(),
            unfit_machines=self._unfit_machines.read(),
            reports=self._reports.read(),
            resumes=evidence.resumes.read(),
            drills=evidence.drills.read(),
            broken_drill=evidence.broken_drill,
            untracked=tuple(evidence.untracked.values()),
            process_values=evidence.process_values,
            rehearsed_noise=evidence.rehearsed_noise,
            decisions=decisions.all.read(),
            decision_prices=decisions.prices_then.read(),
            prices=decisions.prices,
            seen_pools=self._seen_pools,
            spending=self._spending,
            handover=decisions.handover,
            handovers=decisions.handovers.read(),
            broken_resumes=evidence.broken_resumes,
            is_over=decisions.is_over,
            stop=decisions.stop[1] if decisions.stop is not None else None,
            stop_slot=decisions.stop[0] if decisions.stop is not None else None,
            fresh_from=self._fresh_from,
            earlier_plans=self._earlier_plans,
            damage=damage,
            named_damage=self._checkpoints.quarantined_slots(),
            next_slot=next_slot,
        )

    def _open(self, entry: OpenEntry) -> None:
        self._spec = entry.spec
        was_stopped = self._decisions.is_stopped
        self._decisions.open(entry.spec)
        if was_stopped:
            # The stop was recorded before the report of the attempt that the stop recalled.
            self._end_earlier_runs()

    def _decide(self, number: int, entry: DecisionEntry) -> None:
        self._decisions.add(number, entry)
        if self._decisions.is_over:
            self._end_earlier_runs()

    def _note(self, entry: PricesEntry | SpendingEntry | PoolsEntry | StartEntry | MachineEntry) -> None:
        if isinstance(entry, PricesEntry):
            self._decisions.prices = entry
        elif isinstance(entry, StartEntry):
            self._starts.append(entry)
        elif isinstance(entry, MachineEntry):
            self._unfit_machines.append(entry)
        elif isinstance(entry, PoolsEntry):
            self._seen_pools = entry.seen
        else:
            self._spending = entry

    def _end_earlier_runs(self) -> None:
        """Mark all records before this call as part of an ended run. Failure budgets count from the next record."""
        self._fresh_from = len(self._reports)
        plans = (entry.plan for entry in self._decisions.all.read())
        self._earlier_plans = frozenset((plan.segment, plan.attempt) for plan in plans if plan is not None)
        self._evidence.end_earlier_runs()

    def _commit(self, number: int, entry: CommitEntry) -> None:
        """Add a checkpoint. Ignore a commit without an epoch, or with an epoch below that of the newest claim."""
        if entry.epoch < self._highest_epoch:
            return
        ref = CheckpointRef(slot=number, step=entry.manifest.step, attempt_id=entry.attempt_id)
        self._checkpoints.commit(Checkpoint(ref=ref, manifest=entry.manifest))
        self._attempts.commit(ref)
        self._evidence.commit(entry.untracked)
