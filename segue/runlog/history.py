"""The run's history: the log folded into one value. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from segue.records import (
    Capacity,
    CheckpointRef,
    Manifest,
    SegmentPlan,
    SegmentReport,
    Verdict,
    VerdictKind,
    WitnessRow,
)
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    OpenEntry,
    PruneEntry,
    QuarantineEntry,
    ReportEntry,
    SealEntry,
    VerdictEntry,
)
from segue.runlog.log import Damage, RunLog, Slot
from segue.spec import RunSpec


@dataclass(frozen=True)
class Checkpoint:
    """A committed checkpoint and what the log holds about it."""

    ref: CheckpointRef
    manifest: Manifest
    rows: tuple[WitnessRow, ...] = ()
    quarantined: str | None = None
    is_pruned: bool = False


@dataclass(frozen=True)
class Attempt:
    """One claim, with the report, verdict and commits of its attempt."""

    claim: ClaimEntry
    report: SegmentReport | None = None
    verdict: Verdict | None = None
    commits: tuple[CheckpointRef, ...] = ()


@dataclass(frozen=True)
class History:
    """All facts that a decision may depend on.

    `fresh_from` is the index in `reports` after the last decision that ended the run. Budgets count from there: a
    person who fixed something and starts the run again has full budgets, a parent that was killed does not.
    `broken_resumes` are the newest consecutive broken verdicts since then; verdicts that compared nothing do not count.
    """

    spec: RunSpec | None = None
    checkpoints: tuple[Checkpoint, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    reports: tuple[SegmentReport, ...] = ()
    resumes: tuple[VerdictEntry, ...] = ()
    drills: tuple[DrillEntry, ...] = ()
    """Resume rehearsals since the last decision that ended the run."""
    broken_drill: Verdict | None = None
    """Verdict of the newest of them, if it is broken and no later resume refutes it."""
    decisions: tuple[DecisionEntry, ...] = ()
    handover: HandoverEntry | None = None
    """The newest hand-over, as long as no decision followed it."""
    handovers: tuple[HandoverEntry, ...] = ()
    broken_resumes: tuple[VerdictEntry, ...] = ()
    is_over: bool = False
    """Whether a decision ended the run, and it was not opened again since."""
    stop: DecisionEntry | None = None
    """A person's request to stop the run, since it was last opened."""
    stop_slot: int | None = None
    fresh_from: int = 0
    damage: tuple[Damage, ...] = ()
    named_damage: frozenset[int] = field(default_factory=frozenset)
    next_slot: int = 0

    @property
    def usable(self) -> tuple[Checkpoint, ...]:
        """Checkpoints from which an attempt may resume, oldest first."""
        return tuple(c for c in self.checkpoints if c.quarantined is None and not c.is_pruned)

    @property
    def newest(self) -> Checkpoint | None:
        return self.usable[-1] if self.usable else None

    @property
    def committed_step(self) -> int:
        """The step from which a resume would start."""
        return self.newest.manifest.step if self.newest else 0

    @property
    def open_plan(self) -> SegmentPlan | None:
        """The plan that was decided and has no report yet: an attempt that may be alive."""
        plan = next((entry.plan for entry in reversed(self.decisions) if entry.plan is not None), None)
        if plan is None or self.report_of(plan.segment, plan.attempt) is not None:
            return None
        return plan

    @property
    def fresh_reports(self) -> tuple[SegmentReport, ...]:
        """One report per attempt, for the attempts after the last decision that ended the run."""
        before = {(report.segment, report.attempt) for report in self.reports[: self.fresh_from]}
        return tuple(report for report in self.last_reports() if (report.segment, report.attempt) not in before)

    def report_of(self, segment: int, attempt: int) -> SegmentReport | None:
        """The newest report of an attempt; its own report replaces an earlier one by the controller."""
        return self._reports_by_number.get((segment, attempt))

    def handover_of(self, segment: int, attempt: int) -> HandoverEntry | None:
        """The hand-over for which an attempt was recalled; None without one, or when a decision followed it."""
        entry = self.handover
        return entry if entry is not None and (entry.segment, entry.attempt) == (segment, attempt) else None

    def is_import(self, segment: int, attempt: int) -> bool:
        """Whether an attempt was planned to import weights, not to train."""
        return (segment, attempt) in self._imports

    def attempt_of(self, segment: int, attempt: int) -> Attempt | None:
        """The newest claim of an attempt; None when it never claimed the run."""
        return self._attempts_by_number.get((segment, attempt))

    def attempt_named(self, attempt_id: str | None) -> Attempt | None:
        """The attempt with this id; None when no claim has it."""
        return self._attempts_by_id.get(attempt_id) if attempt_id is not None else None

    def plan_of(self, segment: int, attempt: int) -> SegmentPlan | None:
        """The plan of an attempt; None when no decision has it."""
        return self._plans_by_number.get((segment, attempt))

    def parent_of(self, segment: int, attempt: int) -> CheckpointRef | None:
        """The checkpoint from which an attempt was planned to resume."""
        plan = self._plans_by_number.get((segment, attempt))
        return plan.parent if plan is not None else None

    def last_reports(self) -> tuple[SegmentReport, ...]:
        """One report per attempt, the newest of each, in the order of the attempts."""
        return tuple(self._reports_by_number.values())

    def checkpoint(self, ref: CheckpointRef) -> Checkpoint | None:
        return self._checkpoints_by_ref.get(ref)

    @cached_property
    def _reports_by_number(self) -> dict[tuple[int, int], SegmentReport]:
        """The newest report of each attempt, in the order of the first ones."""
        return {(report.segment, report.attempt): report for report in self.reports}

    @cached_property
    def _attempts_by_number(self) -> dict[tuple[int, int], Attempt]:
        return {(attempt.claim.segment, attempt.claim.attempt): attempt for attempt in self.attempts}

    @cached_property
    def _attempts_by_id(self) -> dict[str, Attempt]:
        return {attempt.claim.attempt_id: attempt for attempt in self.attempts}

    @cached_property
    def _plans_by_number(self) -> dict[tuple[int, int], SegmentPlan]:
        plans = (entry.plan for entry in reversed(self.decisions) if entry.plan is not None)
        return {(plan.segment, plan.attempt): plan for plan in plans}

    @cached_property
    def _imports(self) -> frozenset[tuple[int, int]]:
        plans = (entry.plan for entry in self.decisions if entry.action == "import")
        return frozenset((plan.segment, plan.attempt) for plan in plans if plan is not None)

    @cached_property
    def _checkpoints_by_ref(self) -> dict[CheckpointRef, Checkpoint]:
        return {checkpoint.ref: checkpoint for checkpoint in self.checkpoints}

    def seconds_on(self, capacity: Capacity) -> float:
        """Paid seconds on this kind of capacity, according to the reports."""
        paid = (report for report in self.last_reports() if report.capacity is capacity and report.got_capacity)
        return sum(report.seconds for report in paid)


