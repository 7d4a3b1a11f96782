"""Flow runs that were cancelled before their process began: nothing else ends them, and each keeps a slot."""

from __future__ import annotations

from datetime import datetime, timedelta

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelled

from segue.prefect.api import SILENCE
from segue.prefect.recovery.look import Looked

_PATIENCE = timedelta(seconds=120)
"""How long the worker of a flow run may take to end what it has started for it."""
_PAGE = 200
_NEVER_BEGUN = FlowRunFilter(
    tags=FlowRunFilterTags(all_=["segue"]),
    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
    start_time=FlowRunFilterStartTime(is_null_=True),
)


def end_never_begun(client: SyncPrefectClient, *, now: datetime) -> Looked:
    """Set to Cancelled segue's flow runs that are Cancelling and have never run. Returns what was done about each.

    A worker takes a flow run, and its process is still starting when it is cancelled: the worker finds nothing to end,
    the engine then refuses to run it and dies, and Prefect leaves it Cancelling. `now` is the time of the server. A
    process that begins later finds its flow run ended, and ends.
    """
    done: list[str] = []
    try:
        for run in client.read_flow_runs(flow_run_filter=_NEVER_BEGUN, limit=_PAGE):
            if run.state is None or now - run.state.timestamp < _PATIENCE:
                continue
            client.set_flow_run_state(run.id, Cancelled(message=run.state.message), force=True)
            done.append(f"{run.name}: it was cancelled before its process began, and is Cancelled now")
    except SILENCE as error:
        why = f"cancelled flow runs were not looked at: {type(error).__name__}: {error}"
        return Looked(done=tuple(done), troubles=(why,))
    return Looked(done=tuple(done))
