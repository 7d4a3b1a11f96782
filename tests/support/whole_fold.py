"""The definition of a run's history: each field computed from the whole log, without any state in between.

`segue.runlog.history` computes the same record by record. A change of what a record means is made here and there, and
the tests compare both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from segue.records import CheckpointRef, SegmentPlan, SegmentReport, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import (
    ClaimEntry,
    CommitEntry,
    DecisionEntry,
    DrillEntry,
    HandoverEntry,
    LiftEntry,
    MachineEntry,
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
from segue.runlog.history import Attempt, Checkpoint, History
from segue.runlog.log import Damage, Slot


def whole_fold(slots: Sequence[Slot], *, damage: tuple[Damage, ...] = (), next_slot: int = 0) -> History:
    """Fold readable slots into a history.

    A record whose epoch is lower than an earlier one is ignored, unless the controller wrote it: no correct writer
    appends one, so it can only come from a writer that did not read the log.
    """
    slots = list(_not_fenced(slots))
    quarantined: dict[int, str] = {}
    pruned: set[int] = set()
    rows: dict[int, tuple[WitnessRow, ...]] = {}
    resumes: dict[str, VerdictEntry] = {}
    for entry in (slot.entry for slot in slots):
        if isinstance(entry, QuarantineEntry):
            quarantined.setdefault(entry.slot, entry.reason)
        elif isinstance(entry, LiftEntry):
            quarantined.pop(entry.slot, None)
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
        starts=tuple(slot.entry for slot in slots if isinstance(slot.entry, StartEntry)),
        unfit_machines=tuple(slot.entry for slot in slots if isinstance(slot.entry, MachineEntry)),
        reports=reports,
        resumes=tuple(resumes.values()),
        drills=tuple(slot.entry for slot in slots if slot.number > ended and isinstance(slot.entry, DrillEntry)),
        broken_drill=_broken_drill(slots),
        decisions=tuple(_carried_out(slots)),
        decision_prices=tuple(_prices_before(slots)),
        prices=_prices(slots),
        spending=next((s.entry for s in reversed(slots) if isinstance(s.entry, SpendingEntry)), None),
        is_over=_is_over(slots),
        stop=stop[1] if stop is not None else None,
        stop_slot=stop[0] if stop is not None else None,
        handover=_handover(slots),
        handovers=tuple(slot.entry for slot in slots if isinstance(slot.entry, HandoverEntry)),
        broken_resumes=_broken_in_a_row(fresh),
        fresh_from=sum(isinstance(slot.entry, ReportEntry) for slot in slots if slot.number < ended),
        earlier_plans=frozenset(_plans_before(slots, ended)),
        damage=damage,
        named_damage=frozenset(quarantined),
        next_slot=next_slot,
    )


def _carried_out(slots: Sequence[Slot]) -> Iterable[DecisionEntry]:
    """The decisions. A plan has the pool that claimed it, if its claim names one."""
    for at, slot in enumerate(slots):
        if not isinstance(slot.entry, DecisionEntry):
            continue
        found, plan = slot.entry, slot.entry.plan
        for later in (each.entry for each in slots[at + 1 :] if plan is not None):
            if isinstance(later, DecisionEntry) and later.plan is not None and _names(later.plan) == _names(plan):
                break  # A claim belongs to the newest decision of its attempt.
            if isinstance(later, ClaimEntry) and later.deployment is not None and _names(later) == _names(plan):
                found = found.model_copy(update={"plan": plan.on_pool(later.deployment)})
        yield found


def _names(of: SegmentPlan | ClaimEntry) -> tuple[int, int]:
    return of.segment, of.attempt


def _prices(slots: Sequence[Slot]) -> PricesEntry | None:
    """The newest prices, unless the run was opened since with another source."""
    relevant = [slot.entry for slot in slots if isinstance(slot.entry, (PricesEntry, OpenEntry))]
    at = max((at for at, entry in enumerate(relevant) if isinstance(entry, PricesEntry)), default=None)
    if at is None:
        return None
    newest, later = relevant[at], relevant[at + 1 :]
    assert isinstance(newest, PricesEntry)
    is_kept = all(isinstance(entry, OpenEntry) and entry.spec.pools.prices == newest.source for entry in later)
    return newest if is_kept else None


def _prices_before(slots: Sequence[Slot]) -> Iterable[Mapping[str, float]]:
    """The prices that held at each decision."""
    for number, slot in enumerate(slots):
        if isinstance(slot.entry, DecisionEntry):
            held = _prices(slots[:number])
            yield held.prices if held is not None else {}


def _plans_before(slots: Sequence[Slot], ended: int) -> Iterable[tuple[int, int]]:
    entries = (slot.entry for slot in slots if slot.number < ended)
    plans = (entry.plan for entry in entries if isinstance(entry, DecisionEntry))
    return ((plan.segment, plan.attempt) for plan in plans if plan is not None)


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


def _broken_drill(slots: Sequence[Slot]) -> Verdict | None:
    found = [slot.entry for slot in slots if isinstance(slot.entry, (DrillEntry, VerdictEntry))]
    proven = (VerdictKind.EXACT, VerdictKind.EQUIVALENT)
    judged = [entry for entry in found if isinstance(entry, DrillEntry) or entry.verdict.kind in proven]
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


def _not_fenced(slots: Iterable[Slot]) -> Iterable[Slot]:
    highest = 0
    for slot in slots:
        if slot.entry.epoch == 0 or slot.entry.epoch >= highest:
            yield slot
        highest = max(highest, slot.entry.epoch)


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
