"""Waiting for an attempt's end, by the log, the heartbeat and the orchestrator, in that order of trust."""

from __future__ import annotations

import logging
from typing import Protocol

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.controller.standby_manager import StandbyManager, StandbyPool
from segue.controller.steps import declare_lost, last_heartbeat
from segue.notices.file import recall
from segue.policy import clamp
from segue.policy.estimates import Situation, situation
from segue.policy.handover import may_come_back
from segue.records import Capacity, Heartbeat, SegmentPlan, SegmentReport
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_CHILD_POLL_SECONDS = 2.0
_LAST_WORD_SECONDS = 5.0
"""How long after the orchestrator says the attempt has ended its report may still come."""
_MOMENT_SECONDS = 2 * _POLL_SECONDS
"""How long before it is too late for on-demand a recalled attempt is given up."""
_ENOUGH_STEPS = 5
_ENOUGH_SECONDS = 30.0
"""What a running attempt must have trained before its own rate counts: the first steps say little."""


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


def await_report(
    runlog: RunLog,
    spec: RunSpec,
    plan: SegmentPlan,
    *,
    child: ChildRun,
    clock: Clock,
    standbys: StandbyPool | None = None,
) -> SegmentReport:
    """Block until the attempt of `plan` has a report, writing `lost` when none can come any more.

    A silent orchestrator or store is waited out: the attempt goes on without them. On spot, an attempt that falls so
    far behind that a kill would cost the deadline is asked to commit and stop. On on-demand, with `standbys`, a standby
    waits for spot meanwhile; once it is ready to take over, the attempt is asked to commit and stop. One that has
    nothing to commit yet, does not answer within the heartbeat timeout, or saves for so long that on-demand could
    hardly make it any more, is given up though its heart beats.
    """
    manager = None
    if standbys is not None and plan.capacity is Capacity.ON_DEMAND:
        manager = StandbyManager(runlog, spec, plan, pool=standbys, clock=clock)
    waiting = _Waiting(runlog, spec, plan, child, clock, manager=manager)
    try:
        return _wait(waiting, clock)
    finally:
        if manager is not None:
            manager.close()


