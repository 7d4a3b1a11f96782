"""Keeps the parts of a history while records are added: checkpoints, attempts, decisions, evidence.

The module is pure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from segue.records import CheckpointRef, Finding, SegmentReport, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import (
    ClaimEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    LiftEntry,
    PricesEntry,
    PruneEntry,
    QuarantineEntry,
    VerdictEntry,
)
from segue.runlog.facts import Attempt, Checkpoint
from segue.spec import RunSpec

T = TypeVar("T")

_PROVEN = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)


class Grown(Generic[T]):
    """A list that is read as a tuple. A new tuple is made only after a change of the list."""

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
        """Replace the item at this index, or append the item if the index is the length."""
        self._items[at : at + 1] = [item]
        self._read = None

    def read(self) -> tuple[T, ...]:
        if self._read is None:
            self._read = tuple(self._items)
        return self._read


class FoldedDecisions:
    """The decisions of the controllers, the prices that were known at each decision, and whether the run has ended."""

    def __init__(self) -> None:
        self.all = Grown[DecisionEntry]()
        self.prices_then = Grown[Mapping[str, float]]()
        """The prices that were known at each decision, in the order of the decisions."""
        self.prices: PricesEntry | None = None
        self.handovers = Grown[HandoverEntry]()
        self.handover: HandoverEntry | None = None
        """The newest hand-over, if no decision came after it."""
        self.is_over = self.is_stopped = False
        self.stop: tuple[int, DecisionEntry] | None = None

    def open(self, spec: RunSpec) -> None:
        """Record that the run starts, or starts again."""
        self.is_over = self.is_stopped = False
        self.stop = None
        if self.prices is not None and self.prices.source != spec.pools.prices:
            self.prices = None

    def add(self, number: int, entry: DecisionEntry) -> None:
        self.all.append(entry)
        self.prices_then.append(self.prices.prices if self.prices is not None else {})
        self.handover = None
        self.is_over = entry.plan is None
        if self.stop is None and entry.action == "stopped":
            self.stop = (number, entry)
        if self.is_over:
            self.is_stopped = entry.action == "stopped"

    def claim(self, entry: ClaimEntry) -> None:
        """If several pools were requested, put the pool of the claimed machine into the plan of the attempt."""
        if entry.deployment is None:
            return
        for at in reversed(range(len(self.all))):
            plan = self.all[at].plan
            if plan is not None and (plan.segment, plan.attempt) == (entry.segment, entry.attempt):
                self.all.put(at, self.all[at].model_copy(update={"plan": plan.on_pool(entry.deployment)}))
                return

    def hand_over(self, entry: HandoverEntry) -> None:
        self.handover = entry
        self.handovers.append(entry)


class FoldedEvidence:
    """The evidence from resumes, rehearsals and commits about the completeness of the checkpoints."""

    def __init__(self) -> None:
        self.resumes = Grown[VerdictEntry]()
        self._resume_at: dict[str, int] = {}
        self.broken_resumes: tuple[VerdictEntry, ...] = ()
        self.drills = Grown[DrillEntry]()
        self.broken_drill: Verdict | None = None
        self.untracked: dict[str, Finding] = {}
        self.process_values: frozenset[str] = frozenset()
        self.rehearsed_noise: dict[str, float] = {}

    def judge(self, entry: VerdictEntry) -> None:
        at = self._resume_at.setdefault(entry.attempt_id, len(self.resumes))
        self.resumes.put(at, entry)
        verdict = entry.verdict
        if verdict.kind in _PROVEN:
            self.broken_drill = None  # A real resume that was verified refutes an earlier rehearsal.
        if verdict.kind is VerdictKind.BROKEN:
            self.broken_resumes = (*self.broken_resumes, entry)
        elif verdict.rows_compared or verdict.kind is not VerdictKind.UNVERIFIED:
            self.broken_resumes = ()

    def rehearse(self, entry: DrillEntry) -> None:
        self.drills.append(entry)
        self.process_values |= set(entry.process_values)
        known = self.rehearsed_noise
        self.rehearsed_noise = known | {n: max(v, known.get(n, 0.0)) for n, v in entry.verdict.noise.items()}
        self.broken_drill = entry.verdict if entry.verdict.kind is VerdictKind.BROKEN else None

    def commit(self, untracked: Iterable[Finding]) -> None:
        for finding in untracked:
            self.untracked.setdefault(finding.sentence.partition(":")[0], finding)
        # An attempt commits only after its verdict, so a commit shows that earlier broken verdicts are resolved.
        self.broken_resumes = ()

    def end_earlier_runs(self) -> None:
        self.drills = Grown()
        self.broken_resumes = ()


class FoldedCheckpoints:
    """Committed checkpoints, with the data that all records contain about them, before and after the commit."""

    def __init__(self) -> None:
        self._all = Grown[Checkpoint]()
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
        """Apply a quarantine, a lift or a prune. Each of these records changes the set of usable checkpoints."""
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
            return  # The slot is not a checkpoint, or its commit was not added yet.
        rows, why = self._rows.get(slot, ()), self._quarantined.get(slot)
        self._all.put(at, replace(self._all[at], rows=rows, quarantined=why, is_pruned=slot in self._pruned))


class FoldedAttempts:
    """Claims, each with the data of all records about its attempt. These records may come before or after the claim."""

    def __init__(self) -> None:
        self._all = Grown[Attempt]()
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
