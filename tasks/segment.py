"""Task of one attempt: submit it to its pool, and wait for its report."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from segue.clock import Clock
from segue.controller.back_off import back_off
from segue.controller.continuation import await_claim
from segue.controller.standby_manager import release_leftover
from segue.controller.waiting.capacity_wait import Show
from segue.controller.waiting.starts import Submitted
from segue.controller.waiting.wait import await_report
from segue.records import SegmentPlan, SegmentReport, StopReason
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError
from segue.tasks.parent_clock import as_parent, parent_clock
from segue.tasks.prefect_orchestrator import PrefectOrchestrator
from segue.tasks.state_words import Word, state_with
from segue.tasks.waiting.shown_wait import ShownWait


@task(name="segment", task_run_name="{spec.run_id}-seg{plan.segment}-a{plan.attempt}", retries=0, cache_policy=NO_CACHE)
def run_segment(spec: RunSpec, plan: SegmentPlan, show: Show = lambda _: None) -> Any:
    """Run one attempt on its pool. The state shows how it ended; its data is the report, which is also in the log.

    `show` is called with what the attempt waits for, as in `await_report`.
    """
    clock = parent_clock()
    runlog = as_parent(open_log(spec, clock=clock).reload, what="log")
    prefect = PrefectOrchestrator(log_id=runlog.log_id)
    graph = ShownWait(prefect.deliver, clock=clock)

    def show_it(waiting: str | None) -> None:
        graph.show(waiting)
        show(waiting)

    try:
        back_off(runlog, plan, clock=clock, show=show_it)
        submitted = Submitted(plan, prefect, _handle_of(runlog, spec, plan, prefect, clock=clock))
        report = await_report(runlog, spec, submitted, clock=clock, with_standbys=True, show=_in_log_too(show_it))
    finally:
        graph.show(None)
        prefect.close()
    state = state_of(report)
    state.data = report  # Not in the flow's state: the engine treats the data of a final state as an exception.
    return state


def _in_log_too(show: Show) -> Show:
    logger = get_run_logger()

    def tell(waiting: str | None) -> None:
        if waiting is not None:
            logger.info("not started yet: %s", waiting)
        show(waiting)

    return tell


def _handle_of(runlog: RunLog, spec: RunSpec, plan: SegmentPlan, prefect: PrefectOrchestrator, *, clock: Clock) -> str:
    """The handle of the plan's flow run: that of the machine which was kept for it, or a new one."""
    kept: dict[str, str] = {}

    def has_left(flow_run_id: str) -> bool:
        kept["handle"] = prefect.adopt(spec, plan, flow_run_id)
        return prefect.state(kept["handle"]) is not None

    claimed_by = as_parent(lambda: await_claim(runlog, plan, has_left=has_left, clock=clock), what="log")
    if claimed_by is not None:
        get_run_logger().info("segment %d goes on on the machine of the segment before", plan.segment)
        return prefect.adopt(spec, plan, claimed_by)
    if "handle" in kept and prefect.was_cancelled(kept["handle"]):
        return kept["handle"]
    return prefect.submit(spec, plan)


def release_standby(spec: RunSpec) -> None:
    """Cancel a standby that a run that is over left on the pool. Best effort: one that starts later ends by itself."""
    try:
        runlog = open_log(spec).reload()
        with closing(PrefectOrchestrator(log_id=runlog.log_id)) as prefect:
            release_leftover(runlog, spec, orchestrator=prefect)
    except (StoreReadError, StoreWriteError) as error:
        get_run_logger().warning("leftover standby not looked up reason=%s", error)


def state_of(report: SegmentReport) -> State[Any]:
    """The state of an attempt in the Prefect UI: a preemption is a crash, never a failure."""
    message = message_of(report)
    match report.stop_reason:
        case StopReason.FINISHED | StopReason.BOUND:
            return Completed(message=message)
        case StopReason.NOTICE:
            return state_with(Word.PREEMPTED, message)
        case StopReason.LOST:
            return state_with(Word.LOST, message)
        case StopReason.FENCED:
            return state_with(Word.FENCED, message)
        case StopReason.OUT_OF_MEMORY:
            return state_with(Word.OUT_OF_MEMORY, message)
        case StopReason.HUNG:
            return state_with(Word.HUNG, message)
        case StopReason.CANCELLED:
            return Cancelled(message=message)
        case StopReason.NO_CAPACITY:
            return state_with(Word.NO_CAPACITY, message)
        case StopReason.START_FAILED:
            return state_with(Word.START_FAILED, message)
        case StopReason.FAILED if report.anomaly is not None:
            return state_with(Word.ANOMALY, message)
        case StopReason.FAILED:
            return Failed(message=message)


def message_of(report: SegmentReport) -> str:
    """One line about the attempt; after a failure also the traceback of the user's code."""
    if not report.got_capacity and report.note:
        return report.note
    ref = report.checkpoint
    committed = f"step {ref.step} is committed" if ref is not None else "this attempt committed nothing"
    line = f"{report.stop_reason.in_words} at step {report.to_step} on {report.capacity}; {committed}, "
    line += f"{report.lost_steps} steps must be done again" if report.lost_steps else "no step is lost"
    if report.note:
        line += f"; {report.note}"
    return f"{line}\n{report.failure.traceback}" if report.failure else line
