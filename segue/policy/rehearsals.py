"""Decides whether a run's next attempt rehearses a resume, and finds what the rehearsal has found so far.

The module is pure.
"""

from __future__ import annotations

from segue.records import Verdict
from segue.runlog.history import History
from segue.spec import RunSpec


def is_due(spec: RunSpec, history: History, *, ranks: int) -> bool:
    """Whether an attempt should rehearse.

    It should if no resume of the run was replayed yet, by a rehearsal or by an attempt. Runs with several ranks do not
    rehearse, because a rehearsal would need as many processes again. Programs do not rehearse either, because a second
    process would repeat everything that the program does besides training.
    """
    continuity = spec.continuity
    if continuity.rehearsal == "off" or not continuity.witness_steps or ranks > 1 or spec.recipe is None:
        return False
    return not history.drills and not any(entry.verdict.rows_compared for entry in history.resumes)


def verdict_to_stop(spec: RunSpec, history: History) -> Verdict | None:
    """Return the verdict of a rehearsal that ends the run.

    Return None if the run may continue, or count as finished.
    """
    # A run that was started again rehearses again, unless no step is left to make.
    is_of_this_run = bool(history.drills) or history.is_committed(spec)
    return history.broken_drill if spec.continuity.rehearsal == "stop" and is_of_this_run else None
