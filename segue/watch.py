"""Waiting for an attempt's end, by the log, the heartbeat and the orchestrator, in that order of trust."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Protocol

from segue.clock import Clock
from segue.controller import declare_lost, last_heartbeat
from segue.deadline import clamp
from segue.deadline.estimates import situation
from segue.history import History, read_history
from segue.notices.file import recall
from segue.records import Capacity, Heartbeat, SegmentPlan, SegmentReport
from segue.runlog import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_CHILD_POLL_SECONDS = 2.0
_LAST_WORD_SECONDS = 5.0
"""How long after the orchestrator says the attempt has ended its report may still come."""


class ChildRun(Protocol):
    """The attempt as the orchestrator sees it. None of this is trusted over the log."""

    def ended_as(self) -> str | None:
        """The name of its final state; None while it has none, or the orchestrator does not answer."""
        ...

    def cancel(self, why: str) -> None:
        """Take back an attempt that has not started. Best effort."""
        ...

    def mark_lost(self, why: str) -> None:
        """Show people that it is gone, where the orchestrator still thinks it runs. Best effort."""
        ...


@dataclass
class Lease:
    """Tells a living attempt from a dead one: a counter that moves, judged by the reader's own monotonic clock."""

    lease_seconds: float
    _counter: int | None = None
    _moved_at: float = field(default=0.0)

    def saw(self, beat: Heartbeat | None, *, at: float) -> None:
        counter = beat.counter if beat else 0
        if self._counter is None or counter != self._counter:
            self._counter, self._moved_at = counter, at

    def is_expired(self, *, at: float) -> bool:
        return self._counter is not None and at - self._moved_at > self.lease_seconds


def await_report(runlog: RunLog, spec: RunSpec, plan: SegmentPlan, *, child: ChildRun, clock: Clock) -> SegmentReport:
    """Block until the attempt of `plan` has a report, writing `lost` when none can come any more.

    A silent orchestrator or store is waited out: the attempt goes on without them. On spot, an attempt that falls so
    far behind that a kill would cost the deadline is asked to commit and stop.
    """
    waiting = _Waiting(runlog, spec, plan, child, clock)
    while True:
        try:
            report = waiting.look()
        except (StoreReadError, StoreWriteError) as error:
            log.warning("store trouble while waiting reason=%s", error)
            report = None
        if report is not None:
            return report
        clock.sleep(_POLL_SECONDS)


class _Waiting:
    def __init__(self, runlog: RunLog, spec: RunSpec, plan: SegmentPlan, child: ChildRun, clock: Clock) -> None:
        self._runlog, self._spec, self._plan, self._child, self._clock = runlog, spec, plan, child, clock
        self._started_at = clock.monotonic()
        self._lease = Lease(spec.liveness.lease_seconds)
        self._asked_child_at = self._started_at
        self._child_ended: tuple[str, float] | None = None
        self._is_recalled = False

    def look(self) -> SegmentReport | None:
        history = read_history(self._runlog)
        report = history.report_of(self._plan.segment, self._plan.attempt)
        if report is not None:
            return report
        at = self._clock.monotonic()
        self._ask_child(at)
        attempt = history.attempt_of(self._plan.segment, self._plan.attempt)
        if self._child_ended is not None and at - self._child_ended[1] > _LAST_WORD_SECONDS:
            return self._lost(f"its flow run ended as {self._child_ended[0]} without a report", mark=False)
        if attempt is None:
            return self._give_up_waiting(at)
        beat = last_heartbeat(self._runlog, attempt)
        self._lease.saw(beat, at=at)
        if self._lease.is_expired(at=at):
            return self._lost(f"no heartbeat for {self._spec.liveness.lease_seconds:g} s", mark=True)
        self._recall_if_late(history, attempt.claim.attempt_id)
        return None

    def _ask_child(self, at: float) -> None:
        if self._child_ended is not None or at - self._asked_child_at < _CHILD_POLL_SECONDS:
            return
        self._asked_child_at = at
        name = self._child.ended_as()
        if name is not None:
            self._child_ended = (name, at)

    def _give_up_waiting(self, at: float) -> SegmentReport | None:
        patience = self._plan.start_within_seconds
        if patience is None or at - self._started_at < patience:
            return None
        why = f"no capacity on {self._plan.capacity} within {patience:.0f} s"
        # The report first: an attempt that starts after all finds it in the log and leaves.
        report = declare_lost(self._runlog, self._plan, why=why)
        self._child.cancel(why)
        return report

    def _lost(self, why: str, *, mark: bool) -> SegmentReport:
        report = declare_lost(self._runlog, self._plan, why=why)
        if mark:
            self._child.mark_lost(why)
        return report

    def _recall_if_late(self, history: History, attempt_id: str) -> None:
        if self._is_recalled or self._plan.capacity is not Capacity.SPOT:
            return
        if clamp.must_recall(situation(self._spec, history, now=self._clock.now())):
            log.warning("recalling attempt=%s: a kill now would cost the deadline", attempt_id)
            recall(self._runlog.store, run_id=self._spec.run_id, attempt_id=attempt_id, reason="the deadline is near")
            self._is_recalled = True
