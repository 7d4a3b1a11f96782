"""The queues of a run's pools, for a decision or for an attempt that waits for its slot."""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ObjectNotFound

from segue.policy.queueing import UNLIMITED, Queues, Slots, queue_seconds
from segue.prefect.api import SILENCE, quick_client
from segue.prefect.parent_clock import parent_clock, time_at
from segue.prefect.queues.pool_slots import Limit, count_waiting, read_limit, without_own
from segue.prefect.queues.shared import SharedReadings
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_SHARED_SECONDS = 60.0
"""Highest age, in seconds, at which a waiting attempt may use a pool's limit that another parent of this process has
read."""

# Keys: the URL of the API and the name of the deployment.
_limits: SharedReadings[Limit] = SharedReadings(period_seconds=_SHARED_SECONDS)


def queues_of_run(spec: RunSpec) -> Queues:
    """The queues of the run's pools, for a decision. The next attempt is at the end of each queue. The result is empty
    if the API does not answer."""
    if spec.deadline is None:
        return Queues()
    now = parent_clock().now()
    on_demand = _slots_for(spec, spec.pools.on_demand, now=now)
    spot = [_slots_for(spec, pool.deployment, now=now) for pool in spec.pools.spot]
    return Queues.of(spot=min(spot, key=queue_seconds, default=UNLIMITED), on_demand=on_demand, now=now)


def _slots_for(spec: RunSpec, deployment: str, *, now: datetime) -> Slots:
    """The slots for the next attempt. If the API does not answer, the slots are unlimited, so that only other pools
    count."""
    try:
        with quick_client() as client:
            return without_own(client, read_limit(client, deployment, now=now), run_id=spec.run_id, now=now)
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("the queue of a pool could not be read deployment=%s reason=%s", deployment, type(error).__name__)
        return UNLIMITED


def queues_of_attempt(
    client: SyncPrefectClient, flow_run_id: UUID, *, run_id: str, deployment: str, on_demand: str
) -> Queues:
    """The queues of an attempt that was submitted to a spot pool, with the earlier flow runs that it waits for.

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
