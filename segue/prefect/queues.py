"""Reads the queues of a run's pools, for a decision or for an attempt that waits for its slot.

A queue consists of the slots of a pool, and of the flow runs that share these slots.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import mean
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterName,
    FlowRunFilterStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
    WorkPoolFilter,
    WorkPoolFilterName,
    WorkQueueFilter,
    WorkQueueFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from segue.policy.queueing import UNLIMITED, Queues, Slots, queue_seconds
from segue.prefect.answers import SharedReadings
from segue.prefect.api import SILENCE, quick_client
from segue.prefect.parent_clock import parent_clock, time_at
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_SHARED_SECONDS = 60.0
"""For a waiting attempt, segue may use a pool's limit that another parent of this process has read. Highest age of such
a limit, in seconds."""

# Keys: the URL of the API and the name of the deployment.
_limits: SharedReadings[Limit] = SharedReadings(period_seconds=_SHARED_SECONDS)
_ENDED_FLOW_RUNS = 100
"""Number of the newest ended flow runs from which segue estimates how long a flow run holds a slot."""
_LEAST_TURNS, _TURNS = 2, 4
"""Lowest and highest number of starts per slot, from which segue estimates how often a slot becomes free."""
_PAGE = 100
"""Number of flow runs in one answer. By default, a server returns at most 200 flow runs."""
_DATE_STEP = timedelta(seconds=1)
"""Resolution of the server's date. To find the flow runs that wait at this moment, requests use this date."""
_HOLDING = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
"""States in which a flow run holds a slot of a pool or queue.

The state Cancelling is not in this list, because it may last for hours if nobody ends the flow run.
"""
_SCHEDULED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
_ENDED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.COMPLETED, StateType.FAILED, StateType.CRASHED])
)
"""States of ended flow runs. Cancelled is not in this list, because most cancelled flow runs never held a slot."""
_HAS_RUN = FlowRunFilterStartTime(is_null_=False)


def queues_of_run(spec: RunSpec) -> Queues:
    """Return the queues of the run's pools, for a decision. If the next attempt started now, it would be at the end of
    its queue.

    If the API does not answer, the result is empty.
    """
    if spec.deadline is None:
        return Queues()
    now = parent_clock().now()
    on_demand = _slots_for(spec, spec.pools.on_demand, now=now)
    spot = [_slots_for(spec, pool.deployment, now=now) for pool in spec.pools.spot]
    return Queues.of(spot=min(spot, key=queue_seconds, default=UNLIMITED), on_demand=on_demand, now=now)


def _slots_for(spec: RunSpec, deployment: str, *, now: datetime) -> Slots:
    """Return the slots for the next attempt. If the API does not answer, assume that nothing limits
    the slots."""
    try:
        with quick_client() as client:
            return without_own(client, read_limit(client, deployment, now=now), run_id=spec.run_id, now=now)
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("the queue of a pool could not be read deployment=%s reason=%s", deployment, type(error).__name__)
        return UNLIMITED


def queues_of_attempt(
    client: SyncPrefectClient, flow_run_id: UUID, *, run_id: str, deployment: str, on_demand: str
) -> Queues:
    """Return the queues of an attempt on a spot pool, with the earlier flow runs for which the attempt waits.

    If the attempt's flow run is no longer Scheduled, the attempt does not wait in a queue of a spot pool.

    Raises:
        ObjectNotFound: the deployment, pool, queue or flow run does not exist.
    """
    now = time_at(client)

    def newest(name: str) -> Limit:
        return _limits.newest((client.api_url, name), lambda: read_limit(client, name, now=now))

    slots = without_own(client, newest(on_demand), run_id=run_id, now=now)
    spot = newest(deployment)
    run = client.read_flow_run(flow_run_id) if spot.slots.is_full else None
    if run is None or run.state is None or not run.state.is_scheduled() or run.expected_start_time is None:
        return Queues.of(spot=UNLIMITED, on_demand=slots, now=now)
    before = count_waiting(client, spot, due=run.expected_start_time - timedelta(microseconds=1))
    return Queues.of(spot=replace(spot.slots, waiting=before), on_demand=slots, now=now)


@dataclass(frozen=True)
class Limit:
    """A concurrency limit with its slots, and the filters for the flow runs that share these slots."""

    slots: Slots = UNLIMITED
    among: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the flow run filter that select the flow runs that share the slots."""
    of_flow_runs: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the flow run filter, for the flow runs that share the slots."""

    def where(self, **fields: Any) -> dict[str, Any]:
        """Return the arguments of a request for the flow runs that share the limit and have these fields."""
        return {**self.among, "flow_run_filter": FlowRunFilter(**self.of_flow_runs, **fields)}


def read_limit(client: SyncPrefectClient, deployment: str, *, now: datetime) -> Limit:
    """Return the limit (of pool, queue or deployment) that delays a new flow run of this deployment the longest.

    The function makes two requests for each limit, and two more for each limit without a free slot. Without any limit,
    the result has unlimited slots.

    Raises:
        ObjectNotFound: the deployment, pool or queue does not exist.
    """
    found = [_with_slots(client, limit, now=now) for limit in _limits_of(client, deployment)]
    return max(found, key=lambda limit: (queue_seconds(limit.slots), -(limit.slots.limit or 0)), default=Limit())


