"""Pools and deployments of a local Prefect, registered through its API from the files that `segue init` writes.

Through the API it takes half a second; `prefect deploy --all` takes seven, and needs a prefect.yaml in the folder.
"""

from __future__ import annotations

import importlib
import json
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema
from segue.flows.recover import recover

from segue.clock import SystemClock

TEMPLATES = files("segue.deployments") / "templates"
POOLS = ("spot", "on-demand", "parents")

_ALSO_BY_HAND = ("verify-resume", "recover")
"""Deployments with a schedule that a local Prefect has, too."""
_LOOKS_EVERY = timedelta(seconds=60)
"""Time between two looks for dead parents: each is a process of about 2.5 s of one core, on a machine that trains."""

UNFINISHED = (StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING)
"""States of flow runs that have not ended."""


@dataclass(frozen=True)
class Registered:
    """One deployment of prefect.yaml."""

    name: str
    entrypoint: str
    pool: str
    description: str
    tags: tuple[str, ...]
    command: str | None
    """What starts its flow runs; None: the command of the pool."""


def read_deployments(text: str) -> list[Registered]:
    """The deployments of a prefect.yaml that a local Prefect has, without their schedules and parameters.

    Those that only a schedule starts are left out, except the one that starts dead parents again.
    """
    return [
        Registered(
            name=found["name"],
            entrypoint=found["entrypoint"],
            pool=found["work_pool"]["name"],
            description=found["description"],
            tags=tuple(found["tags"]),
            command=found["work_pool"].get("job_variables", {}).get("command"),
        )
        for found in yaml.safe_load(text)["deployments"]
        if "schedules" not in found or found["name"] in _ALSO_BY_HAND
    ]


def process_template(working_dir: Path) -> dict[str, Any]:
    """The base job template of a process pool whose flow runs start in `working_dir`."""
    template: dict[str, Any] = json.loads((TEMPLATES / "process.json").read_text(encoding="utf-8"))
    template["variables"]["properties"]["working_dir"]["default"] = str(working_dir)
    return template


def create_pools(client: SyncPrefectClient, *, working_dir: Path) -> None:
    """Create the process pools, or give those that exist the current template and folder."""
    template = process_template(working_dir)
    for pool in POOLS:
        try:
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))
        except ObjectAlreadyExists:
            client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))


def register_deployments(client: SyncPrefectClient) -> None:
    """Create or update the deployments of the packaged prefect.yaml. Only `recover` has its schedule."""
    looks = IntervalSchedule(interval=_LOOKS_EVERY, anchor_date=SystemClock().now())
    for deployment in read_deployments((TEMPLATES / "prefect.yaml").read_text(encoding="utf-8")):
        module, _, name = deployment.entrypoint.rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=deployment.name,
            entrypoint=deployment.entrypoint,
            work_pool_name=deployment.pool,
            description=deployment.description,
            tags=list(deployment.tags),
            job_variables={"command": deployment.command} if deployment.command is not None else {},
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            enforce_parameter_schema=True,
            schedules=[DeploymentScheduleCreate(schedule=looks, slug="recover")] if flow is recover else None,
        )


def crash_leftovers(client: SyncPrefectClient) -> None:
    """Set flow runs of an earlier start in the same folder to Crashed: their processes ended with that server."""
    with suppress(ObjectNotFound):  # All that were scheduled ahead go with it, by one request.
        client.delete_deployment(client.read_deployment_by_name("recover/recover").id)
    unfinished = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNFINISHED))))
    while runs := client.read_flow_runs(flow_run_filter=unfinished):
        for run in runs:
            client.set_flow_run_state(run.id, Crashed(message="the local Prefect that ran it has ended"), force=True)
