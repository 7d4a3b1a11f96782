"""Filters log lines of Prefect's engines: drops lines without information, and lines that alarm without a reason.

If a flow returns a state that is not Completed, Prefect's engine logs a traceback. If a task returns such a state, the
engine logs an error line. The state already shows how the flow or task ended.
"""

from __future__ import annotations

import logging
import re

from prefect.exceptions import CancelledRun, CrashedRun, FailedRun

from segue.prefect.state_words import Word

_OF_A_STATE = (CancelledRun, CrashedRun, FailedRun)
"""If a flow returns a state that is not Completed, the engine raises one of these errors at its end."""
_ENGINE_END = "Engine execution exited"
_ORDINARY = (Word.PREEMPTED, Word.LOST, Word.FENCED, Word.NO_CAPACITY, Word.START_FAILED)
"""Ends of attempts after which the run continues by itself."""
_ORDINARY_END = re.compile(rf"^Finished in state (Cancelled\(|\w+\(['\"]({'|'.join(_ORDINARY)}): )")
"""Pattern of log lines about an ordinary end of an attempt, or about a cancellation by a person."""
_EMPTY = "Finished in state Completed()"


def quieten() -> None:
    """In the logs of flow runs and task runs of this process, keep only the lines that `keeps` accepts."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if keeps not in logger.filters:
            logger.addFilter(keeps)


def keeps(record: logging.LogRecord) -> bool:
    """Whether a line is kept. A line about the ordinary end of an attempt becomes a warning instead of an error."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info else None
    if text == _EMPTY or (text.startswith(_ENGINE_END) and isinstance(error, _OF_A_STATE)):
        return False
    if _ORDINARY_END.match(text) and record.levelno > logging.WARNING:
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True
