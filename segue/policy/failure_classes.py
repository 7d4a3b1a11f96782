"""Defines the failure classes of attempts, each with its own budget of failures and back-off. The module is pure.

A failure counts against its budget until the run commits a later step than the failed attempt reached. No failure class
leads to on-demand capacity, because the cause is in the run and not in the capacity.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from segue.errors import DataChangedError, RaySetupError, SlurmSetupError, StructureChangedError
from segue.records import SegmentReport, StopReason, VerdictKind
from segue.runlog.history import History
from segue.spec import RunSpec

_SLACK_SHARE = 0.1
"""Share of the slack that one back-off may use."""


@dataclass(frozen=True)
class FailureClass:
    """A class of failures whose cause is in the run."""

    name: str
    what: str
    """A description of the failure for messages."""
    fix: str
    is_of: Callable[[SegmentReport], bool]
    budget: Callable[[RunSpec], int]
    first_seconds: float
    """Seconds of back-off after the first failure of this class. The back-off doubles with each further failure."""
    longest_seconds: float


def _is_transient(report: SegmentReport) -> bool:
    return report.failure is not None and report.failure.is_transient


_NOT_LAUNCHED = (SlurmSetupError.__name__, RaySetupError.__name__)

CLASSES = (
    FailureClass(
        name="data changed",
        what="was given other data than before",
        fix="restore the original file, then start the run again; or start a new run with the new file",
        is_of=lambda report: report.failure is not None and report.failure.type == DataChangedError.__name__,
        budget=lambda _: 1,
        first_seconds=0.0,
        longest_seconds=0.0,
    ),
    FailureClass(
        name="structure changed",
        what="changed the structure of its model or optimizer",
        fix="correct the {kind}, then start the run again",
        is_of=lambda report: report.failure is not None and report.failure.type == StructureChangedError.__name__,
        budget=lambda _: 1,
        first_seconds=0.0,
        longest_seconds=0.0,
    ),
    FailureClass(
        name="not launched",
        what="could not be started on its cluster",
        fix="correct the run spec, then start the run again",
        is_of=lambda report: report.failure is not None and report.failure.type in _NOT_LAUNCHED,
        budget=lambda _: 1,
        first_seconds=0.0,
        longest_seconds=0.0,
    ),
    FailureClass(
        name="out of memory",
        what="ran out of memory",
        fix="use a smaller batch or a machine with more memory",
        is_of=lambda report: report.stop_reason is StopReason.OUT_OF_MEMORY,
        budget=lambda spec: spec.policy.max_out_of_memory,
        first_seconds=10.0,
        longest_seconds=300.0,
    ),
    FailureClass(
        name="hung",
        what="hung",
        fix="read the stack traces in the report; if a step really takes that long, raise liveness.hang_seconds",
        is_of=lambda report: report.stop_reason is StopReason.HUNG,
        budget=lambda spec: spec.policy.max_hung,
        first_seconds=10.0,
        longest_seconds=300.0,
    ),
    FailureClass(
        name="transient",
        what="failed in input or output",
        fix="check the data source and the network, then start the run again",
        is_of=lambda report: report.has_code_failed and _is_transient(report),
        budget=lambda spec: spec.policy.max_transient_failures,
        first_seconds=5.0,
        longest_seconds=300.0,
    ),
    FailureClass(
        name="failed",
        what="raised",
        fix="correct the {kind}, then start the run again",
        is_of=lambda report: report.has_code_failed,
        budget=lambda spec: spec.policy.max_failures,
        first_seconds=0.0,
        longest_seconds=0.0,
    ),
)
"""All failure classes. A report belongs to the first class that matches."""


def class_of(report: SegmentReport) -> FailureClass | None:
    """Return the failure class of a report, or None if the attempt did not fail because of the run."""
    return next((each for each in CLASSES if each.is_of(report)), None)


def reason_to_stop(spec: RunSpec, history: History) -> str | None:
    """Return the reason why a budget of failures ends the run.

    Return None if all budgets permit another attempt.
    """
    for each in CLASSES:
        counted = _counted(each, history)
        if counted and len(counted) >= each.budget(spec):
            happened = f"the {spec.kind} {each.what} in {len(counted)} attempts{_last(counted[-1])}"
            return f"{happened.rstrip('.')}. Fix: {each.fix.format(kind=spec.kind)}."
    return None


def retry_reason(spec: RunSpec, history: History) -> str | None:
    """Return the reason why the next attempt runs on the same capacity.

    Return None if the last attempt did not fail because of the run.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    found = class_of(last) if last is not None else None
    if found is None or last is None:
        return None
    return f"{last.capacity} again: the {spec.kind} {found.what}, which other capacity would not fix"


def delay_seconds(history: History, *, slack_seconds: float | None) -> float:
    """Return the seconds of back-off before the next attempt. If the deadline is near, the back-off is shorter."""
    last = history.fresh_reports[-1] if history.fresh_reports else None
    found = class_of(last) if last is not None else None
    if found is None or not found.first_seconds:
        return 0.0
    again = max(len(_counted(found, history)) - 1, 0)
    delay = min(found.first_seconds * 2.0**again, found.longest_seconds)
    return delay if slack_seconds is None else min(delay, max(slack_seconds, 0.0) * _SLACK_SHARE)


def _counted(failure_class: FailureClass, history: History) -> list[SegmentReport]:
    return [
        report
        for report in history.fresh_reports
        if class_of(report) is failure_class
        and report.to_step >= history.committed_step
        and not _was_resume_broken(report, history)
    ]


def _was_resume_broken(report: SegmentReport, history: History) -> bool:
    """Whether the resume of the attempt was broken. Broken resumes have their own recovery steps."""
    attempt = history.attempt_of(report.segment, report.attempt)
    verdict = attempt.verdict if attempt else None
    return verdict is not None and verdict.kind is VerdictKind.BROKEN


def _last(report: SegmentReport) -> str:
    if report.failure is None:
        return f", last: {report.note}" if report.note else ""
    message = report.failure.message
    note = (report.note or "").removeprefix(message).removeprefix("; ")
    return f", last {report.failure.type}: {message}" + (f" ({note})" if note else "")
