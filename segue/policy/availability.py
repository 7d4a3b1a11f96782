"""What a run saw of spot: when it could be had and when not. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.records import Capacity
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import History


@dataclass(frozen=True)
class Spell:
    """A stretch in which spot could be had, or could not, as far as the run saw."""

    is_up: bool
    begun_at: datetime
    seconds: float
    has_ended: bool
    deployment: str = ""
    """Of the pool on which it was seen."""


def preemptions(history: History) -> int:
    """Spot attempts of the run that had a machine and lost it."""
    return sum(
        r.stop_reason.is_preemption and r.got_capacity and r.capacity is Capacity.SPOT for r in history.last_words()
    )


def spells(history: History) -> tuple[Spell, ...]:
    """What the run saw of spot, oldest first: waits for capacity and boots are down, attempts up.

    A standby that the run was handed over to saw spot before its attempt began: it waited for it, and held it.
    """
    found: list[Spell] = []
    for entry in history.decisions:
        plan = entry.plan
        if plan is None or entry.action != "run" or plan.capacity is not Capacity.SPOT:
            continue
        attempt = history.attempt_of(plan.segment, plan.attempt)
        report = history.report_of(plan.segment, plan.attempt)
        if attempt is None:
            if report is not None and (not report.got_capacity or plan.standby is not None):
                seconds = _seconds_to_next(history, entry) or plan.start_within_seconds or 0.0
                found.append(Spell(False, entry.written_at, seconds, has_ended=False, deployment=plan.deployment))
            continue
        asked_at, up_at = _wait_for(history, entry, attempt.claim.written_at)
        waited = (up_at - asked_at).total_seconds()
        found.append(Spell(False, asked_at, max(waited, 0.0), has_ended=True, deployment=plan.deployment))
        if report is not None:
            died = report.stop_reason.is_preemption
            seconds = report.seconds + max((attempt.claim.written_at - up_at).total_seconds(), 0.0)
            found.append(Spell(True, up_at, seconds, has_ended=died, deployment=plan.deployment))
    return tuple(found)


def _wait_for(history: History, entry: DecisionEntry, claimed_at: datetime) -> tuple[datetime, datetime]:
    """From when to when an attempt waited for its machine."""
    standby = entry.plan.standby if entry.plan else None
    told = next((told for told in reversed(history.handovers) if told.standby == standby), None)
    if told is None or "waited_seconds" not in told.numbers:
        return entry.written_at, claimed_at
    up_at = told.written_at - timedelta(seconds=told.numbers["held_seconds"])
    return up_at - timedelta(seconds=told.numbers["waited_seconds"]), up_at


def _seconds_to_next(history: History, entry: DecisionEntry) -> float | None:
    later = [other.written_at for other in history.decisions if other.written_at > entry.written_at]
    return (min(later) - entry.written_at).total_seconds() if later else None


@dataclass(frozen=True)
class Gap:
    """A stretch without spot that has not ended, as far as is known."""

    begun_at: datetime
    seen_until: datetime


def gap_of(history: History, deployment: str | None) -> Gap | None:
    """The gap in which spot is, on that pool or at all; None while nothing speaks against spot."""
    gap = None
    for spell in spells(history):
        if deployment is not None and spell.deployment != deployment:
            continue
        end = spell.begun_at + timedelta(seconds=spell.seconds)
        if spell.is_up:
            gap = Gap(end, end) if spell.has_ended else None
        elif not spell.has_ended:
            gap = Gap(gap.begun_at if gap else spell.begun_at, end)
    return gap