def count_waiting(client: SyncPrefectClient, limit: Limit, *, due: datetime, **fields: Any) -> int:
    """Return the number of flow runs with these fields that wait for a slot and were due at `due` or before."""
    is_due = FlowRunFilterExpectedStartTime(before_=due)
    return client.count_flow_runs(**limit.where(state=_SCHEDULED, expected_start_time=is_due, **fields))


def without_own(client: SyncPrefectClient, limit: Limit, *, run_id: str, now: datetime) -> Slots:
    """Return the slots of a limit. The run's own attempts and standbys do not count, because they do not delay its next
    attempt.

    The slot of the run's parent counts as taken, because a parent that shares the pool keeps its slot.
    """
    slots = limit.slots
    if not slots.is_full:
        return slots
    # The run's own flow runs are found by their names, `<run id>-seg...` and `<run id>-standby...`, because a parent
    # has the same tags.
    own = {"tags": FlowRunFilterTags(all_=["segue", run_id]), "name": FlowRunFilterName(like_=f"{run_id}-s")}
    holding = client.count_flow_runs(**limit.where(state=_HOLDING, **own))
    return replace(
        slots,
        taken=max(slots.taken - holding, 0),
        waiting=max(slots.waiting - count_waiting(client, limit, due=now + _DATE_STEP, **own), 0),
    )


def _limits_of(client: SyncPrefectClient, name: str) -> Iterator[Limit]:
    deployment = client.read_deployment_by_name(name)
    of_deployment, pool_name = deployment.global_concurrency_limit, deployment.work_pool_name
    if of_deployment is not None:
        own = {"deployment_id": FlowRunFilterDeploymentId(any_=[deployment.id])}
        yield Limit(replace(UNLIMITED, limit=of_deployment.limit), of_flow_runs=own)
    if pool_name is None:
        return
    of_pool = {"work_pool_filter": WorkPoolFilter(name=WorkPoolFilterName(any_=[pool_name]))}
    pool = client.read_work_pool(pool_name)
    if pool.concurrency_limit is not None:
        yield Limit(replace(UNLIMITED, limit=pool.concurrency_limit), of_pool)
    if deployment.work_queue_name is not None:
        queue = client.read_work_queue_by_name(deployment.work_queue_name, work_pool_name=pool_name)
        of_queue = {"work_queue_filter": WorkQueueFilter(name=WorkQueueFilterName(any_=[queue.name]))}
        if queue.concurrency_limit is not None:
            yield Limit(replace(UNLIMITED, limit=queue.concurrency_limit), of_pool | of_queue)


def _with_slots(client: SyncPrefectClient, limit: Limit, *, now: datetime) -> Limit:
    # There is one request for each state. A single request would return mostly waiting and ended flow runs.
    taken = client.count_flow_runs(**limit.where(state=_HOLDING))
    slots = replace(limit.slots, taken=taken, waiting=count_waiting(client, limit, due=now + _DATE_STEP))
    if slots.is_full:
        newest = client.read_flow_runs(
            **limit.where(state=_ENDED), sort=FlowRunSort.END_TIME_DESC, limit=_ENDED_FLOW_RUNS
        )
        holding = list(_all(client, limit.where(state=_HOLDING, start_time=_HAS_RUN)))
        slots = replace(
            slots,
            held_seconds=held_seconds(holding, newest, now=now),
            start_every_seconds=seconds_between_starts([*holding, *newest], slots=slots.limit or 1),
        )
    return replace(limit, slots=slots)


def _all(client: SyncPrefectClient, found: Mapping[str, Any]) -> Iterator[FlowRun]:
    offset = 0
    while True:
        page = client.read_flow_runs(**found, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=offset)
        yield from page
        offset += len(page)
        if len(page) < _PAGE:
            return


def seconds_between_starts(runs: Iterable[FlowRun], *, slots: int) -> float:
    """Return the mean number of seconds between the newest starts of flow runs that waited. The function is pure.

    If fewer than two flow runs per slot waited, the result is 0, because several slots may become free together.
    """
    starts = sorted(
        (run.start_time, run.expected_start_time)
        for run in runs
        if run.start_time is not None and run.expected_start_time is not None
    )
    gaps = [(after - before).total_seconds() for (before, _), (after, due) in pairwise(starts) if due <= before]
    turns = min(len(gaps) // slots, _TURNS)
    return mean(gaps[-turns * slots :]) if turns >= _LEAST_TURNS else 0.0


def held_seconds(holding: Iterable[FlowRun], ended: Iterable[FlowRun], *, now: datetime) -> list[float]:
    """Return the seconds for which each current and each ended flow run has held its slot.

    The function is pure. No number is below 0, even if the server's clock is ahead of this machine's clock.
    """
    begun = [run.start_time for run in holding if run.start_time is not None]
    return [
        *(max((now - at).total_seconds(), 0.0) for at in begun),
        *(run.total_run_time.total_seconds() for run in ended if run.run_count),
    ]
