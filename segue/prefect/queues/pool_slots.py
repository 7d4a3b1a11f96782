"""The slots of a deployment's pool on the Prefect server, and the flow runs that share them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import mean
from typing import Any

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

from segue.policy.queueing import UNLIMITED, Slots, queue_seconds

_ENDED_FLOW_RUNS = 100
"""The number of newest ended flow runs that show how long a slot is held."""
_LEAST_TURNS, _TURNS = 2, 4
"""The number of starts that show how often a slot becomes free, as multiples of the slots."""
_PAGE = 100
"""Flow runs of one answer. A server gives 200 at most by default."""
_DATE_STEP = timedelta(seconds=1)
"""The server's date, which is used to ask what waits now, has whole seconds."""
_HOLDING = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING, StateType.RUNNING]))
"""The states that hold a slot, as pools and queues count. Without Cancelling: it lasts for hours if nobody ends it."""
_SCHEDULED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
_ENDED = FlowRunFilterState(
    type=FlowRunFilterStateType(any_=[StateType.COMPLETED, StateType.FAILED, StateType.CRASHED])
)
"""Without cancelled flow runs: most of these were given up while they waited, and would fill the answer."""
_HAS_RUN = FlowRunFilterStartTime(is_null_=False)


@dataclass(frozen=True)
class Limit:
    """A limit, its slots, and how the flow runs that share them are found."""

    slots: Slots = UNLIMITED
    among: Mapping[str, Any] = field(default_factory=dict)
    """Filters of the request by which they are found."""
    of_flow_runs: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the filter of flow runs."""

    def where(self, **fields: Any) -> dict[str, Any]:
        """The arguments of a request for the flow runs that share it, and have these fields."""
        return {**self.among, "flow_run_filter": FlowRunFilter(**self.of_flow_runs, **fields)}


def read_limit(client: SyncPrefectClient, deployment: str, *, now: datetime) -> Limit:
    """The limit for whose slots a new flow run of this deployment waits longest: of its pool, queue or own.

    Two requests for each of the three that has a limit, and two more if its slots are taken. Without a limit its
    slots are unlimited.

    Raises:
        ObjectNotFound: there is no such deployment, pool or queue.
    """
    found = [_with_slots(client, limit, now=now) for limit in _limits_of(client, deployment)]
    return max(found, key=lambda limit: (queue_seconds(limit.slots), -(limit.slots.limit or 0)), default=Limit())


def count_waiting(client: SyncPrefectClient, limit: Limit, *, due: datetime, **fields: Any) -> int:
    """The number of flow runs with these fields that were due by then and wait for a slot."""
    is_due = FlowRunFilterExpectedStartTime(before_=due)
    return client.count_flow_runs(**limit.where(state=_SCHEDULED, expected_start_time=is_due, **fields))


def without_own(client: SyncPrefectClient, limit: Limit, *, run_id: str, now: datetime) -> Slots:
    """The slots without the attempts and standbys of a run itself: none of them is before its next attempt.

    Its parent may also share the pool, and keeps its slot.
    """
    slots = limit.slots
    if not slots.is_full:
        return slots
    # By their names, `<run id>-seg...` and `<run id>-standby...`: a parent has the same tags.
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
    # Asked by state: on a mixed page of the newest flow runs, those that wait or are over would fill the page.
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
    """Mean time between the newest starts of which the later was due before the earlier, so it waited. Pure.

    0 if fewer waited than all slots take in two turns, because several slots may become free at once.
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
    """How long flow runs have held a slot so far, and how long ended ones that ran held theirs. Pure.

    The server's clock may be ahead of this machine's: no slot is held for less than 0 s.
    """
    begun = [run.start_time for run in holding if run.start_time is not None]
    return [
        *(max((now - at).total_seconds(), 0.0) for at in begun),
        *(run.total_run_time.total_seconds() for run in ended if run.run_count),
    ]
