"""Withdraws the starts of an attempt that ended while its run had no parent."""

from __future__ import annotations

import logging

from segue.controller.orchestrator import Orchestrator
from segue.controller.waiting.start_records import note_start
from segue.errors import OrchestratorError
from segue.policy.starts import StartNumbers
from segue.records import SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_WHY = "the attempt ended while the parent of the run was away"
_NEWEST = 2
"""Number of newest plans to check: the plan that is about to begin, and the plan before it."""


def withdraw_leftover(runlog: RunLog, spec: RunSpec, *, orchestrator: Orchestrator) -> None:
    """Withdraw the requests that an ended attempt has left on other pools.

    Call this function before each attempt and at the end of the run.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. It is safe to call the function again.
    """
    history = read_history(runlog)
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    for plan in plans[-_NEWEST:]:
        if not plan.pools or history.report_of(plan.segment, plan.attempt) is None:
            continue
        for number in _open_numbers(history, plan):
            there = plan.on_pool(StartNumbers.of(plan).pool_of(number))
            _withdraw(spec, there, number, orchestrator=orchestrator)
            note_start(runlog, there, number, "withdrawn", seconds=0.0, why=_WHY)


def _open_numbers(history: History, plan: SegmentPlan) -> list[int]:
    """Return the numbers of the requested starts that neither trained the attempt nor have an end in the log."""
    known, numbers = history.starts_of(plan.segment, plan.attempt), StartNumbers.of(plan)
    asked = {1} | {start.number for start in known if start.outcome == "requested"}
    asked |= {numbers.after(start.number) for start in known if start.outcome == "slow"}
    asked -= {start.number for start in known if start.outcome in ("claimed", "start_failed", "withdrawn")}
    is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
    return sorted(number for number in asked if not is_claimed or numbers.pool_of(number) != plan.deployment)


def _withdraw(spec: RunSpec, plan: SegmentPlan, number: int, *, orchestrator: Orchestrator) -> None:
    """Cancel a start. A repeated request with the same number returns the handle of the earlier start."""
    try:
        handle = orchestrator.submit(spec, plan) if number == 1 else orchestrator.submit_again(spec, plan, number)
    except OrchestratorError as error:
        log.warning("could not find a remaining start to cancel pool=%s reason=%s", plan.deployment, error)
        return
    if handle is not None:
        log.info("withdrawing a start segment=%d attempt=%d pool=%s", plan.segment, plan.attempt, plan.deployment)
        orchestrator.cancel(handle, _WHY, reason=None)
