"""Makes the deployments of scheduled retrainings, one for each model, from the model's retrain.toml."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import State
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.events import DeploymentEventTrigger
from prefect.exceptions import ObjectNotFound
from prefect.utilities.callables import parameter_schema

from segue.clock import SystemClock
from segue.errors import OrchestratorError
from segue.flows.retrain import retrain
from segue.flows.watch import watch
from segue.prefect.api import SILENCE, create_flow_run, read_deployment, require_silence
from segue.prefect.slots.slot_ticks import require_cron
from segue.prefect.ui.artifacts import LiveArtifact, artifact_key
from segue.retraining.history import Models
from segue.retraining.pages import history_page
from segue.retraining.slots import run_id_of
from segue.retraining.spec import RetrainSpec

FLOW = "retrain"
ENTRYPOINT = "segue.flows.retrain.retrain"
WATCH = "watch"
WATCH_ENTRYPOINT = "segue.flows.watch.watch"
POOL = "parents"
_LOOK_SECONDS = 1.0


def deploy(client: SyncPrefectClient, spec: RetrainSpec, *, file: str, working_dir: Path, active: bool) -> UUID:
    """Create or update the deployment `retrain/NAME` on the pool `parents`, with its schedule. Return its id.

    `file` is the path of retrain.toml, relative to `working_dir`. The flow runs in the folder `working_dir`.

    Raises:
        OrchestratorError: the pool `parents` does not exist.
        SpecError: the schedule is not a cron expression.
    """
    schedules = []
    if spec.schedule is not None:
        schedules = [DeploymentScheduleCreate(schedule=require_cron(spec), active=active, slug=spec.name)]
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        fix = "create the pools with `sh deployments/create-pools.sh`; `segue init` writes this script."
        raise OrchestratorError(what=f"there is no work pool {POOL!r} on this Prefect server.", fix=fix) from None
    common: dict[str, Any] = {
        "name": spec.name,
        "work_pool_name": POOL,
        "tags": ["segue"],
        "job_variables": {"working_dir": str(working_dir)},
        "parameters": {"file": file},
        "enforce_parameter_schema": True,
    }
    deployment_id = client.create_deployment(
        flow_id=client.create_flow(retrain),
        entrypoint=ENTRYPOINT,
        description=f"Retrains the model {spec.name} on its schedule.",
        schedules=schedules,
        parameter_openapi_schema=parameter_schema(retrain).model_dump_for_openapi(),
        **common,
    )
    _deploy_watch(client, spec, common, active=active)
    return deployment_id


def _deploy_watch(client: SyncPrefectClient, spec: RetrainSpec, common: Mapping[str, Any], *, active: bool) -> None:
    """Create or update the deployment `watch/NAME`, with its event.

    If the specification has no [trigger], delete the deployment.
    """
    if spec.trigger is None:
        with suppress(ObjectNotFound):
            client.delete_deployment(client.read_deployment_by_name(f"{WATCH}/{spec.name}").id)
        return
    every = IntervalSchedule(interval=timedelta(minutes=spec.trigger.every_minutes))
    deployment_id = client.create_deployment(
        flow_id=client.create_flow(watch),
        entrypoint=WATCH_ENTRYPOINT,
        description=f"Begins slots of {spec.name} if new data has arrived or data in service has drifted.",
        schedules=[DeploymentScheduleCreate(schedule=every, active=active, slug=spec.name)],
        parameter_openapi_schema=parameter_schema(watch).model_dump_for_openapi(),
        **common,
    )
    client.delete_resource_owned_automations(f"prefect.deployment.{deployment_id}")
    if spec.trigger.event is not None:
        found = DeploymentEventTrigger(name=f"segue-watch-{spec.name}", expect={spec.trigger.event}, enabled=active)
        found.set_deployment_id(deployment_id)
        client.create_automation(found.as_automation())


def start_slot(client: SyncPrefectClient, spec: RetrainSpec, slot: datetime) -> UUID:
    """Create a flow run of the deployment for this slot, and return its id.

    Raises:
        OrchestratorError: the retraining has no deployment on this server.
    """
    deployment = read_deployment(client, f"{FLOW}/{spec.name}", fix="run `segue retrain deploy`.")
    return create_flow_run(
        client,
        deployment.id,
        parameters=deployment.parameters | {"slot": slot.isoformat()},
        name=run_id_of(spec, slot),
        tags=["segue", run_id_of(spec, slot)],
    )


def wait_for(client: SyncPrefectClient, flow_run_id: UUID) -> State:
    """Wait until a flow run ends or waits for a person. Return its state.

    If the server does not answer, continue to wait.

    Raises:
        OrchestratorError: the server refuses to answer.
    """
    while True:
        try:
            state = client.read_flow_run(flow_run_id).state
        except SILENCE as error:
            require_silence(error)
            state = None
        if state is not None and (state.is_final() or state.is_paused()):
            return state
        SystemClock().sleep(_LOOK_SECONDS)


def publish_history(client: SyncPrefectClient, models: Models, *, zone: tzinfo) -> None:
    """Publish a model's history after a person has changed the version in service.

    Raises:
        httpx.HTTPError, PrefectHTTPStatusError: the history was not published. The next slot publishes it.
    """
    artifact = LiveArtifact(artifact_key(f"model-{models.name}"), kind="markdown")
    artifact.write(client, history_page(models, zone=zone), description=f"History of {models.name}")
