"""Slots that data begins: the look for them, and the start of their flow runs."""

from __future__ import annotations

from datetime import datetime

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound
from segue.tasks.prefect_api import create_flow_run

from segue.errors import OrchestratorError
from segue.retraining.models import ModelsLog
from segue.retraining.slots import run_id_of, store_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.triggers.look import look, unstarted
from segue.stores import open_store


@task(name="look-for-triggers", retries=0, cache_policy=NO_CACHE)
def look_for_triggers(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Compare the files of the window, and those of data in service, with what slots have seen; what was found."""
    log = _log(spec)
    log.store.check()
    return look(spec, log, now=now).lines


@task(name="start-triggered", retries=0, cache_policy=NO_CACHE)
def start_triggered(spec: RetrainSpec, *, now: datetime) -> tuple[str, ...]:
    """Start the flow runs of slots that were asked for and have not begun, each once. What was started.

    Raises:
        OrchestratorError: the retraining has no deployment; they are started by the next look.
    """
    log = _log(spec)
    waiting = unstarted(log.read(), now=now)
    if not waiting:
        return ()
    name = f"retrain/{spec.name}"
    with get_client(sync_client=True) as client:
        try:
            deployment = client.read_deployment_by_name(name)
        except ObjectNotFound:
            what = f"there is no deployment {name} on this Prefect server."
            raise OrchestratorError(what=what, fix="run `segue retrain deploy`.") from None
        for trigger in waiting:
            run_id = run_id_of(spec, trigger.slot)
            create_flow_run(
                client,
                deployment.id,
                parameters=deployment.parameters | {"slot": trigger.slot.isoformat()},
                name=run_id,
                tags=["segue", run_id],
                # Until the slot has begun, each look asks for it: the server knows that it has the flow run.
                idempotency_key=f"{log.log_id}:{run_id}",
            )
    return tuple(f"started {run_id_of(spec, trigger.slot)}" for trigger in waiting)


def _log(spec: RetrainSpec) -> ModelsLog:
    place = store_of(spec)
    return ModelsLog(open_store(place), spec.name, spec=place)
