"""The exception that the recipe or program raised in a run that was to prove something."""

from __future__ import annotations

from segue.recipe import users_line
from segue.records import CodeFailure
from segue.runlog.history import History


def failure_in(history: History) -> CodeFailure | None:
    """The exception of the recipe in the newest attempt that it ended."""
    failures = [report.failure for report in history.last_reports() if report.failure is not None]
    return failures[-1] if failures else None


def is_raised(failure: CodeFailure) -> bool:
    """Whether the user's code raised it; a refusal of segue's has its own sentence in place of a traceback."""
    return failure.traceback != failure.message


def failure_in_words(failure: CodeFailure | None) -> str:
    """Type, message and the line of the user's code that raised it; a refusal of segue's as it is."""
    if failure is None:
        return ""
    if not is_raised(failure):
        return failure.message
    place = users_line(failure.traceback)
    message = failure.message.strip().partition("\nOriginal Traceback")[0].rstrip(".")
    return f"{failure.type} at {place}: {message}" if place else f"{failure.type}: {message}"
