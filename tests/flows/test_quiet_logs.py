"""Lines of Prefect's engines that are left out, and those that are not."""

from __future__ import annotations

import logging

import pytest
from prefect.exceptions import CrashedRun

from segue.prefect.ui.quiet_logs import keeps

INFO, WARNING, ERROR = logging.INFO, logging.WARNING, logging.ERROR


def record(text: str, *, level: int = ERROR, error: Exception | None = None) -> logging.LogRecord:
    exc_info = (type(error), error, None) if error is not None else None
    return logging.LogRecord("prefect.flow_runs", level, __file__, 1, text, None, exc_info)


@pytest.mark.parametrize(
    ("text", "error", "is_kept"),
    [
        ("Engine execution exited with unexpected exception", CrashedRun("notice at step 5"), False),
        ("Engine execution exited with unexpected exception", ValueError("a bug"), True),
        ("Encountered exception during execution: CrashedRun()", CrashedRun("a task crashed"), True),
        ("Finished in state Completed()", None, False),
        ("Finished in state Completed('step 9 is committed')", None, True),
    ],
)
def test_only_the_traceback_of_a_returned_state_and_empty_lines_are_left_out(text, error, is_kept):
    assert keeps(record(text, error=error)) is is_kept


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("Finished in state Crashed('Preempted: notice at step 508')", WARNING),
        ("Finished in state Crashed(\"Lost: no heartbeat of 'a' for 10 s\")", WARNING),
        ("Finished in state Cancelled('No capacity: none within 9 s')", WARNING),
        ("Finished in state Crashed('Hung: no step for 300 s')", ERROR),
        ("Finished in state Failed('ValueError')", ERROR),
        ("a preemption", ERROR),
    ],
)
def test_an_ordinary_end_of_an_attempt_is_a_warning_and_no_error(text, level):
    shown = record(text)
    assert keeps(shown)
    assert (shown.levelno, shown.levelname) == (level, logging.getLevelName(level))


def test_a_line_below_a_warning_keeps_its_level():
    shown = record("Finished in state Crashed('Preempted: notice')", level=INFO)
    assert keeps(shown)
    assert shown.levelno == INFO
