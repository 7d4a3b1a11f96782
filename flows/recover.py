"""Defines the flow `recover`, which starts the dead parents of open runs again, on a schedule."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from prefect import flow, get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.runtime import deployment, flow_run
from prefect.states import Completed, Failed

from segue.prefect.api import SILENCE
from segue.prefect.parent_clock import clock_of
from segue.prefect.recovery.known_stores import known_stores
from segue.prefect.recovery.look import end_never_begun, look_at, look_at_all
from segue.prefect.recovery.schedule import end_late_starts, interval_seconds
from segue.spec import StoreSpec


@flow(name="recover", retries=0, validate_parameters=True, persist_result=False)
def recover(stores: list[StoreSpec] | None = None, *, take_over: bool = False) -> Any:
    """Find open runs without a living parent, and start their parents again.

    The flow may run at any time, and several runs of this flow may run in parallel. If `stores` is not given, the flow
    checks every store that a parent or a retraining of this Prefect server used in the last 30 days. The flow recovers
    runs that another server started only if `take_over` is set.
    """
    with get_client(sync_client=True) as client:
        every_seconds = interval_seconds(client)
        known = known_stores(client, clock=clock_of(client)) if stores is None else stores
        look = partial(look_at, take_over=take_over, interval_seconds=every_seconds, is_asked_for=take_over)
        found = look_at_all(known, look) + end_never_begun(client, now=clock_of(client).now())
        _end_late_starts(client)
    text = "; ".join(found.lines)
    return Failed(message=text) if found.troubles else Completed(message=text)


def _end_late_starts(client: SyncPrefectClient) -> None:
    """End late starts, which accumulate while no worker runs. Each late start would also end itself."""
    own, due = deployment.id, flow_run.scheduled_start_time
    if own is None or due is None:
        return
    try:
        end_late_starts(client, UUID(str(own)), due=due)
    except SILENCE as error:
        get_run_logger().warning("could not cancel late flow runs of recover reason=%s", type(error).__name__)
