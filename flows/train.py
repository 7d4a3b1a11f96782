"""Defines the flow `train`, the parent of a run. The flow repeats three actions until a decision ends the run: it
decides, runs a segment, and judges the resume of the segment."""

from __future__ import annotations

from contextlib import closing, suppress
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Failed

from segue.controller.ending import EndedError, Why
from segue.controller.parent import drive
from segue.controller.recovery import ParentHeartbeat, withdraw_start
from segue.controller.standbys.pool_standbys import release_leftover
from segue.controller.steps import request_stop
from segue.controller.waiting.leftover_starts import withdraw_leftover
from segue.errors import ParentAliveError, RunOverError, SegueError, StoreError
from segue.integrations.tracking import tracking, usable_trackers
from segue.launch.output import survive_broken_output
from segue.policy.decide import Decision
from segue.prefect.api import own_flow_run_id, tagged, wait_for_api
from segue.prefect.parent_clock import as_parent, ending_with, parent_clock, run_time
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.prefect.recovery.dead_parents import known_server_id, withdraw_other_starts
from segue.prefect.recovery.recovery_watch import RecoveryWatch
from segue.prefect.recovery.segment_states import settle_missed
from segue.prefect.state_words import Word, state_of_run, state_with
from segue.prefect.ui.live_run import LiveRun
from segue.prefect.ui.quiet_logs import quieten
from segue.records import SegmentPlan, SegmentReport, Verdict
from segue.reports.cost_report import CostReport
from segue.reports.summary import late_seconds_at_end
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores import open_store
from segue.stores.base import StoreReadError, StoreWriteError
from segue.tasks.continuity import judge_resume
from segue.tasks.curve import publish_resume
from segue.tasks.run_page import publish_run, report_cost
from segue.tasks.segment import open_run, plan_segment, run_segment

_CANCELLED = "the parent's flow run was cancelled"
_API_SECONDS = 900.0
"""Longest time in seconds for which a parent waits for the Prefect API after the end of its run."""


@flow(name="train", flow_run_name="{spec.run_id}", retries=0, validate_parameters=True, persist_result=False)
def train(
    spec: RunSpec,
    *,
    accept_drift: bool = False,
    requested_at_slot: int | None = None,
    after_parent: str | None = None,
) -> Any:
    """Train `spec` to its goal, in segments, on the capacity that the policy selects.

    If the flow starts again with the same run id, it resumes the run from the run's log. If an attempt is still alive,
    the flow waits for this attempt and starts no second attempt. If another parent is alive, the flow ends at once.
    `requested_at_slot` is the number that the log's next record had when the start was requested. If a later record
    stops the run, the flow does not undo the stop. `after_parent` is the id of a parent that is known to be dead.
    """
    survive_broken_output()
    quieten()
    with ending_with(own_flow_run_id()), run_time(spec.store):
        state = _train(spec, accept_drift=accept_drift, requested_at_slot=requested_at_slot, after_parent=after_parent)
    return tagged(own_flow_run_id(), state)


def _train(spec: RunSpec, *, accept_drift: bool, requested_at_slot: int | None, after_parent: str | None) -> State[Any]:
    try:
        open_run(spec, accept_drift=accept_drift, requested_at_slot=requested_at_slot)
    except StoreError as error:
        return Failed(message=str(error))  # Recovery starts the run when the store is back.
    except SegueError as error:
        withdraw_start(open_store(spec.store), spec.run_id)
        return Failed(message=str(error))
    try:
        parent = _parent_of(spec, after_parent)
        if after_parent is not None:
            withdraw_other_starts(spec, own=own_flow_run_id())
        try:
            with tracking(spec, usable_trackers(spec)):
                return _run(spec, parent)
        except EndedError as ended:
            return _leave(spec, parent, ended.why)
    except EndedError as ended:  # Ended before this flow was the run's parent.
        return _left(ended.why)
    except ParentAliveError as error:
        return state_with(Word.DUPLICATE, str(error))
    except SegueError as error:
        return Failed(message=str(error))


