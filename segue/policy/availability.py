"""Describes spot availability by the up and down intervals that one run observed. The module is pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.records import Capacity, SegmentReport, StopReason
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import History


@dataclass(frozen=True)
class Interval:
    """A period in which the run observed that spot was available, or that spot was not available."""

    is_up: bool
    begun_at: datetime
    seconds: float
    has_ended: bool
    deployment: str = ""
    """The pool on which the run observed the interval."""

    @property
    def ended_at(self) -> datetime:
        """The end of the interval, or the time of its last observation."""
        return self.begun_at + timedelta(seconds=self.seconds)


def preemptions(history: History) -> int:
    """Return the number of spot attempts of the run that had a machine and lost the machine."""
    return sum(
        r.stop_reason.is_preemption and r.got_capacity and r.capacity is Capacity.SPOT for r in history.last_reports()
    )


def died_in_place(history: History) -> list[SegmentReport]:
    """Return the newest consecutive attempts that got a machine and ended without a commit, newest first."""
    died = []
    for report in reversed(history.fresh_reports):
        if not report.got_capacity:
            continue  # Such an attempt shows nothing about the run.
        has_committed = any(each.ref.attempt_id == report.attempt_id for each in history.checkpoints)
        if not report.stop_reason.is_preemption or has_committed:
            break
        died.append(report)
    return died


def intervals(history: History) -> tuple[Interval, ...]:
    """Return the availability intervals of a run, oldest first.

    Waits for capacity and boots are down intervals, and attempts are up intervals. A failed start had a machine, so it
    shows nothing about availability. A wait ends when a worker takes a start of the attempt. A standby that took over
    the run first waited for a machine (down) and then held the machine (up).
    """
    found: list[Interval] = []
    moments = sorted(entry.written_at for entry in history.decisions)
    for entry in history.decisions:
        plan = entry.plan
        if plan is None or entry.action != "run" or plan.capacity is not Capacity.SPOT:
            continue
        attempt = history.attempt_of(plan.segment, plan.attempt)
        report = history.report_of(plan.segment, plan.attempt)
        if attempt is None:
            has_failed_to_start = report is not None and report.stop_reason is StopReason.START_FAILED
            if report is None or has_failed_to_start:
                continue
            if not report.got_capacity or plan.standby is not None:
                seconds = _seconds_to_next(moments, entry.written_at) or plan.start_within_seconds or 0.0
                found += _given_up(entry, seconds)
            continue
        asked_at, up_at = wait_of(history, entry, attempt.claim.written_at)
        waited = (up_at - asked_at).total_seconds()
        found += _withdrawn(history, entry)
        found.append(Interval(False, asked_at, max(waited, 0.0), has_ended=True, deployment=plan.deployment))
        if report is not None:
            died = report.stop_reason.is_preemption
            seconds = report.seconds + max((attempt.claim.written_at - up_at).total_seconds(), 0.0)
            found.append(Interval(True, up_at, seconds, has_ended=died, deployment=plan.deployment))
    return tuple(found)


def _given_up(entry: DecisionEntry, seconds: float) -> list[Interval]:
    """Return the waits of an attempt that got no machine, for each pool with a request."""
    assert entry.plan is not None
    asked = {each.deployment: each.after_seconds for each in entry.plan.pools} or {entry.plan.deployment: 0.0}
    return [
        Interval(False, entry.written_at + timedelta(seconds=after), seconds - after, has_ended=False, deployment=pool)
        for pool, after in asked.items()
        if after < seconds or not after
    ]


def _withdrawn(history: History, entry: DecisionEntry) -> list[Interval]:
    """Return the intervals on the pools whose starts segue withdrew because another pool's machine came first.

    If a withdrawn start had a machine, its pool was up from the moment at which the start got the machine.
    """
    plan, found = entry.plan, list[Interval]()
    assert plan is not None
    after = {each.deployment: each.after_seconds for each in plan.pools if each.deployment != plan.deployment}
    known = history.starts_of(plan.segment, plan.attempt)
    for pool, seconds in after.items():
        ended = [each for each in known if each.deployment == pool and each.outcome in ("withdrawn", "start_failed")]
        taken = [each for each in known if each.deployment == pool and each.seconds > 0]
        if not taken and not any(each.outcome == "withdrawn" for each in ended):
            continue  # It was not asked, or it is not known when it ended.
        last = max(each.written_at for each in [*ended, *taken])
        up_at = min((each.written_at - timedelta(seconds=each.seconds) for each in taken), default=last)
        asked = [each.written_at for each in known if each.deployment == pool and each.outcome == "requested"]
        asked_at = min(asked, default=entry.written_at + timedelta(seconds=seconds))
        waited = max((up_at - asked_at).total_seconds(), 0.0)
        found.append(Interval(False, asked_at, waited, has_ended=bool(taken), deployment=pool))
        if taken:
            held = (last - up_at).total_seconds()
            found.append(Interval(True, up_at, held, has_ended=False, deployment=pool))
    return found


def seen_by_others(history: History) -> tuple[Interval, ...]:
    """Return the intervals that other runs of the store had observed when this run began, oldest first."""
    return tuple(
        Interval(each.is_up, each.begun_at, each.seconds, has_ended=each.has_ended, deployment=each.pool)
        for each in history.seen_pools.intervals
    )


def wait_of(history: History, entry: DecisionEntry, claimed_at: datetime) -> tuple[datetime, datetime]:
    """Return the start and the end of an attempt's wait for its machine."""
    standby = entry.plan.standby if entry.plan else None
    handover = next((each for each in reversed(history.handovers) if each.standby == standby), None)
    if handover is None or "waited_seconds" not in handover.numbers:
        return entry.written_at, _taken_at(history, entry) or claimed_at
    up_at = handover.written_at - timedelta(seconds=handover.numbers.get("held_seconds", 0.0))
    return up_at - timedelta(seconds=handover.numbers["waited_seconds"]), up_at


