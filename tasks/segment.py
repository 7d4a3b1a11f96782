"""The tasks of a run's segments: open the run, decide its next segment, and run one attempt on its pool."""

from __future__ import annotations

from typing import Any

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from segue.clock import Clock
from segue.controller.continuation import await_claim
from segue.controller.pool_observations import recall_pools, remember_pools
from segue.controller.steps import check_start, decide_next
from segue.controller.steps import open_run as open_run_here
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.back_off import back_off
from segue.controller.waiting.capacity_wait import Show
from segue.controller.waiting.leftover_starts import withdraw_leftover
from segue.controller.waiting.wait import await_report
from segue.doctor.save_time import newly_measured
from segue.integrations.tracking import open_trackers
from segue.policy.decide import Decision
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.prefect.queues import queues_of_run
from segue.prefect.run_pools import own_pool, require_pools
from segue.prefect.state_words import state_of_attempt
from segue.prefect.ui.shown_wait import ShownWait
from segue.records import SegmentPlan
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="open-run", retries=0, cache_policy=NO_CACHE)
def open_run(spec: RunSpec, *, accept_drift: bool, requested_at_slot: int | None = None) -> int:
    """Check the store, the spec, the pools and the trackers. Then open or resume the run, and return its last step."""
    clock = parent_clock()
    known = check_start(spec, clock=clock, accept_drift=accept_drift, known_slots=requested_at_slot or 0)
    is_new = not read_history(known).has_trained
    pool, queue = own_pool()
    require_pools(spec, parent_pool=pool, parent_queue=queue, is_new=is_new)
    if is_new:
        open_trackers(spec)  # Wrong options are refused before anything is bought; later they must not end the run.
    runlog = open_run_here(spec, clock=clock, accept_drift=accept_drift, requested_at_slot=requested_at_slot)
    as_parent(lambda: recall_pools(runlog, spec), what="memory of pools")
    return read_history(runlog).committed_step


@task(name="plan-segment", retries=0, cache_policy=NO_CACHE)
def plan_segment(spec: RunSpec) -> Decision:
    """Make the next decision of the run, and write it to the run's log."""
    clock = parent_clock()
    runlog = as_parent(open_log(spec, clock=clock).reload, what="log")
    queues = queues_of_run(spec)
    decision = as_parent(lambda: decide_next(runlog, spec, clock=clock, queues=queues), what="decision")
    get_run_logger().info("decided action=%s reason=%s", decision.action, decision.reason)
    remember_pools(runlog, spec, clock=clock)
    long_save = newly_measured(spec, read_history(runlog)) if decision.action == "run" else None
    if long_save is not None:
        get_run_logger().warning("%s. Fix: %s", long_save.reason, long_save.fix)
    if decision.warning:
        get_run_logger().warning("%s", decision.warning)
    return decision


@task(name="segment", task_run_name="{spec.run_id}-seg{plan.segment}-a{plan.attempt}", retries=0, cache_policy=NO_CACHE)
def run_segment(spec: RunSpec, plan: SegmentPlan, show: Show = lambda _: None) -> Any:
    """Run one attempt on its pool. The returned state shows how the attempt ended, and holds the report of the attempt.

    The report is also in the run's log. While the attempt waits, the task calls `show` with the reason for the wait.
    """
    clock = parent_clock()
    runlog = as_parent(open_log(spec, clock=clock).reload, what="log")
    prefect = PrefectOrchestrator(log_id=runlog.log_id)
    graph = ShownWait(prefect.deliver, clock=clock)

    def show_it(waiting: str | None) -> None:
        graph.show(waiting)
        show(waiting)

    try:
        as_parent(lambda: withdraw_leftover(runlog, spec, orchestrator=prefect), what="log")
        back_off(runlog, plan, clock=clock, show=show_it)
        submitted = Submitted(plan, prefect, _handle_of(runlog, spec, plan, prefect, clock=clock))
        report = await_report(runlog, spec, submitted, clock=clock, with_standbys=True, show=_in_log_too(show_it))
    finally:
        graph.show(None)
        prefect.close()
    state = state_of_attempt(report)
    state.data = report  # Not in the flow's state: the engine treats the data of a final state as an exception.
    return state


def _in_log_too(show: Show) -> Show:
    logger = get_run_logger()

    def tell(waiting: str | None) -> None:
        if waiting is not None:
            logger.info("the trainer has not started yet: %s", waiting)
        show(waiting)

    return tell


def _handle_of(runlog: RunLog, spec: RunSpec, plan: SegmentPlan, prefect: PrefectOrchestrator, *, clock: Clock) -> str:
    """Return the handle of the flow run whose machine was kept for this plan, or of a new flow run."""
    kept: dict[str, str] = {}

    def has_left(flow_run_id: str) -> bool:
        kept["handle"] = prefect.adopt(spec, plan, flow_run_id)
        return prefect.state(kept["handle"]) is not None

    claimed_by = as_parent(lambda: await_claim(runlog, plan, has_left=has_left, clock=clock), what="log")
    if claimed_by is not None:
        get_run_logger().info("segment %d continues on the machine of the previous segment", plan.segment)
        return prefect.adopt(spec, plan, claimed_by)
    if "handle" in kept and prefect.was_cancelled(kept["handle"]):
        return kept["handle"]
    return prefect.submit(spec, plan)
