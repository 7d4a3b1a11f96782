"""Waits for the back-off between a failed attempt and the next attempt."""

from __future__ import annotations

import logging

from segue.clock import Clock
from segue.controller.waiting.capacity_wait import Show
from segue.policy import refusals
from segue.policy.budget_cap import time_left_seconds
from segue.records import SegmentPlan
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores.base import StoreReadError
from segue.units import duration

log = logging.getLogger(__name__)

_POLL_SECONDS = 2.0


def back_off(runlog: RunLog, plan: SegmentPlan, *, clock: Clock, show: Show = lambda _: None) -> None:
    """Block until the plan's delay since its decision has passed, or until a person stops the run.

    A restarted parent waits only for the rest of the delay, and does not wait if the attempt has already begun. If
    refusals are the reason for the delay, the function calls `show` with the refusals at the beginning, and with None
    at the end.
    """
    if not plan.delay_seconds:
        return
    history = read_history(runlog)
    if history.attempt_of(plan.segment, plan.attempt) is not None:
        return
    decided_at = next((entry.written_at for entry in reversed(history.decisions) if entry.plan == plan), clock.now())
    passed = (clock.now() - decided_at).total_seconds()
    # The wait is never longer than the whole delay, even if the clock went back.
    ends_at = clock.monotonic() + min(plan.delay_seconds - passed, plan.delay_seconds)
    if ends_at > clock.monotonic():
        log.info("waiting before the next attempt segment=%d delay_seconds=%.0f", plan.segment, plan.delay_seconds)
        refused = refusals.in_words(history)
        show(f"the next attempt, {duration(plan.delay_seconds)} after the last one: {refused}" if refused else None)
    if history.spec is not None:
        ends_at = min(ends_at, clock.monotonic() + time_left_seconds(history.spec, history, now=clock.now()))
    while (left := ends_at - clock.monotonic()) > 0 and not _is_stopped(runlog):
        clock.sleep(min(left, _POLL_SECONDS))
    show(None)


def _is_stopped(runlog: RunLog) -> bool:
    try:
        return read_history(runlog).stop is not None
    except StoreReadError as error:
        log.warning("the store cannot be read during a back-off reason=%s", error)
        return False