def read_history(log: RunLog) -> History:
    """The history as of now; reads only the slots that were not read before."""
    log.refresh()
    return fold(log.slots, damage=log.damage, next_slot=log.next_slot)


def fold(slots: Sequence[Slot], *, damage: tuple[Damage, ...] = (), next_slot: int = 0) -> History:
    """Fold readable slots into a history.

    A commit whose epoch is lower than an earlier one is ignored: no correct writer appends one, so it can only come
    from a writer that did not read the log.
    """
    quarantined: dict[int, str] = {}
    pruned: set[int] = set()
    rows: dict[int, tuple[WitnessRow, ...]] = {}
    resumes: dict[str, VerdictEntry] = {}
    for entry in (slot.entry for slot in slots):
        if isinstance(entry, QuarantineEntry):
            quarantined.setdefault(entry.slot, entry.reason)
        elif isinstance(entry, PruneEntry):
            pruned.update(entry.slots)
        elif isinstance(entry, SealEntry):
            rows[entry.checkpoint.slot] = entry.rows
        elif isinstance(entry, VerdictEntry):
            resumes[entry.attempt_id] = entry
    checkpoints = tuple(
        Checkpoint(
            ref=CheckpointRef(slot=number, step=entry.manifest.step, attempt_id=entry.attempt_id),
            manifest=entry.manifest,
            rows=rows.get(number, ()),
            quarantined=quarantined.get(number),
            is_pruned=number in pruned,
        )
        for number, entry in _standing_commits(slots)
    )
    reports = tuple(slot.entry.report for slot in slots if isinstance(slot.entry, ReportEntry))
    ended, stop = _end_of_earlier_runs(slots), _stop(slots)
    # An attempt commits only after its verdict, so the newest commit shows that earlier broken verdicts are resolved.
    since = max(ended, max((number for number, _ in _standing_commits(slots)), default=-1))
    fresh = [slot.entry for slot in slots if slot.number > since and isinstance(slot.entry, VerdictEntry)]
    specs = [slot.entry.spec for slot in slots if isinstance(slot.entry, OpenEntry)]
    return History(
        spec=specs[-1] if specs else None,
        checkpoints=checkpoints,
        attempts=tuple(
            Attempt(
                claim=claim,
                report=_report_for(claim, reports),
                verdict=resumes[claim.attempt_id].verdict if claim.attempt_id in resumes else None,
                commits=tuple(c.ref for c in checkpoints if c.ref.attempt_id == claim.attempt_id),
            )
            for claim in (slot.entry for slot in slots if isinstance(slot.entry, ClaimEntry))
        ),
        reports=reports,
        resumes=tuple(resumes.values()),
        drills=tuple(slot.entry for slot in slots if slot.number > ended and isinstance(slot.entry, DrillEntry)),
        broken_drill=_broken_drill(slots, ended),
        decisions=tuple(slot.entry for slot in slots if isinstance(slot.entry, DecisionEntry)),
        is_over=_is_over(slots),
        stop=stop[1] if stop is not None else None,
        stop_slot=stop[0] if stop is not None else None,
        handover=_handover(slots),
        handovers=tuple(slot.entry for slot in slots if isinstance(slot.entry, HandoverEntry)),
        broken_resumes=_broken_in_a_row(fresh),
        fresh_from=sum(isinstance(slot.entry, ReportEntry) for slot in slots if slot.number < ended),
        damage=damage,
        named_damage=frozenset(quarantined),
        next_slot=next_slot,
    )


