"""Folding of a log into a history, one record after the other. Pure.

`tests/support/whole_fold.py` defines the same history field by field; tests compare both on random logs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from segue.records import CheckpointRef, Finding, SegmentReport, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    LiftEntry,
    OpenEntry,
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
from segue.runlog.log import Damage, Slot
from segue.spec import RunSpec

T = TypeVar("T")

_PROVEN = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)


class Folding:
    """The history of the records that were added so far; they must be added in the order of their slots."""

    def __init__(self) -> None:
        self._spec: RunSpec | None = None
        self._checkpoints = _Checkpoints()
        self._attempts = _Attempts()
        self._starts = _Grown[StartEntry]()
        self._reports = _Grown[SegmentReport]()
        self._resumes = _Grown[VerdictEntry]()
        self._resume_at: dict[str, int] = {}
        self._decisions = _Grown[DecisionEntry]()
        self._decision_prices = _Grown[Mapping[str, float]]()
        self._prices: PricesEntry | None = None
        self._spending: SpendingEntry | None = None
        self._handovers = _Grown[HandoverEntry]()
        self._handover: HandoverEntry | None = None
        self._highest_epoch = 0
        self._is_over = self._is_stopped = False
        self._stop: tuple[int, DecisionEntry] | None = None
        self._fresh_from = 0
        self._earlier_plans: frozenset[tuple[int, int]] = frozenset()
        self._drills = _Grown[DrillEntry]()
        self._broken_drill: Verdict | None = None
        self._untracked: dict[str, Finding] = {}
        self._process_values: frozenset[str] = frozenset()
        self._rehearsed_noise: dict[str, float] = {}
        self._broken_resumes: tuple[VerdictEntry, ...] = ()

    def add(self, slot: Slot) -> None:
        """Add the next record, unless its attempt was fenced before it.

        No correct writer appends such a record: it can only come from a writer that did not read the log.
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
            case CommitEntry():
                self._commit(slot.number, entry)
            case SealEntry():
                self._checkpoints.seal(entry.checkpoint.slot, entry.rows)
            case VerdictEntry():
                self._judge(entry)
            case DrillEntry():
                self._rehearse(entry)
            case ReportEntry():
                self._reports.append(entry.report)
                self._attempts.report(entry.report)
            case HandoverEntry():
                self._handover = entry
                self._handovers.append(entry)
            case QuarantineEntry() | LiftEntry() | PruneEntry():
                self._checkpoints.change(entry)
            case PricesEntry() | SpendingEntry() | StartEntry():
                self._note(entry)
        self._highest_epoch = max(self._highest_epoch, entry.epoch)

    def _rehearse(self, entry: DrillEntry) -> None:
        self._drills.append(entry)
        self._process_values |= set(entry.process_values)
        known = self._rehearsed_noise
        self._rehearsed_noise = known | {n: max(v, known.get(n, 0.0)) for n, v in entry.verdict.noise.items()}
        self._broken_drill = entry.verdict if entry.verdict.kind is VerdictKind.BROKEN else None

    def history(self, *, damage: tuple[Damage, ...], next_slot: int) -> History:
        """The history of the records that were added. Later records do not change this value."""
        return History(
            spec=self._spec,
            checkpoints=self._checkpoints.read(),
            attempts=self._attempts.read(),
            starts=self._starts.read(),
            reports=self._reports.read(),
            resumes=self._resumes.read(),
            drills=self._drills.read(),
            broken_drill=self._broken_drill,
            untracked=tuple(self._untracked.values()),
            process_values=self._process_values,
            rehearsed_noise=self._rehearsed_noise,
            decisions=self._decisions.read(),
            decision_prices=self._decision_prices.read(),
            prices=self._prices,
            spending=self._spending,
            handover=self._handover,
            handovers=self._handovers.read(),
            broken_resumes=self._broken_resumes,
            is_over=self._is_over,
            stop=self._stop[1] if self._stop is not None else None,
            stop_slot=self._stop[0] if self._stop is not None else None,
            fresh_from=self._fresh_from,
            earlier_plans=self._earlier_plans,
            damage=damage,
            named_damage=self._checkpoints.quarantined_slots(),
            next_slot=next_slot,
        )

    def _open(self, entry: OpenEntry) -> None:
        self._spec, self._is_over, self._stop = entry.spec, False, None
        if self._prices is not None and self._prices.source != entry.spec.pools.prices:
            self._prices = None
        if self._is_stopped:
            # A stop is recorded before the report of the attempt that it recalls.
            self._end_earlier_runs()
            self._is_stopped = False

    def _decide(self, number: int, entry: DecisionEntry) -> None:
        self._decisions.append(entry)
        self._decision_prices.append(self._prices.prices if self._prices is not None else {})
        self._handover = None
        self._is_over = entry.plan is None
        if self._stop is None and entry.action == "stopped":
            self._stop = (number, entry)
        if self._is_over:
            self._end_earlier_runs()
            self._is_stopped = entry.action == "stopped"

    def _note(self, entry: PricesEntry | SpendingEntry | StartEntry) -> None:
        if isinstance(entry, PricesEntry):
            self._prices = entry
        elif isinstance(entry, StartEntry):
            self._starts.append(entry)
        else:
            self._spending = entry

    def _end_earlier_runs(self) -> None:
        """Count everything so far to runs that have ended; budgets count from here."""
        self._fresh_from = len(self._reports)
        plans = (entry.plan for entry in self._decisions.read())
        self._earlier_plans = frozenset((plan.segment, plan.attempt) for plan in plans if plan is not None)
        self._drills = _Grown()
        self._broken_resumes = ()

    def _commit(self, number: int, entry: CommitEntry) -> None:
        """Add a checkpoint. Only attempts commit, so a commit without an epoch is of no attempt that holds a claim."""
        if entry.epoch < self._highest_epoch:
            return
        ref = CheckpointRef(slot=number, step=entry.manifest.step, attempt_id=entry.attempt_id)
        self._checkpoints.commit(Checkpoint(ref=ref, manifest=entry.manifest))
        self._attempts.commit(ref)
        for finding in entry.untracked:
            self._untracked.setdefault(finding.sentence.partition(":")[0], finding)
        # An attempt commits only after its verdict, so a commit shows that earlier broken verdicts are resolved.
        self._broken_resumes = ()

    def _judge(self, entry: VerdictEntry) -> None:
        at = self._resume_at.setdefault(entry.attempt_id, len(self._resumes))
        self._resumes.put(at, entry)
        self._attempts.judge(entry)
        verdict = entry.verdict
        if verdict.kind in _PROVEN:
            self._broken_drill = None  # A real resume that was verified refutes an earlier rehearsal.
        if verdict.kind is VerdictKind.BROKEN:
            self._broken_resumes = (*self._broken_resumes, entry)
        elif verdict.rows_compared or verdict.kind is not VerdictKind.UNVERIFIED:
            self._broken_resumes = ()