def _taken_at(history: History, entry: DecisionEntry) -> datetime | None:
    """Return the time at which a worker took an attempt whose first start was slow.

    Return None if the first start was not slow.
    """
    plan = entry.plan
    known = history.starts_on_its_pool(plan.segment, plan.attempt) if plan is not None else ()
    slow = next((start for start in known if start.outcome == "slow"), None)
    return max(slow.written_at - timedelta(seconds=slow.seconds), entry.written_at) if slow is not None else None


def _seconds_to_next(moments: Sequence[datetime], moment: datetime) -> float | None:
    later = bisect_right(moments, moment)
    return (moments[later] - moment).total_seconds() if later < len(moments) else None


@dataclass(frozen=True)
class OpenDownInterval:
    """A down interval whose end the run has not observed."""

    begun_at: datetime
    observed_until: datetime


def seconds_without_spot(history: History, *, now: datetime) -> float:
    """Return the seconds for which the run has waited for a spot machine so far.

    The wait begins with the first request that the run gave up after it last had a spot machine. Return 0 if the run
    gave up no request since then, or since a person started the run again.
    """
    begun_at, resumed_at = None, max((e.written_at for e in history.decisions if e.action != "run"), default=None)
    for interval in intervals(history):
        if interval.is_up or interval.has_ended:
            begun_at = None
        elif begun_at is None and (resumed_at is None or interval.begun_at > resumed_at):
            begun_at = interval.begun_at
    return 0.0 if begun_at is None else max((now - begun_at).total_seconds(), 0.0)


def open_down_interval(
    history: History, deployment: str | None, *, least_seconds: float = 0.0
) -> OpenDownInterval | None:
    """Return the down interval that has not ended yet, of one pool or of any pool.

    Return None if spot may be up. The function ignores a wait that the run gave up after less than `least_seconds`.
    """
    found = None
    for interval in intervals(history):
        if deployment is not None and interval.deployment != deployment:
            continue
        end = interval.ended_at
        if interval.is_up:
            found = OpenDownInterval(end, end) if interval.has_ended else None
        elif not interval.has_ended and interval.seconds >= least_seconds:
            found = OpenDownInterval(found.begun_at if found else interval.begun_at, end)
    return found
