"""Recovery of slots of scheduled retrainings whose flow run has died: it is started again, and goes on."""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled
from segue.tasks.prefect_api import is_by_a_person
from segue.tasks.recovery import known_server_id

from segue.errors import OrchestratorError
from segue.records import ParentRecord
from segue.retraining.models import ModelsLog
from segue.retraining.slots import model_and_slot_of
from segue.runlog.parents import remove_parent
from segue.stores.base import Store

_MOST_RESTARTS = 5


def is_slot(record: ParentRecord) -> bool:
    """Whether a heartbeat is a slot's, and not that of a run's parent."""
    return model_and_slot_of(record.run_id) is not None


def recover_slot(client: SyncPrefectClient, store: Store, dead: ParentRecord, *, take_over: bool = False) -> str:
    """Start the flow run of a slot again. Returns what was done. Safe at any time, from several processes.

    A slot that was started again five times without coming to its end is given up, and a person is needed.

    Raises:
        OrchestratorError: it cannot be started again.
        StoreReadError, StoreWriteError: a retry is safe.
    """
    known = model_and_slot_of(dead.run_id)
    assert known is not None
    model, slot = known
    state = ModelsLog(store, model).read().slots.get(slot)
    if state is not None and not state.is_open:
        remove_parent(store, dead)
        return "it had ended"
    if dead.server_id and dead.server_id != known_server_id() and not take_over:
        return "its flow run was on another Prefect server; `segue recover --take-over` starts it here"
    if dead.flow_run_id is None:
        remove_parent(store, dead)
        return "it was started by hand, and is not started again"
    before = _read(client, dead)
    restarts = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", dead.run_id])),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
    )
    if before.state is not None and is_by_a_person(before.state):
        remove_parent(store, dead)
        return "its flow run was cancelled"
    if restarts and (restarts[0].state is None or not restarts[0].state.is_final()) and restarts[0].id != before.id:
        return "it will be started"
    if len(restarts) >= _MOST_RESTARTS:
        fix = "read the log of its newest flow run, correct the cause, and start the slot again: `segue retrain start`."
        raise OrchestratorError(what=f"the slot was started again {len(restarts)} times, and died each time.", fix=fix)
    return _start_again(client, before, dead, slot.isoformat())


def _read(client: SyncPrefectClient, dead: ParentRecord) -> FlowRun:
    try:
        return client.read_flow_run(UUID(dead.flow_run_id))
    except ObjectNotFound:
        raise OrchestratorError(
            what=f"the flow run of {dead.run_id} was deleted.", fix="start the slot again: `segue retrain start`."
        ) from None


def _start_again(client: SyncPrefectClient, before: FlowRun, dead: ParentRecord, slot: str) -> str:
    if before.deployment_id is None:
        fix = "deploy the retraining: `segue retrain deploy`, and start the slot again."
        raise OrchestratorError(what=f"the flow run of {dead.run_id} has no deployment.", fix=fix)
    client.create_flow_run_from_deployment(
        before.deployment_id,
        parameters=before.parameters | {"slot": slot},
        state=Scheduled(),
        name=before.name,
        tags=["segue", dead.run_id],
        idempotency_key=f"{dead.run_id}:{dead.parent_id}",
    )
    return "its flow run was started again"