def _handover(slots: Sequence[Slot]) -> HandoverEntry | None:
    entries = (slot.entry for slot in reversed(slots) if isinstance(slot.entry, (HandoverEntry, DecisionEntry)))
    newest = next(entries, None)
    return newest if isinstance(newest, HandoverEntry) else None


def _end_of_earlier_runs(slots: Sequence[Slot]) -> int:
    """The slot up to which everything belongs to runs that have ended; budgets count from there."""
    ended, is_stopped = -1, False
    for slot in slots:
        if _ends_the_run(slot):
            ended = slot.number
            is_stopped = isinstance(slot.entry, DecisionEntry) and slot.entry.action == "stopped"
        elif isinstance(slot.entry, OpenEntry) and is_stopped:
            # A stop is recorded before the report of the attempt that it recalls.
            ended, is_stopped = slot.number, False
    return ended


def _is_over(slots: Sequence[Slot]) -> bool:
    relevant = [slot for slot in slots if isinstance(slot.entry, (OpenEntry, DecisionEntry))]
    return bool(relevant) and _ends_the_run(relevant[-1])


def _stop(slots: Sequence[Slot]) -> tuple[int, DecisionEntry] | None:
    opened = max((slot.number for slot in slots if isinstance(slot.entry, OpenEntry)), default=-1)
    later = ((slot.number, slot.entry) for slot in slots if slot.number > opened)
    found = ((number, entry) for number, entry in later if isinstance(entry, DecisionEntry))
    return next((pair for pair in found if pair[1].action == "stopped"), None)


def _broken_drill(slots: Sequence[Slot], ended: int) -> Verdict | None:
    fresh = [slot.entry for slot in slots if slot.number > ended and isinstance(slot.entry, (DrillEntry, VerdictEntry))]
    proven = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
    judged = [entry for entry in fresh if isinstance(entry, DrillEntry) or entry.verdict.kind in proven]
    newest = judged[-1] if judged else None  # A real resume that was verified refutes an earlier rehearsal.
    return newest.verdict if isinstance(newest, DrillEntry) and newest.verdict.kind is VerdictKind.BROKEN else None


def _broken_in_a_row(verdicts: Sequence[VerdictEntry]) -> tuple[VerdictEntry, ...]:
    found: list[VerdictEntry] = []
    for entry in reversed(verdicts):
        if entry.verdict.kind is VerdictKind.BROKEN:
            found.insert(0, entry)
        elif entry.verdict.rows_compared or entry.verdict.kind is not VerdictKind.UNVERIFIED:
            break
    return tuple(found)


def _standing_commits(slots: Iterable[Slot]) -> Iterable[tuple[int, CommitEntry]]:
    highest = 0
    for slot in slots:
        if isinstance(slot.entry, CommitEntry) and slot.entry.epoch >= highest:
            yield slot.number, slot.entry
        highest = max(highest, slot.entry.epoch)


def _ends_the_run(slot: Slot) -> bool:
    return isinstance(slot.entry, DecisionEntry) and slot.entry.plan is None


def _report_for(claim: ClaimEntry, reports: tuple[SegmentReport, ...]) -> SegmentReport | None:
    found = [r for r in reports if r.attempt_id == claim.attempt_id]
    return found[-1] if found else None
