"""Waits until an attempt has ended.

The log takes precedence over the heartbeat, and the heartbeat takes precedence over the orchestrator.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass

from segue.clock import Clock
from segue.controller.attempt_ends import declare_as, declare_lost
from segue.controller.liveness import HeartbeatTimeout
from segue.controller.standbys.pool_standbys import PoolStandbys
from segue.controller.steps import CANCELLED
from segue.controller.waiting.attempt_starts import Starts, Submitted
from segue.controller.waiting.capacity_wait import CapacityWait, Show
from segue.controller.waiting.flow_run_end import FlowRunEnd
from segue.controller.waiting.look_schedule import LookSchedule
from segue.controller.waiting.queue_wait import QueueWatch
from segue.controller.waiting.recalled import Recalled
from segue.notices.recall import recall
from segue.policy import budget_cap, clamp
from segue.policy.estimates import Situation, situation
from segue.policy.handover import may_hand_over
from segue.records import Capacity, Heartbeat, SegmentReport, StopReason
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.parents import probe_writes
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_OUT_OF_TIME = "the time of the run is used up (budget.max_hours)"
_CHANGEOVERS_OF_A_MOVE = 3
"""Least remaining time for a hand-over, in changeovers. A boot would take most of a shorter time."""
_STORE_RETRY_SECONDS = 0.5
_ENOUGH_STEPS = 5
_ENOUGH_SECONDS = 30.0
"""The step time of a running attempt is used after these steps and seconds. The first steps are not typical."""


@dataclass(frozen=True)
class Period:
    """The polling periods of a wait."""

    poll_seconds: float = 0.5
    """Seconds between two checks of the time.

    If the store is on this machine, each check also reads the log and the heartbeat. The wait reads a remote store
    every `liveness.remote_look_seconds`. The wait also reads a remote store when an action is due, or when the
    orchestrator shows that the attempt has ended.
    """
    ask_seconds: float = 2.0
    """Seconds between two requests to the orchestrator."""
    patience_seconds: float | None = None
    """Longest wait in seconds for an unusable store.

    The value None means no limit, because the attempt runs on another machine.
    """


USUAL_PERIOD = Period()


def await_report(
    runlog: RunLog,
    spec: RunSpec,
    submitted: Submitted,
    *,
    clock: Clock,
    with_standbys: bool = False,
    period: Period = USUAL_PERIOD,
    show: Show = lambda _: None,
) -> SegmentReport:
    """Block until a submitted attempt has a report.

    If the attempt can no longer write a report, the function declares it lost. While the orchestrator or the store does
    not answer, the wait continues, because the attempt also continues. If the store does not answer, the wait continues
    for at most `period.patience_seconds`. If a preemption of a late spot attempt would make the run miss its deadline,
    the function recalls the attempt, which commits and stops. With `with_standbys`, standbys wait for spot while
    on-demand trains. When a standby is ready to take over, the function recalls the on-demand attempt. In three cases,
    the function declares an attempt with a heartbeat lost: the attempt has nothing to commit yet, does not answer a
    recall within the heartbeat timeout, or saves too slowly for the deadline.

    While the attempt has no machine, the function calls `show` with each new reason. As soon as the attempt has a
    machine, the function calls `show` with None.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used for longer than `period.patience_seconds`.
    """
    if submitted.plan.ignores_deadline:
        spec = spec.model_copy(update={"deadline": None})
    standbys = None
    if with_standbys:
        standbys = PoolStandbys(runlog, spec, submitted.plan, orchestrator=submitted.orchestrator, clock=clock)
    waiting = _AttemptWait(runlog, spec, submitted, clock, standbys=standbys, period=period, show=show)
    try:
        return _wait(waiting, clock, period)
    finally:
        if standbys is not None:
            standbys.close()


def _wait(waiting: _AttemptWait, clock: Clock, period: Period) -> SegmentReport:
    failing_since: float | None = None
    while True:
        pause = period.poll_seconds
        try:
            report = waiting.look()
            failing_since = None
        except (StoreReadError, StoreWriteError) as error:
            failing_since = clock.monotonic() if failing_since is None else failing_since
            if period.patience_seconds is not None and clock.monotonic() - failing_since > period.patience_seconds:
                raise
            log.warning("waiting for the attempt, but the store cannot be used reason=%s", error)
            waiting.note_outage(is_write=isinstance(error, StoreWriteError))
            report, pause = None, max(pause, _STORE_RETRY_SECONDS)
        if report is not None:
            return report
        clock.sleep(pause)


class _AttemptWait:
    """Waits for one attempt: reads the run's log, the heartbeat and the flow run, and acts on them.

    Each check determines again whether the attempt waits for a machine, trains, or has ended. The only state between
    two checks is a recall.
    """

    def __init__(
        self,
        runlog: RunLog,
        spec: RunSpec,
        submitted: Submitted,
        clock: Clock,
        *,
        standbys: PoolStandbys | None,
        period: Period,
        show: Show,
    ) -> None:
        self._runlog, self._spec, self._clock = runlog, spec, clock
        self._plan, self._standbys, self._period = submitted.plan, standbys, period
        self._starts = Starts(runlog, spec, submitted, clock=clock)
        self._flow_run = FlowRunEnd(spec, self._starts, clock=clock, ask_seconds=period.ask_seconds)
        queue = QueueWatch(runlog.store, spec, submitted.plan, clock=clock)
        self._capacity = CapacityWait(spec, self._starts, clock=clock, show=show, queue=queue)
        remote_seconds = spec.liveness.remote_look_seconds if runlog.store.is_remote else 0.0
        self._looks = LookSchedule(clock, period_seconds=remote_seconds)
        self._heartbeat = HeartbeatTimeout(spec.liveness.heartbeat_timeout_seconds)
        self._probes = self._has_read_heartbeat = False
        self._recalled: Recalled | None = None

    def note_outage(self, *, is_write: bool) -> None:
        """Restart the heartbeat timeout, because the attempt could not write a heartbeat while the store failed.

        After a failed write, the wait repeats writes until one succeeds, because successful reads do not show that
        writes work again. A read that fails after the read of the heartbeat is not an outage.
        """
        if is_write or not self._has_read_heartbeat:
            self._heartbeat = HeartbeatTimeout(self._spec.liveness.heartbeat_timeout_seconds)
        self._probes = self._probes or is_write

    def look(self) -> SegmentReport | None:
        """Read the store if a read is due, and return the attempt's report, or None without a report."""
        if not self._looks.is_due:
            self._flow_run.ask()
            if self._flow_run.state_name is None:
                return None
        with self._looks.looking():
            return self._look_at_store()

    def _look_at_store(self) -> SegmentReport | None:
        self._has_read_heartbeat = False
        if self._probes:
            probe_writes(self._runlog.store)
            self._probes = False
        history = read_history(self._runlog)
        report = history.report_of(self._plan.segment, self._plan.attempt)
        if report is not None:
            self._starts.withdraw(report)
            return self._with_its_cause(report)
        attempt = history.attempt_of(self._plan.segment, self._plan.attempt)
        if attempt is not None and not self._starts.is_settled:
            self._starts.settle(attempt.claim)
            self._flow_run.forget()  # From now on, only the start that claimed the attempt counts.
        self._flow_run.ask()
        if attempt is None and self._flow_run.is_final:
            if self._starts.state() is not None and not self._starts.request_next_pool():
                return self._refused() or self._ended_without_report(history)
            self._flow_run.forget()  # There is a start that was not there when the others had ended.
        self._capacity.show(history, is_claimed=attempt is not None)
        if attempt is None:
            return self._give_up_waiting(history)
        at, beat = self._clock.monotonic(), last_heartbeat(self._runlog, attempt)
        self._heartbeat.update(beat.counter if beat else None, at=at)
        self._has_read_heartbeat = True
        if beat is not None and beat.ends_in_seconds is not None:
            self._looks.within(max(beat.ends_in_seconds, self._period.poll_seconds))
        self._looks.within(self._heartbeat.heartbeat_timeout_seconds - self._heartbeat.unchanged_seconds)
        return self._look_at_claimed(history, attempt.claim.attempt_id, beat, at)

    def _look_at_claimed(
        self, history: History, attempt_id: str, beat: Heartbeat | None, at: float
    ) -> SegmentReport | None:
        if self._flow_run.is_final and self._heartbeat.unchanged_seconds > self._flow_run.late_report_seconds:
            # The heartbeat must also have stopped, because orchestrators sometimes report live flow runs as crashed.
            return self._ended_without_report(history)
        if self._heartbeat.is_expired:
            return self._lost(f"no heartbeat for {self._spec.liveness.heartbeat_timeout_seconds:g} s")
        if history.stop is not None:  # The attempt may have claimed the run after the stop was requested.
            self._recall(history, attempt_id, beat, reason=history.stop.reason)
        elif self._is_out_of_time(history, beat):
            self._recall(history, attempt_id, beat, reason=_OUT_OF_TIME)
        elif self._recalled is None and self._is_recall_due(history, beat):
            if beat is None or beat.phase in ("starting", "restoring"):
                return self._lost("it had not started to train when the deadline required on-demand")
            self._recall(history, attempt_id, beat, reason="the deadline requires on-demand")
        elif self._standbys is not None and self._is_standby_due(self._standbys, history, beat):
            self._recall(history, attempt_id, beat, reason="the standby is ready")
        if self._recalled is None:
            return None
        self._looks.within(self._spec.liveness.heartbeat_seconds)
        # After a stop, or at the end of the run's time, no later attempt needs the time.
        here = self._situation_with(beat, history)
        is_urgent = history.stop is None and not self._is_out_of_time(history, beat)
        why = self._recalled.why_lost(here, beat, at=at, is_urgent=is_urgent)
        return self._lost(why) if why is not None else None

    def _with_its_cause(self, report: SegmentReport) -> SegmentReport:
        """Return the report, with the reason `cancelled` if a person cancelled the flow run."""
        if report.stop_reason is not StopReason.NOTICE or not self._starts.was_cancelled():
            return report
        return declare_as(self._runlog, self._plan, StopReason.CANCELLED, why=CANCELLED)

    def _is_standby_due(self, standbys: PoolStandbys, history: History, beat: Heartbeat | None) -> bool:
        is_named = history.handover_of(self._plan.segment, self._plan.attempt) is not None
        if beat is None or (beat.phase != "training" and not is_named):
            return False  # The attempt does not train yet, or is about to end by itself.
        here = self._situation_with(beat, history)
        left = budget_cap.time_left_seconds(self._spec, history, now=self._clock.now())
        is_soon_over = left <= here.answer_seconds + _CHANGEOVERS_OF_A_MOVE * here.changeover_seconds
        if not is_named and (is_soon_over or not may_hand_over(self._spec, history, self._plan)):
            return False
        return standbys.look(history, here)

    def _ended_without_report(self, history: History) -> SegmentReport:
        reason = StopReason.CANCELLED if self._starts.was_cancelled() else StopReason.LOST
        why = f"its flow run ended as {self._flow_run.state_name or 'unknown'} without a report"
        place = self._plan.segment, self._plan.attempt
        is_open = bool(self._plan.pools) and history.attempt_of(*place) is None
        failed = [start.reason for start in history.starts_of(*place) if start.outcome == "start_failed"]
        why = failed[-1] if is_open and failed else why
        return declare_lost(self._runlog, self._plan, why=why, reason=reason)

    def _refused(self) -> SegmentReport | None:
        """Return the report of an attempt that its pool could not start, or None.

        The result is None if the pool started the attempt, or if the orchestrator does not know.
        """
        why = self._starts.refusal()
        if why is None:
            return None
        return declare_lost(self._runlog, self._plan, why=why, reason=StopReason.NO_CAPACITY, was_refused=True)

    def _give_up_waiting(self, history: History) -> SegmentReport | None:
        failed = self._starts.look(history, self._situation(history)) if history.stop is None else None
        found = (StopReason.START_FAILED, failed) if failed is not None else self._capacity.why_give_up(history)
        if found is None:
            left = self._capacity.seconds_left(history)
            self._looks.within(left if left > 0 else self._spec.liveness.heartbeat_seconds)
            return None
        reason, why = found
        # The report is written first, so that an attempt that starts later finds the report in the log and ends.
        was_refused = reason is StopReason.START_FAILED
        report = declare_lost(
            self._runlog, self._plan, why=why, reason=reason, got_capacity=False, was_refused=was_refused
        )
        self._starts.cancel(why, reason=reason)
        return report

    def _lost(self, why: str) -> SegmentReport:
        report = declare_lost(self._runlog, self._plan, why=why)
        self._starts.mark_lost(why)
        return report

    def _is_out_of_time(self, history: History, beat: Heartbeat | None) -> bool:
        """Whether the attempt has to commit now, so that the run ends within its time."""
        left = budget_cap.time_left_seconds(self._spec, history, now=self._clock.now())
        left -= self._situation_with(beat, history).answer_seconds if left < math.inf else 0.0
        self._looks.within(max(left, self._period.poll_seconds))
        return left <= 0

    def _is_recall_due(self, history: History, beat: Heartbeat | None) -> bool:
        if self._plan.capacity is not Capacity.SPOT or _retries_a_failure(history, beat):
            return False
        here = self._situation_with(beat, history)
        left = None if clamp.is_behind_others(here) else clamp.seconds_to_recall(here)
        self._looks.within(math.inf if left is None else left)
        return clamp.must_recall(here)

    def _own_step_seconds(self, beat: Heartbeat | None) -> float:
        if beat is None or beat.step_seconds is None:
            return 0.0
        steps = beat.step - (self._plan.parent.step if self._plan.parent else 0)
        is_enough = steps > _ENOUGH_STEPS and steps * beat.step_seconds > _ENOUGH_SECONDS
        return beat.step_seconds if is_enough else 0.0

    def _situation_with(self, beat: Heartbeat | None, history: History) -> Situation:
        """Return the situation, with the step time of the running attempt."""
        return self._situation(history, slowest_step_seconds=self._own_step_seconds(beat))

    def _situation(self, history: History, *, slowest_step_seconds: float = 0.0) -> Situation:
        queues = self._starts.queues(self._spec)
        return situation(
            self._spec,
            history,
            now=self._clock.now(),
            slowest_step_seconds=slowest_step_seconds,
            on_demand_queue_seconds=None if queues is None else queues.on_demand_seconds,
        )

    def _recall(self, history: History, attempt_id: str, beat: Heartbeat | None, *, reason: str) -> None:
        """Ask the attempt to commit and stop, at most once."""
        if self._recalled is not None:
            return
        log.warning("recalling the attempt attempt=%s reason=%s", attempt_id, reason)
        recall(self._runlog.store, run_id=self._spec.run_id, attempt_id=attempt_id, reason=reason)
        here, timeout_seconds = self._situation_with(beat, history), self._spec.liveness.heartbeat_timeout_seconds
        self._recalled = Recalled(here, timeout_seconds=timeout_seconds)


def _retries_a_failure(history: History, beat: Heartbeat | None) -> bool:
    """Whether the previous attempt failed at a step that this attempt has not passed yet.

    If the result is True, this attempt is a retry on the same capacity, which the safety clamp permits. A recall would
    buy on-demand for a bug.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    has_failed = last is not None and last.is_own_fault
    return has_failed and (beat is None or last is None or beat.step <= last.to_step)
