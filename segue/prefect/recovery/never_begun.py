"""The end of flow runs that were cancelled before their process began. Prefect leaves these flow runs in the state
Cancelling, in which they hold a slot."""

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
"""Time that the worker of a flow run has to end the process or job of the flow run."""
_PAGE = 200
_NEVER_BEGUN = FlowRunFilter(
    tags=FlowRunFilterTags(all_=["segue"]),
    state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING])),
    start_time=FlowRunFilterStartTime(is_null_=True),
)


def end_never_begun(client: SyncPrefectClient, *, now: datetime) -> Looked:
    """Set the state of segue's flow runs that are Cancelling and have never run to Cancelled. Return a text about each
    flow run.

    These flow runs were cancelled after a worker had taken them, while their processes were still starting. The worker
    then finds no process to end, the engine refuses to run the flow run, and Prefect leaves the flow run in the state
    Cancelling. `now` is the server's time. If the process of a flow run begins later, it finds that the flow run has
    ended, and ends too.
    """
    done: list[str] = []
    try:
        for run in client.read_flow_runs(flow_run_filter=_NEVER_BEGUN, limit=_PAGE):
            if run.state is None or now - run.state.timestamp < _PATIENCE:
                continue
            client.set_flow_run_state(run.id, Cancelled(message=run.state.message), force=True)
            done.append(f"{run.name}: cancelled before its process began; its state is Cancelled now")
    except SILENCE as error:
        why = f"cancelled flow runs could not be read: {type(error).__name__}: {error}"
        return Looked(done=tuple(done), troubles=(why,))
    return Looked(done=tuple(done))
