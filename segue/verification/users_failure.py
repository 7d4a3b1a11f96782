"""Finds the exception of the recipe or program in a test run."""

from __future__ import annotations

from segue.records import CodeFailure
from segue.runlog.history import History
from segue.user_objects.users_files import users_line


def failure_in(history: History) -> CodeFailure | None:
    """Return the exception of the recipe in the newest attempt that ended with an exception."""
    failures = [report.failure for report in history.last_reports() if report.failure is not None]
    return failures[-1] if failures else None


def is_raised(failure: CodeFailure) -> bool:
    """Whether the user's code raised the exception. An error of segue has a message without a traceback."""
    return failure.traceback != failure.message


def failure_in_words(failure: CodeFailure | None) -> str:
    """Return the type, the message and the line of an exception of the user's code.

    For an error of segue, return only the message.
    """
    if failure is None:
        return ""
    if not is_raised(failure):
        return failure.message
    place = users_line(failure.traceback)
    message = failure.message.strip().partition("\nOriginal Traceback")[0].rstrip(".")
    return f"{failure.type} at {place}: {message}" if place else f"{failure.type}: {message}"
