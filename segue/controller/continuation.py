"""Continues a run on the same machine after a planned end, in a trainer that booted beside the previous trainer.

A process on the machine searches the run's log for the next plan and claims the plan. The parent waits some seconds for
the claim before it submits the plan as usual. If both the machine and the parent start the attempt, the later start
finds the claim and ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from segue.clock import Clock
from segue.launch.assignment import Assignment
from segue.launch.launcher import StandbyTrainer
from segue.records import SegmentPlan, SegmentReport, StopReason
from segue.runlog.history import Attempt, History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError

log = logging.getLogger(__name__)

_KEEP_SECONDS = 30.0
"""Seconds for which a machine waits for the next plan. A living parent decides within a few seconds."""
_OFFER_SECONDS = 30.0
"""Seconds for which the parent waits until the kept machine has claimed the plan.

The kept machine also waits for 30 s, and may still claim the plan. A flow run that the parent submitted earlier would
be useless.
"""
_POLL_SECONDS, _REMOTE_POLL_SECONDS = 0.1, 0.5


class NextTrainer:
    """The trainer of the next segment on this machine, which boots before it has a plan, and ends if no plan comes."""

    def __init__(self, boot: Callable[[], StandbyTrainer]) -> None:
        self._boot = boot
        self._trainer: StandbyTrainer | None = None

    def prepare(self) -> None:
        """Boot the next trainer beside the running trainer, if the next trainer has not booted yet."""
        if self._trainer is None:
            log.info("booting the trainer of the next segment")
            self._trainer = self._boot()

    def start(self, assignment: Assignment) -> StandbyTrainer:
        """Start the training of the booted trainer, and return the trainer.

        If the trainer has ended during its wait, the method boots a replacement.
        """
        if self._trainer is not None and self._trainer.poll() is not None:
            self._trainer.wait()
            self._trainer = None
        self.prepare()
        trainer, self._trainer = self._trainer, None
        assert trainer is not None
        trainer.take(assignment)
        return trainer

    def close(self) -> None:
        """End the booted trainer if no segment used it."""
        if self._trainer is not None:
            self._trainer.kill()
            self._trainer.wait()
            self._trainer = None


def await_plan(
    runlog: RunLog, spec: RunSpec, last: SegmentPlan, *, is_called_off: Callable[[], bool], clock: Clock
) -> SegmentPlan | None:
    """Wait at most 30 s for the plan that follows `last` on this machine. Return None if no plan comes.

    `is_called_off` returns whether the provider takes the machine back or a person cancelled the segment. The function
    calls it often.
    """
    give_up_at = clock.monotonic() + _KEEP_SECONDS
    while clock.monotonic() < give_up_at and not is_called_off():
        try:
            history = read_history(runlog)
        except StoreReadError as error:
            log.warning("cannot read the run's log for the next plan reason=%s", error)
            history = None
        if history is not None:
            plan = history.open_plan
            if plan is not None:
                is_same_run = history.spec is None or history.spec == spec
                return plan if is_same_run and _fits(plan, last) else None
            if history.is_over:
                return None
        clock.sleep(_poll_seconds(runlog))
    return None


def await_claim(runlog: RunLog, plan: SegmentPlan, *, has_left: Callable[[str], bool], clock: Clock) -> str | None:
    """Wait at most 30 s until the kept machine claims the plan.

    Return the id of the machine's flow run. Return None if the run keeps no machine or the kept machine does not
    answer. After None, the caller has to submit the plan. `has_left` returns whether the flow run of the kept machine
    has ended.

    Raises:
        StoreReadError: the store could not be read.
    """
    give_up_at = clock.monotonic() + _OFFER_SECONDS
    while True:
        history = read_history(runlog)
        kept = _kept_by(history, plan)
        own = history.attempt_of(plan.segment, plan.attempt)
        if kept is None or kept.claim.flow_run_id is None:
            return None
        if own is not None:
            return kept.claim.flow_run_id if own.claim.flow_run_id == kept.claim.flow_run_id else None
        if clock.monotonic() >= give_up_at or has_left(kept.claim.flow_run_id) or history.stop is not None:
            return None
        clock.sleep(_poll_seconds(runlog))


def keeps_machine(plan: SegmentPlan, report: SegmentReport) -> bool:
    """Whether the run keeps the machine of an ended attempt for the next plan."""
    return plan.keeps_machine and report.stop_reason is StopReason.BOUND and not report.leaves_machine


def _kept_by(history: History, plan: SegmentPlan) -> Attempt | None:
    """Return the previous attempt if the run keeps its machine for this plan."""
    own = history.attempt_of(plan.segment, plan.attempt)
    before = [attempt for attempt in history.attempts if attempt is not own]
    if not before or before[-1].report is None:
        return None
    last = before[-1]
    decision = history.decision_of(last.claim.segment, last.claim.attempt)
    if decision is None or decision.plan is None or last.report is None:
        return None
    if last.report not in history.fresh_reports:
        return None  # The run was ended after that attempt and started again: the attempt's machine was given back.
    return last if keeps_machine(decision.plan, last.report) and _fits(plan, decision.plan) else None


def _fits(plan: SegmentPlan, last: SegmentPlan) -> bool:
    """Whether `plan` may run on the machine of `last`."""
    is_same_pool = (plan.capacity, plan.deployment) == (last.capacity, last.deployment)
    return is_same_pool and plan.standby is None and not plan.delay_seconds


def _poll_seconds(runlog: RunLog) -> float:
    return _REMOTE_POLL_SECONDS if runlog.store.is_remote else _POLL_SECONDS
