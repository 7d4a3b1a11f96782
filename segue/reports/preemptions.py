"""Lists the preemptions: the lost work of each preemption, and the time until the run trained again.

The module is pure. In this module, a preemption is an attempt on any pool that lost its machine, with or without a
notice.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime, Field

from segue.notices.board import NO_KILL_COMING_SECONDS
from segue.records import Heartbeat, SegmentReport, StopReason, Value
from segue.reports.cost_report import lost_cost, usual_step_seconds
from segue.reports.summary import live_of
from segue.runlog.history import Attempt, History
from segue.spec import RunSpec
from segue.units import duration, money

LastSave = Literal["made", "missed", "nothing to save"]


class Preemption(Value):
    """One preemption. The times come from the clocks of the machines."""

    segment: int = Field(ge=0)
    attempt: int = Field(ge=1)
    pool: str = Field(description="Deployment of the pool that took the machine back.")
    ended_at: AwareDatetime | None = Field(
        description="End of the attempt; None if the record of its decision cannot be read."
    )
    notice: str | None = Field(description="Kind of the notice; None if the machine was lost without a notice.")
    phase: str | None = Field(None, description="Phase of the attempt when the notice came; None if unknown.")
    was_answered: bool | None = Field(
        None, description="True if the attempt ended by itself after the notice, with a report; None without a notice."
    )
    grace_seconds: float | None = Field(description="Seconds from the notice to the kill; None if unknown.")
    used_seconds: float | None = Field(description="Seconds from the notice to the attempt's end; None if unknown.")
    last_save: LastSave | None = Field(description="Outcome of the last save after the notice; None without a notice.")
    lost_steps: int = Field(ge=0)
    lost_cost: float = Field(ge=0, description="Cost of the lost steps, at the price of the pool.")
    training_after_seconds: float | None = Field(
        description="Seconds from the attempt's end to the run's next step; None before that step."
    )

    @property
    def warning(self) -> str:
        """A text about the notice, and about how much of the grace period the attempt used."""
        if self.notice is None or self.used_seconds is None:
            return "no notice"
        during = f" in {self.phase}" if self.phase is not None else ""
        if not self.was_answered:
            return f"{self.notice}{during}, not answered"
        given = f" of {duration(self.grace_seconds)}" if self.grace_seconds is not None else ""
        return f"{self.notice}{during}, used {duration(self.used_seconds)}{given}"

    def row(self, currency: str) -> dict[str, str]:
        """Return the preemption as a row of a table."""
        lost = f"{self.lost_steps} steps, {money(self.lost_cost, currency)}" if self.lost_steps else "nothing"
        again = self.training_after_seconds
        return {
            "segment": f"{self.segment}" + (f".{self.attempt}" if self.attempt > 1 else ""),
            "pool": self.pool.removeprefix("segment/"),
            "notice": self.warning,
            "last save": self.last_save or "-",
            "lost": lost,
            "training again": f"after {duration(again)}" if again is not None else "not yet",
        }

    def facts(self) -> dict[str, object]:
        """Return the preemption as numbers and texts by name, for JSON output."""
        return self.model_dump(mode="json")


def preemptions(spec: RunSpec, history: History, *, beat: Heartbeat | None = None) -> list[Preemption]:
    """Return the preemptions of a run, oldest first. `beat` is the newest heartbeat of the attempt that trains now."""
    taken = [r for r in history.last_reports() if r.stop_reason.is_preemption and r.got_capacity]
    rate = usual_step_seconds(history, live_of(beat, history))
    costs = [lost_cost(spec, history, report, step_seconds=rate) for report in taken]
    firsts = sorted(at for each in history.attempts if (at := _first_step_at(each, history, beat)) is not None)
    return [_preemption(history, report, firsts, cost) for report, cost in zip(taken, costs, strict=True)]


def notice_counts(taken: Sequence[Preemption]) -> str | None:
    """Return a text with the numbers of answered and unanswered notices, by phase of the attempt.

    If there was no notice, return None.
    """
    texts = []
    for was_answered, word in ((True, "answered"), (False, "not answered")):
        phases = Counter(one.phase or "an unknown phase" for one in taken if one.was_answered is was_answered)
        if phases:
            told = ", ".join(f"{count} in {phase}" for phase, count in sorted(phases.items()))
            texts.append(f"{phases.total()} {word} ({told})")
    return "; ".join(texts) or None


def _preemption(history: History, report: SegmentReport, firsts: Sequence[datetime], cost: float) -> Preemption:
    plan, notice = history.plan_of(report.segment, report.attempt), report.notice
    ended_at = _end_of(report, history)
    grace = notice.grace_seconds if notice is not None else None
    return Preemption(
        segment=report.segment,
        attempt=report.attempt,
        pool=plan.deployment if plan is not None else report.capacity.value,
        ended_at=ended_at,
        notice=notice.kind if notice is not None else None,
        phase=notice.phase if notice is not None else None,
        was_answered=report.stop_reason is StopReason.NOTICE if notice is not None else None,
        grace_seconds=grace if grace is not None and grace < NO_KILL_COMING_SECONDS else None,
        used_seconds=max((ended_at - notice.received_at).total_seconds(), 0.0) if notice and ended_at else None,
        last_save=_last_save(report) if notice is not None else None,
        lost_steps=report.lost_steps,
        lost_cost=cost,
        training_after_seconds=_training_after_seconds(ended_at, firsts),
    )


def _end_of(report: SegmentReport, history: History) -> datetime | None:
    attempt, numbers = history.attempt_named(report.attempt_id), (report.segment, report.attempt)
    decided = (e.written_at for e in history.decisions if e.plan and (e.plan.segment, e.plan.attempt) == numbers)
    began = attempt.claim.written_at if attempt is not None else next(decided, None)
    return began + timedelta(seconds=report.seconds) if began is not None else None


def _last_save(report: SegmentReport) -> LastSave:
    if report.to_step == report.from_step:
        return "nothing to save"
    return "missed" if report.lost_steps else "made"


def _training_after_seconds(ended_at: datetime | None, firsts: Sequence[datetime]) -> float | None:
    """Return the seconds until the next attempt's first step. `firsts` contains the sorted times of first steps."""
    if ended_at is None:
        return None
    at = bisect_right(firsts, ended_at)
    return (firsts[at] - ended_at).total_seconds() if at < len(firsts) else None


def _first_step_at(attempt: Attempt, history: History, beat: Heartbeat | None) -> datetime | None:
    """Return the time of an attempt's first step.

    If the attempt has made no step yet, or the time is unknown, return None.
    """
    report = attempt.report
    if report is not None:
        return attempt.claim.written_at + timedelta(seconds=report.startup_seconds) if report.train_steps else None
    if beat is None or beat.attempt_id != attempt.claim.attempt_id or beat.step_seconds is None:
        return None
    parent = history.parent_of(attempt.claim.segment, attempt.claim.attempt)
    steps = beat.step - (parent.step if parent is not None else 0)
    try:
        return beat.beat_at - timedelta(seconds=steps * beat.step_seconds) if steps > 0 else None
    except OverflowError:
        return None  # A damaged heartbeat.