class _Grown(Generic[T]):
    """A list that is read as a tuple; the tuple is made again only when something has changed."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._read: tuple[T, ...] | None = ()

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, at: int) -> T:
        return self._items[at]

    def append(self, item: T) -> None:
        self.put(len(self._items), item)

    def put(self, at: int, item: T) -> None:
        """Replace the item at this index, or append one at the end."""
        self._items[at : at + 1] = [item]
        self._read = None

    def read(self) -> tuple[T, ...]:
        if self._read is None:
            self._read = tuple(self._items)
        return self._read


class _Checkpoints:
    """Committed checkpoints, with the facts that records before and after the commit hold about them."""

    def __init__(self) -> None:
        self._all = _Grown[Checkpoint]()
        self._index: dict[int, int] = {}
        self._quarantined: dict[int, str] = {}
        self._pruned: set[int] = set()
        self._rows: dict[int, tuple[WitnessRow, ...]] = {}
        self._quarantined_slots: frozenset[int] = frozenset()

    def read(self) -> tuple[Checkpoint, ...]:
        return self._all.read()

    def quarantined_slots(self) -> frozenset[int]:
        return self._quarantined_slots

    def commit(self, checkpoint: Checkpoint) -> None:
        self._index[checkpoint.ref.slot] = len(self._all)
        self._all.append(checkpoint)
        self._update(checkpoint.ref.slot)

    def change(self, entry: QuarantineEntry | LiftEntry | PruneEntry) -> None:
        """Apply a quarantine, a lift or a prune: each changes from which checkpoints attempts may resume."""
        if isinstance(entry, QuarantineEntry):
            self._quarantine(entry.slot, entry.reason)
        elif isinstance(entry, LiftEntry):
            self._lift(entry.slot)
        else:
            self._prune(entry.slots)

    def seal(self, slot: int, rows: tuple[WitnessRow, ...]) -> None:
        self._rows[slot] = rows
        self._update(slot)

    def _quarantine(self, slot: int, reason: str) -> None:
        if slot not in self._quarantined:
            self._quarantined[slot] = reason
            self._quarantined_slots = frozenset(self._quarantined)
            self._update(slot)

    def _lift(self, slot: int) -> None:
        if self._quarantined.pop(slot, None) is not None:
            self._quarantined_slots = frozenset(self._quarantined)
            self._update(slot)

    def _prune(self, slots: tuple[int, ...]) -> None:
        self._pruned.update(slots)
        for slot in slots:
            self._update(slot)

    def _update(self, slot: int) -> None:
        at = self._index.get(slot)
        if at is None:
            return  # Not a checkpoint, or not yet.
        rows, why = self._rows.get(slot, ()), self._quarantined.get(slot)
        self._all.put(at, replace(self._all[at], rows=rows, quarantined=why, is_pruned=slot in self._pruned))


class _Attempts:
    """Claims, with the facts that records before and after the claim hold about their attempts."""

    def __init__(self) -> None:
        self._all = _Grown[Attempt]()
        self._index: defaultdict[str, list[int]] = defaultdict(list)
        self._reports: dict[str, SegmentReport] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._commits: defaultdict[str, tuple[CheckpointRef, ...]] = defaultdict(tuple)

    def read(self) -> tuple[Attempt, ...]:
        return self._all.read()

    def claim(self, entry: ClaimEntry) -> None:
        name = entry.attempt_id
        self._index[name].append(len(self._all))
        report, verdict = self._reports.get(name), self._verdicts.get(name)
        self._all.append(Attempt(claim=entry, report=report, verdict=verdict, commits=self._commits[name]))

    def report(self, report: SegmentReport) -> None:
        if report.attempt_id is not None:
            self._reports[report.attempt_id] = report
            for at, attempt in self._named(report.attempt_id):
                self._all.put(at, replace(attempt, report=report))

    def judge(self, entry: VerdictEntry) -> None:
        self._verdicts[entry.attempt_id] = entry.verdict
        for at, attempt in self._named(entry.attempt_id):
            self._all.put(at, replace(attempt, verdict=entry.verdict))

    def commit(self, ref: CheckpointRef) -> None:
        self._commits[ref.attempt_id] += (ref,)
        for at, attempt in self._named(ref.attempt_id):
            self._all.put(at, replace(attempt, commits=self._commits[ref.attempt_id]))

    def _named(self, attempt_id: str) -> Iterator[tuple[int, Attempt]]:
        return ((at, self._all[at]) for at in self._index.get(attempt_id, ()))
