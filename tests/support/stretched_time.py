"""Lateness on a machine that is busy: measured by a clock that stretches with the speed at which the run was served.

A deadline is promised for the numbers that the run spec gives: a step, a changeover and the detection of a death take
so long. Each second that the machine took beyond them moves the deadline that a test may hold the run to.
"""

from __future__ import annotations

from segue.policy.estimates import detection_seconds
from segue.records import StopReason
from segue.runlog.entries import ReportEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

_OVERHEAD_SECONDS = 1.0
"""Of a decision, where no changeover follows."""


def late_seconds(spec: RunSpec, runlog: RunLog, *, until_decided_seconds: float = 0.0) -> float:
    """How late a run ended after the time by which the machine was slower than the run spec's numbers; negative: early.

    `until_decided_seconds` is what the deadline allows between asking for the run and its first decision.
    """
    history = read_history(runlog.reload())
    asked_at, ended_at = runlog.slots[0].entry.written_at, history.decisions[-1].written_at
    first = (history.decisions[0].written_at - asked_at).total_seconds()
    stretch = max(first - until_decided_seconds, 0.0) + sum(_excess(spec, runlog))
    return (ended_at - spec.deadline).total_seconds() - stretch


def _excess(spec: RunSpec, runlog: RunLog) -> list[float]:
    """Seconds beyond the promised ones, by attempt: boot and restore, training, and the wait for a death's report."""
    history = read_history(runlog)
    policy, found = spec.policy, []
    reported_at = {
        (slot.entry.report.segment, slot.entry.report.attempt): slot.entry.written_at
        for slot in runlog.slots
        if isinstance(slot.entry, ReportEntry)
    }
    since = None
    for decision in history.decisions:
        plan, begun_at = decision.plan, since or decision.written_at
        if plan is None:  # The end: everything after the last report is overhead.
            found.append(max((decision.written_at - begun_at).total_seconds() - _OVERHEAD_SECONDS, 0.0))
            continue
        attempt = history.attempt_of(plan.segment, plan.attempt)
        report = history.report_of(plan.segment, plan.attempt)
        if report is None:
            continue
        since = reported_at[plan.segment, plan.attempt]
        waiting = plan.start_within_seconds or 0.0
        if attempt is None:  # A wait for spot in vain, which the clamp has bounded.
            found.append(max((since - begun_at).total_seconds() - waiting - _OVERHEAD_SECONDS, 0.0))
            continue
        # Spot may have been waited for within the time that the plan allows; on-demand is there at once.
        to_claim = (attempt.claim.written_at - begun_at).total_seconds()
        found.append(max(to_claim + report.startup_seconds - policy.changeover_seconds - waiting, 0.0))
        promised = report.train_steps * (policy.step_seconds or 0.0) * (1 + policy.margin_share)
        found.append(max(report.train_seconds - promised, 0.0))
        if report.stop_reason is StopReason.LOST:
            alive = (since - attempt.claim.written_at).total_seconds()
            found.append(max(alive - report.seconds - detection_seconds(spec), 0.0))
    return found
