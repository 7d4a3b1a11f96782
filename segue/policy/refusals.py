"""Handles attempts that a pool could not start, because the pool's cluster or API refused them. The module is pure.

After a refusal, nothing was bought and nothing new is known about the run. Therefore the same pool is asked again after
a pause, and the pause doubles with each refusal. The pool is asked without end. The reason is that an outage ends, and
that a person may correct rights, quotas and templates while the run waits. No answer of a cluster proves the opposite
(Kubernetes answers 403 also for a quota that is used up).
"""

from __future__ import annotations

from itertools import takewhile

from segue.records import SegmentReport
from segue.runlog.history import History

_FIRST_SECONDS, _LONGEST_SECONDS = 5.0, 300.0
_SLACK_SHARE = 0.1
"""Share of the slack that one pause may use."""
_LEAST_SECONDS_PER_REFUSAL = 0.5
"""A late run pauses for this number of seconds per refusal in a row.

This is a small share of the time for which the refusals have lasted.
"""
_SHORTAGES = (
    "capacity is unavailable",
    "reached the limit on the number of vcpus",
    "failed to run ecs task: resource:",
)
"""Messages of ECS, in lower case, that mean that ECS has no machine.

An attempt with such a message counts as an ordinary attempt without capacity.
"""
_FIX = "correct what the pool says there, if it is no outage; the run goes on by itself"


def delay_seconds(history: History, *, deployment: str, slack_seconds: float | None) -> float:
    """Return the seconds of the pause before this deployment is asked again.

    A near deadline shortens the pause, but not below 5 s. Return 0 if the newest attempts were not refused, or if other
    deployments refused them.
    """
    refused = sum(_deployment_of(report, history) == deployment for report in _in_a_row(history))
    if not refused:
        return 0.0
    # The exponent is bounded: a float has no 2^1024.
    delay = min(_FIRST_SECONDS * 2.0 ** min(refused - 1, 10), _LONGEST_SECONDS)
    if slack_seconds is None:
        return delay
    least = max(_FIRST_SECONDS, _LEAST_SECONDS_PER_REFUSAL * refused)
    return min(delay, max(slack_seconds * _SLACK_SHARE, least))


def in_words(history: History) -> str:
    """Describe how often the newest attempts were refused in a row, and what the pool said.

    The text is empty if they were not refused.
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
    """Return the text of `in_words` as a warning, if the number of refusals in a row has doubled.

    Otherwise, and for lack of capacity, the text is empty.
    """
    refused = _in_a_row(history)
    has_doubled = bool(refused) and len(refused).bit_count() == 1
    return in_words(history) if has_doubled and not _is_for_lack_of_capacity(refused[0]) else ""


def _is_for_lack_of_capacity(report: SegmentReport) -> bool:
    said = (report.note or "").lower()
    return any(shortage in said for shortage in _SHORTAGES)


def _in_a_row(history: History) -> list[SegmentReport]:
    """Return the newest attempts that were refused in a row, the newest attempt first."""
    return list(takewhile(lambda report: report.was_refused, reversed(history.fresh_reports)))


def _deployment_of(report: SegmentReport, history: History) -> str | None:
    decision = history.decision_of(report.segment, report.attempt)
    return decision.plan.deployment if decision is not None and decision.plan is not None else None
