"""The tasks on a run's log. They open the log, and decide the next step of the run."""

from __future__ import annotations

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE

from segue.controller.pool_observations import recall_pools, remember_pools
from segue.controller.steps import check_start, decide_next
from segue.controller.steps import open_run as open_run_here
from segue.doctor.save_time import newly_measured
from segue.integrations.tracking import open_trackers
from segue.policy.decide import Decision
from segue.prefect.parent_clock import as_parent, parent_clock
from segue.prefect.queues.queues import queues_of_run
from segue.prefect.run_pools import own_pool, require_pools
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec


@task(name="open-run", retries=0, cache_policy=NO_CACHE)
def open_run(spec: RunSpec, *, accept_drift: bool, requested_at_slot: int | None = None) -> int:
    """Check the store, the spec, the pools and the trackers. Then open or resume the run. Return the last committed
    step of the run."""
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
    """Decide the next step of the run, and write the decision to its log."""
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
