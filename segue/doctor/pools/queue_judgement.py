"""Judges what the start of flow runs needs in Prefect: queues, workers, limits, job variables. The module is pure."""

from __future__ import annotations

from segue.doctor.check import CheckOutcome, Result, fail, ok, warn
from segue.doctor.pools.pool_state import Limited, Needs, PoolState, of_limit


def blocker(state: PoolState) -> str | None:
    """Return the reason why flow runs of the deployment do not start now.

    If nothing is missing, or only a machine, return None.
    """
    results = (judge(state, Needs()) for judge in (paused, queue, workers, limits))
    return next((result.reason for result in results if result.outcome is not CheckOutcome.OK), None)


def queue(state: PoolState, needs: Needs) -> Result:
    """Check that a worker takes flow runs from the deployment's queue, and that the queue is not paused."""
    if state.is_queue_paused:
        reason = f"the queue {state.queue} of the pool {state.pool} is paused"
        return warn(reason, fix=f"`prefect work-queue resume {state.queue} --pool {state.pool}`.")
    if not state.is_queue_polled:
        return warn(
            f"no worker of the pool {state.pool} takes flow runs from its queue {state.queue}",
            fix=f"start one with `prefect worker start --pool {state.pool} --work-queue {state.queue}`.",
        )
    return ok(f"{state.deployment}: queue {state.queue or 'default'} of {state.pool}")


def paused(state: PoolState, needs: Needs) -> Result:
    if state.is_paused:
        return warn(f"the pool {state.pool} is paused", fix=f"`prefect work-pool resume {state.pool}`.")
    return ok(f"{state.pool} is not paused")


def workers(state: PoolState, needs: Needs) -> Result:
    """Check that the pool has a worker. If all workers are offline, warn only, because a worker may come back."""
    fix = f"start one with `prefect worker start --pool {state.pool}`."
    if state.known_workers == 0:
        return fail(f"{state.named} has no worker and never had one", fix=fix)
    if state.workers == 0:
        return warn(
            f"no worker of the pool {state.pool} is online; workers known to the server: {state.known_workers}", fix=fix
        )
    return ok(f"{state.pool}: needs no worker" if state.workers is None else f"{state.pool}: {state.workers} online")


def limits(state: PoolState, needs: Needs) -> Result:
    """Check that the concurrency limits permit a segment to run beside the parent.

    The parent occupies a slot of the limit until its run ends.
    """
    shared = _shared_limit(state, needs)
    owner, how = of_limit(shared or state.limited, state)
    reason = f"{state.named} runs at most {state.limit} flow runs at once"
    if shared is not None:
        return fail(
            f"{reason}, and the run's parent is one of them (limit of the {owner})",
            fix=f"raise that limit to 2 or more ({how}), or run the parent on a pool of its own.",
        )
    if state.limit == 0:
        return fail(f"{reason} (limit of the {owner})", fix=f"raise that limit to 1 or more ({how}).")
    return ok(
        f"{state.deployment}: {'no limit' if state.limit is None else f'at most {state.limit} flow runs at once'}"
    )


def _shared_limit(state: PoolState, needs: Needs) -> Limited | None:
    """Return the pool or the queue whose concurrency limit is used up by the parent alone, so that no segment starts.

    If there is no such pool or queue, return None.
    """
    if state.pool != needs.parent_pool:
        return None
    if state.pool_limit is not None and state.pool_limit < 2:
        return "pool"
    is_queue_shared = state.queue is not None and state.queue == needs.parent_queue
    return "queue" if is_queue_shared and state.queue_limit is not None and state.queue_limit < 2 else None


def job_variables(state: PoolState, needs: Needs) -> Result:
    if state.unknown_variables:
        names = ", ".join(state.unknown_variables)
        return fail(
            f"the deployment {state.deployment!r} sets job variables that the pool {state.pool} does not have "
            f"({names})",
            fix="correct their names in prefect.yaml, or give the pool the template of `segue init`.",
        )
    return ok(f"{state.deployment}: the template of {state.pool} has all of its job variables")