def _wait(waiting: _Waiting, clock: Clock) -> SegmentReport:
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
    def __init__(
        self,
        runlog: RunLog,
        spec: RunSpec,
        plan: SegmentPlan,
        child: ChildRun,
        clock: Clock,
        *,
        manager: StandbyManager | None,
    ) -> None:
        self._runlog, self._spec, self._plan, self._child, self._clock = runlog, spec, plan, child, clock
        self._manager = manager
        self._started_at = clock.monotonic()
        self._heartbeat_timeout = HeartbeatTimeout(spec.liveness.heartbeat_timeout_seconds)
        self._asked_child_at = self._started_at
        self._child_ended: tuple[str, float] | None = None
        self._recalled: HeartbeatTimeout | None = None
        self._was_recalled_in_time = False

    def look(self) -> SegmentReport | None:
        history = read_history(self._runlog)
        report = history.report_of(self._plan.segment, self._plan.attempt)
        if report is not None:
            return report
        at = self._clock.monotonic()
        self._ask_child(at)
        attempt = history.attempt_of(self._plan.segment, self._plan.attempt)
        if attempt is None and self._has_child_ended(at):
            return self._lost(self._child_words, mark=False)
        if attempt is None:
            return self._give_up_waiting(history, at)
        beat = last_heartbeat(self._runlog, attempt)
        self._heartbeat_timeout.saw(beat.counter if beat else None, at=at)
        if self._has_child_ended(at) and self._heartbeat_timeout.still_seconds > self._last_word_seconds:
            # Its heart has to stand still too: orchestrators do call living runs crashed.
            return self._lost(self._child_words, mark=False)
        if self._heartbeat_timeout.is_expired:
            return self._lost(f"no heartbeat for {self._spec.liveness.heartbeat_timeout_seconds:g} s", mark=True)
        if self._manager is not None:
            self._mind_the_standby(self._manager, history, attempt.claim.attempt_id, beat)
        elif self._recalled is None and self._is_recall_due(history, beat):
            if beat is None or beat.phase in ("starting", "restoring"):
                return self._lost("it was not at work yet when the deadline came near", mark=True)
            self._recall(history, attempt.claim.attempt_id, beat, reason="the deadline is near")
        why = self._why_too_slow(history, beat, at)
        return self._lost(why, mark=True) if why is not None else None

    def _mind_the_standby(
        self, manager: StandbyManager, history: History, attempt_id: str, beat: Heartbeat | None
    ) -> None:
        is_told = history.handover_of(self._plan.segment, self._plan.attempt) is not None
        if beat is None or (beat.phase != "training" and not is_told):
            return  # Nothing is moved that does not run yet, or ends by itself.
        if not is_told and not may_come_back(self._spec, history):
            return
        here = self._situation(history, slowest_step_seconds=self._own_step_seconds(beat))
        is_due = manager.look(history, here)
        if is_due and self._recalled is None:
            self._recall(history, attempt_id, beat, reason="the standby is ready")

    def _why_too_slow(self, history: History, beat: Heartbeat | None, at: float) -> str | None:
        """Why an attempt that was recalled is given up; None while it may still end by itself."""
        if self._recalled is None:
            return None
        self._recalled.saw(0, at=at)  # A heartbeat timeout, for while the store is away nobody can answer.
        waited, heartbeat_timeout_seconds = self._recalled.still_seconds, self._recalled.heartbeat_timeout_seconds
        is_stopping = beat is not None and beat.phase == "stopping"
        if not is_stopping and waited > heartbeat_timeout_seconds:
            return f"no answer to a recall for {heartbeat_timeout_seconds:g} s"
        here = self._situation(history, slowest_step_seconds=self._own_step_seconds(beat))
        if self._was_recalled_in_time and clamp.is_late(here, in_seconds=_MOMENT_SECONDS):
            return "it was recalled and did not end before it was nearly too late for on-demand"
        # Giving up loses what it has not committed. To wait for longer than that took would be dearer.
        patience = heartbeat_timeout_seconds + here.answer_seconds + here.at_risk_seconds
        return f"it was recalled and did not end within {patience:.0f} s" if waited > patience else None

    @property
    def _last_word_seconds(self) -> float:
        return max(_LAST_WORD_SECONDS, 3 * self._spec.liveness.heartbeat_seconds)

    @property
    def _child_words(self) -> str:
        name = self._child_ended[0] if self._child_ended else "unknown"
        return f"its flow run ended as {name} without a report"

    def _has_child_ended(self, at: float) -> bool:
        return self._child_ended is not None and at - self._child_ended[1] > self._last_word_seconds

    def _ask_child(self, at: float) -> None:
        if self._child_ended is not None or at - self._asked_child_at < _CHILD_POLL_SECONDS:
            return
        self._asked_child_at = at
        name = self._child.ended_as()
        if name is not None:
            self._child_ended = (name, at)

    def _give_up_waiting(self, history: History, at: float) -> SegmentReport | None:
        waited, patience = self._waited_seconds(history, at), self._plan.start_within_seconds
        if patience is None or waited < patience:
            return None
        why = f"no capacity on {self._plan.capacity} within {waited:.0f} s"
        # The report first: an attempt that starts after all finds it in the log and leaves.
        report = declare_lost(self._runlog, self._plan, why=why, got_capacity=False)
        self._child.cancel(why)
        return report

    def _waited_seconds(self, history: History, at: float) -> float:
        here = at - self._started_at
        if self._spec.deadline is None:
            return here
        # Someone may have waited before and died; the deadline came nearer all the same.
        moments = (entry.written_at for entry in history.decisions if entry.plan == self._plan)
        return max([here, *((self._clock.now() - moment).total_seconds() for moment in moments)])

    def _lost(self, why: str, *, mark: bool) -> SegmentReport:
        report = declare_lost(self._runlog, self._plan, why=why)
        if mark:
            self._child.mark_lost(why)
        return report

    def _is_recall_due(self, history: History, beat: Heartbeat | None) -> bool:
        if self._plan.capacity is not Capacity.SPOT or _is_to_fail_first(history, beat):
            return False
        return clamp.must_recall(self._situation(history, slowest_step_seconds=self._own_step_seconds(beat)))

    def _own_step_seconds(self, beat: Heartbeat | None) -> float:
        if beat is None or beat.step_seconds is None:
            return 0.0
        steps = beat.step - (self._plan.parent.step if self._plan.parent else 0)
        is_enough = steps > _ENOUGH_STEPS and steps * beat.step_seconds > _ENOUGH_SECONDS
        return beat.step_seconds if is_enough else 0.0

    def _situation(self, history: History, *, slowest_step_seconds: float = 0.0) -> Situation:
        return situation(self._spec, history, now=self._clock.now(), slowest_step_seconds=slowest_step_seconds)

    def _recall(self, history: History, attempt_id: str, beat: Heartbeat | None, *, reason: str) -> None:
        log.warning("recalling attempt=%s reason=%s", attempt_id, reason)
        recall(self._runlog.store, run_id=self._spec.run_id, attempt_id=attempt_id, reason=reason)
        here = self._situation(history, slowest_step_seconds=self._own_step_seconds(beat))
        self._was_recalled_in_time = not clamp.is_late(here, in_seconds=_MOMENT_SECONDS)
        self._recalled = HeartbeatTimeout(self._spec.liveness.heartbeat_timeout_seconds)


def _is_to_fail_first(history: History, beat: Heartbeat | None) -> bool:
    """Whether the attempt before this one failed at a step that this one has not passed.

    It runs outside the clamp, on the capacity it failed on: leaving that now would buy on-demand for a bug.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    has_failed = last is not None and last.has_code_failed
    return has_failed and (beat is None or last is None or beat.step <= last.to_step)