def _run(spec: RunSpec, parent: ParentHeartbeat) -> State[Any]:
    clock, run_id = parent_clock(), own_flow_run_id()
    live = LiveRun(open_log(spec, clock=clock), spec, clock=clock, logger=get_run_logger(), flow_run_id=run_id)
    watch = RecoveryWatch(
        spec.store, parent, clock=clock, logger=get_run_logger(), flow_run_id=run_id, show=live.show_unguarded
    )
    with live.refreshing():
        with parent.beating(), watch.watching():
            decision, has_resumed = drive(_Tasks(spec, parent, live))
            state = _conclude(spec, live, decision, has_resumed=has_resumed)
        if wait_for_api(limit_seconds=_API_SECONDS, clock=clock):
            settle_missed(spec)
            parent.close()  # A remaining record lets recovery set the state from the log.
    return state


def _leave(spec: RunSpec, parent: ParentHeartbeat, why: Why) -> State[Any]:
    """End this parent. If a person cancelled the flow run, stop the run. If not, its attempt continues to train."""
    if why is Why.CANCELLED:
        parent.require_own()  # Another parent's run is not stopped.
        with suppress(StoreError, RunOverError):  # The flow `recover` stops it later.
            request_stop(open_log(spec).reload(), reason=_CANCELLED)
    return _left(why)


def _left(why: Why) -> State[Any]:
    if why is Why.CANCELLED:
        return Cancelled(message=f"the run is stopped: {_CANCELLED}")
    return state_with(Word.PARENT_LOST, f"{why}; the flow `recover` starts the parent again")


def _parent_of(spec: RunSpec, after_parent: str | None) -> ParentHeartbeat:
    flow_run_id = own_flow_run_id()
    facts: dict[str, Any] = {"flow_run_id": str(flow_run_id) if flow_run_id is not None else None}
    facts["server_id"] = known_server_id()
    parent = ParentHeartbeat(open_store(spec.store), spec, clock=parent_clock(), **facts)
    as_parent(lambda: parent.take_over(after=after_parent), what="parent's record")
    return parent


def _conclude(spec: RunSpec, live: LiveRun, decision: Decision, *, has_resumed: bool) -> State[Any]:
    """Publish the pages of an ended run. Return the final state of the parent's flow run."""
    _release_leftovers(spec)
    live.finish()  # First: the version created last has to be the newest.
    publish_run(spec, return_state=True)  # The returned state is ignored: a failed artifact must not fail the run.
    if has_resumed:
        publish_resume(spec, return_state=True)
    get_run_logger().info("run ended action=%s reason=%s", decision.action, decision.reason)
    message = _with_cost(decision.reason, report_cost(spec, return_state=True))
    return state_of_run(decision.action, message, late_seconds=_late_seconds(spec))


def _release_leftovers(spec: RunSpec) -> None:
    """Cancel the standbys and the requests of an ended run.

    If the cancellation fails, only log the failure. Without a run, standbys and starts end by themselves.
    """
    try:
        runlog = open_log(spec).reload()
        with closing(PrefectOrchestrator(log_id=runlog.log_id)) as prefect:
            release_leftover(runlog, spec, orchestrator=prefect)
            withdraw_leftover(runlog, spec, orchestrator=prefect)
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("leftover standbys and requests of this run could not be cancelled reason=%s", error)


def _late_seconds(spec: RunSpec) -> float | None:
    return late_seconds_at_end(as_parent(lambda: read_history(open_log(spec)), what="log"))


class _Tasks:
    """The tasks of the parent, as the Prefect UI shows them."""

    def __init__(self, spec: RunSpec, parent: ParentHeartbeat, live: LiveRun) -> None:
        self._spec, self._parent, self._live = spec, parent, live

    def decide(self) -> Decision:
        self._parent.require_own()
        return plan_segment(self._spec)

    def run(self, plan: SegmentPlan) -> SegmentReport:
        self._live.nudge()
        return _report_of(run_segment(self._spec, plan, self._show, return_state=True))

    def judge(self, report: SegmentReport) -> Verdict | None:
        return judge_resume(self._spec, report)

    def _show(self, waiting: str | None) -> None:
        self._parent.show(waiting)
        self._live.show(waiting)


def _with_cost(reason: str, state: State[CostReport]) -> str:
    cost = state.result(raise_on_failure=False)
    return f"{reason}; {cost.sentence}" if isinstance(cost, CostReport) and cost.sentence else reason


def _report_of(state: State[SegmentReport]) -> SegmentReport:
    # If an attempt was preempted, its state is Crashed and holds the report. An exception is a real error, and is
    # raised.
    result = state.result(raise_on_failure=False)
    if isinstance(result, BaseException):
        raise result
    return result
