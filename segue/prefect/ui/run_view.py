"""The view and the plot of a run for the Prefect UI, read from its log and heartbeat."""

from __future__ import annotations

import base64
from datetime import datetime

from segue.controller.standbys.messages import held_by_standbys
from segue.errors import MissingExtraError
from segue.reports.cost_report import cost_report
from segue.reports.page import Picture, RunView
from segue.reports.run_plot import draw
from segue.reports.summary import live_of
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec


def view_of(
    runlog: RunLog, spec: RunSpec, *, now: datetime, waiting: str | None = None, unguarded: str | None = None
) -> RunView:
    """The current view of the run.

    Raises:
        StoreReadError: the store could not be read.
    """
    history = read_history(runlog)
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    beat = last_heartbeat(runlog, attempt)
    standbys = held_by_standbys(runlog.store, spec.run_id)
    cost = cost_report(spec, history, live=live_of(beat, history), standbys=standbys)
    troubles = {"waiting": None if attempt is not None else waiting, "unguarded": unguarded}
    return RunView(spec, history, cost, now, beat=beat, **troubles)


def picture_of(runlog: RunLog, *, now: datetime) -> Picture | None:
    """The current plot of the run; None if matplotlib is not installed.

    Raises:
        StoreReadError: the store could not be read.
    """
    try:
        return Picture("data:image/png;base64," + base64.b64encode(draw(runlog)).decode(), now)
    except MissingExtraError:
        return None
