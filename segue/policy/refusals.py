"""Handles attempts that a pool did not start because its cluster or API refused the request. The module is pure.

A refusal costs nothing and shows nothing about the run. Therefore segue asks the same pool again after a pause, which
doubles with each refusal. segue never stops asking, because an outage ends, and a person may correct rights, quotas and
templates while the run waits. No answer of a cluster proves that a refusal is permanent. For example, Kubernetes also
answers 403 if a quota is used up.
"""

from __future__ import annotations

from itertools import takewhile

from segue.records import SegmentReport
from segue.runlog.history import History

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 300.0
_SLACK_SHARE = 0.1
"""Share of the slack that one pause may use."""
_LEAST_SECONDS_PER_REFUSAL = 0.5
"""Pause of a late run in seconds for each consecutive refusal.

The pause is a small share of the time for which the refusals have lasted.
"""
_SHORTAGES = (
    "capacity is unavailable",
    "reached the limit on the number of vcpus",
    "failed to run ecs task: resource:",
)
"""Messages of ECS, in lower case, that mean that ECS has no machine.

segue treats an attempt with one of these messages as an ordinary attempt without capacity.
"""
_FIX = "correct what the pool reports, unless it is an outage; the run then continues by itself"


def delay_seconds(history: History, *, deployment: str, slack_seconds: float | None) -> float:
    """Return the seconds of the pause before segue asks this deployment again.

    If the deadline is near, the pause is shorter, but at least 5 s. Return 0 if the deployment did not refuse the
    newest attempts.
    """
    refused = sum(_deployment_of(report, history) == deployment for report in _in_a_row(history))
    if not refused:
        return 0.0
    # The exponent is bounded, because 2^1024 is too large for a float.
    delay = min(_FIRST_SECONDS * 2.0 ** min(refused - 1, 10), _LONGEST_SECONDS)
    if slack_seconds is None:
        return delay
    least = max(_FIRST_SECONDS, _LEAST_SECONDS_PER_REFUSAL * refused)
    return min(delay, max(slack_seconds * _SLACK_SHARE, least))


def in_words(history: History) -> str:
    """Describe the number of consecutive refusals of the newest attempts, and the message of the pool.

    The text is empty if no pool refused the newest attempt.
    """
    refused = _in_a_row(history)
    if not refused:
        return ""
    count = f"{len(refused)} attempts in a row" if len(refused) > 1 else "the last attempt"
    said = f", {'last: ' if len(refused) > 1 else ''}{refused[0].note}" if refused[0].note else ""
    if _is_for_lack_of_capacity(refused[0]):
        return f"no capacity for {count}{said}"
    return f"the pools could not start {count}{said}. Fix: {_FIX}"


def warning_of(history: History) -> str:
    """Return the text of `in_words` as a warning each time the number of consecutive refusals has doubled.

    The text is empty for other numbers of refusals, and for a lack of capacity.
    """
    refused = _in_a_row(history)
    has_doubled = bool(refused) and len(refused).bit_count() == 1
    return in_words(history) if has_doubled and not _is_for_lack_of_capacity(refused[0]) else ""


def _is_for_lack_of_capacity(report: SegmentReport) -> bool:
    said = (report.note or "").lower()
    return any(shortage in said for shortage in _SHORTAGES)


def _in_a_row(history: History) -> list[SegmentReport]:
    """Return the newest consecutive attempts that a pool refused, newest first."""
    return list(takewhile(lambda report: report.was_refused, reversed(history.fresh_reports)))


def _deployment_of(report: SegmentReport, history: History) -> str | None:
    decision = history.decision_of(report.segment, report.attempt)
    return decision.plan.deployment if decision is not None and decision.plan is not None else None
