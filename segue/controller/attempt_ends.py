"""Writes reports and verdicts for attempts that ended without writing their own."""

from __future__ import annotations

from contextlib import suppress

from segue.launch import memory
from segue.records import (
    CodeFailure,
    Finding,
    Heartbeat,
    Notice,
    SegmentPlan,
    SegmentReport,
    StopReason,
    Verdict,
    VerdictKind,
)
from segue.runlog.entries import Entry, ReportEntry, VerdictEntry
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog, Stamp

_PHASES = {"starting": "build", "restoring": "restore", "training": "step", "stopping": "end"}
"""The name of each heartbeat phase in a notice."""
_MEMORY_LIMIT_SHARE = 0.95
"""Least share of the memory limit at which an attempt without a report is reported as out of memory."""


def declare_lost(
    runlog: RunLog,
    plan: SegmentPlan,
    *,
    why: str,
    reason: StopReason = StopReason.LOST,
    got_capacity: bool = True,
    was_refused: bool = False,
    failure: CodeFailure | None = None,
    notice: Notice | None = None,
) -> SegmentReport:
    """Write the report of an attempt that ended without a report.

    If the attempt has written its own report, return that report. If a `lost` attempt had reached its memory limit, the
    report states out of memory. `was_refused` means that the attempt never had a machine.

    Raises:
        StoreWriteError, StoreReadError: the report was not written. It is safe to call the function again.
    """
    beat = last_heartbeat(runlog, read_history(runlog).attempt_of(plan.segment, plan.attempt))

    def build(stamp: Stamp) -> Entry:
        history = read_history(runlog)
        if history.report_of(plan.segment, plan.attempt) is not None:
            raise NothingToAddError
        had_machine = got_capacity and not was_refused and not history.is_import(plan.segment, plan.attempt)
        actual, note = _with_memory(reason, why, beat)
        unanswered = notice.model_copy(update={"phase": _PHASES.get(beat.phase) if beat else None}) if notice else None
        facts = {"got_capacity": had_machine, "was_refused": was_refused, "failure": failure, "notice": unanswered}
        report = _lost_report(history, plan, beat, actual, note).model_copy(update=facts)
        return ReportEntry.model_validate(stamp(epoch=0) | {"report": report})

    with suppress(NothingToAddError):
        runlog.append(build)
    report = read_history(runlog).report_of(plan.segment, plan.attempt)
    assert report is not None
    return report


def declare_unfit(runlog: RunLog, plan: SegmentPlan, history: History) -> SegmentReport | None:
    """Write the report of an attempt whose machine failed the check before the claim. Return None if the machine
    passed.

    Raises:
        StoreWriteError, StoreReadError: the report was not written. It is safe to call the function again.
    """
    unfit = history.unfit_machine_of(plan.segment, plan.attempt)
    if unfit is None:
        return None
    why = unfit.machine_check.failure_of(unfit.machine)
    return declare_lost(runlog, plan, why=why, reason=StopReason.START_FAILED, was_refused=True)


def declare_as(runlog: RunLog, plan: SegmentPlan, reason: StopReason, *, why: str) -> SegmentReport:
    """Correct the stop reason of an attempt whose report states a preemption, and return the newest report.

    Raises:
        StoreWriteError, StoreReadError: the report was not written. It is safe to call the function again.
    """

    def build(stamp: Stamp) -> Entry:
        report = read_history(runlog).report_of(plan.segment, plan.attempt)
        if report is None or not report.stop_reason.is_preemption:
            raise NothingToAddError
        changed = report.model_copy(update={"stop_reason": reason, "note": why})
        return ReportEntry.model_validate(stamp(epoch=0) | {"report": changed})

    with suppress(NothingToAddError):
        runlog.append(build)
    report = read_history(runlog).report_of(plan.segment, plan.attempt)
    assert report is not None
    return report


class NothingToAddError(Exception):
    """Cancels an append, because the log already contains this record."""


def _with_memory(reason: StopReason, why: str, beat: Heartbeat | None) -> tuple[StopReason, str]:
    """Return the stop reason and the note of an attempt without a report, by the memory in its last heartbeat.

    The reason is out of memory if the attempt used nearly all of its memory limit. The kernel then killed the whole
    container, with the process that would have written the report.
    """
    if beat is None or reason not in (StopReason.LOST, StopReason.OUT_OF_MEMORY):
        return reason, why
    peak, limit = beat.peak_memory_bytes, beat.memory_limit_bytes
    used = beat.memory_bytes  # Not the peak, which counts mapped files and never falls.
    if used is not None and limit is not None and used >= _MEMORY_LIMIT_SHARE * limit:
        reason = StopReason.OUT_OF_MEMORY
    shown = memory.in_words(peak, limit) if reason is StopReason.OUT_OF_MEMORY else ""
    return reason, f"{why}; {shown}" if shown else why


def _lost_report(
    history: History, plan: SegmentPlan, beat: Heartbeat | None, reason: StopReason, why: str
) -> SegmentReport:
    attempt = history.attempt_of(plan.segment, plan.attempt)
    commits = attempt.commits if attempt else ()
    start = plan.parent.step if plan.parent else 0
    committed = commits[-1].step if commits else start
    reached = max(beat.step if beat else committed, committed)
    rate = beat.step_seconds if beat else None
    steps = reached - start
    alive = (beat.beat_at - attempt.claim.written_at).total_seconds() if beat and attempt else 0.0
    return SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=attempt.claim.attempt_id if attempt else None,
        capacity=plan.capacity,
        stop_reason=reason,
        from_step=start,
        to_step=reached,
        checkpoint=commits[-1] if commits else None,
        lost_steps=reached - committed,
        seconds=max(alive, 0.0),
        phase_seconds=beat.phase_seconds if beat else {},
        train_seconds=steps * rate if rate else 0.0,
        train_steps=steps if rate else 0,
        startup_seconds=max(alive - steps * rate, 0.0) if rate else 0.0,
        peak_memory_bytes=beat.peak_memory_bytes if beat else None,
        zone=beat.zone if beat else "",
        slowness=beat.slowness if beat else None,
        slow_ranks=beat.slow_ranks if beat else (),
        note=why,
    )


def settle_verdict(runlog: RunLog, report: SegmentReport) -> Verdict | None:
    """Return the verdict about an attempt's resume.

    The verdict is `unverified` if the attempt ended before it wrote a verdict. Return None if the attempt did not
    resume or never claimed the run.

    Raises:
        StoreWriteError, StoreReadError: the verdict is not known. It is safe to call the function again.
    """
    parent = read_history(runlog).parent_of(report.segment, report.attempt)

    def build(stamp: Stamp) -> Entry:
        attempt = read_history(runlog).attempt_named(report.attempt_id)
        if attempt is None or attempt.verdict is not None or parent is None:
            raise NothingToAddError
        finding = Finding(component="run", channel="time", sentence="the attempt ended before a step was replayed")
        verdict = Verdict(kind=VerdictKind.UNVERIFIED, findings=(finding,))
        facts = {"attempt_id": attempt.claim.attempt_id, "parent": parent, "verdict": verdict}
        return VerdictEntry.model_validate(stamp(epoch=0) | facts)

    with suppress(NothingToAddError):
        runlog.append(build)
    attempt = read_history(runlog).attempt_named(report.attempt_id)
    return attempt.verdict if attempt else None
