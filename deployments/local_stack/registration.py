"""Registers pools and deployments at a local Prefect server, from the files that `segue init` writes.

The registration through the API takes three seconds. If the server already has the pools and deployments, the
registration takes almost no time. `prefect deploy --all` takes seven seconds, and needs a prefect.yaml in the folder.
"""

from __future__ import annotations

import hashlib
import importlib
import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from prefect import Flow
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed
from prefect.utilities.callables import parameter_schema

from segue.clock import SystemClock
from segue.flows.recover import recover

TEMPLATES = files("segue.deployments") / "templates"

_ALSO_BY_HAND = ("verify-resume", "recover")
"""Scheduled deployments that `segue run` also creates on a local Prefect server."""
_LOOKS_EVERY = timedelta(seconds=60)
"""Interval between two checks for dead parents. Each check takes about 2.5 s of one core on the machine that trains."""

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
    """The command that starts the flow runs. If it is None, the command of the pool is used."""


def read_deployments(text: str) -> list[Registered]:
    """Return the deployments of a prefect.yaml for a local Prefect server, without their schedules and parameters.

    The result does not contain deployments that only a schedule starts, except `recover` and `verify-resume`.
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
    """Return the base job template of a process pool whose flow runs start in `working_dir`."""
    template: dict[str, Any] = json.loads((TEMPLATES / "process.json").read_text(encoding="utf-8"))
    template["variables"]["properties"]["working_dir"]["default"] = str(working_dir)
    return template


def create_pools(client: SyncPrefectClient, pools: Iterable[str], *, working_dir: Path) -> None:
    """Create the process pools. If a pool exists, update its template and its folder."""
    template = process_template(working_dir)
    known = {pool.name for pool in client.read_work_pools()}
    for pool in pools:
        if pool in known:
            client.update_work_pool(pool, WorkPoolUpdate(base_job_template=template))
        else:
            client.create_work_pool(WorkPoolCreate(name=pool, type="process", base_job_template=template))


class Described(NamedTuple):
    """A deployment with its flow."""

    deployment: Registered
    flow: Flow[..., Any]
    schema: dict[str, Any]
    """The schema of the flow's parameters."""

    @property
    def version(self) -> str:
        """The version of the deployment: the version of segue, and a digest of the registered values."""
        facts = json.dumps([asdict(self.deployment), self.schema], sort_keys=True)
        return f"{version('segue')}-{hashlib.sha256(facts.encode()).hexdigest()[:12]}"

    def create(self, client: SyncPrefectClient, schedules: Sequence[DeploymentScheduleCreate] = ()) -> None:
        """Create or update the deployment."""
        found = self.deployment
        client.create_deployment(
            flow_id=client.create_flow(self.flow),
            name=found.name,
            version=self.version,
            entrypoint=found.entrypoint,
            work_pool_name=found.pool,
            description=found.description,
            tags=list(found.tags),
            job_variables={"command": found.command} if found.command is not None else {},
            parameter_openapi_schema=self.schema,
            enforce_parameter_schema=True,
            schedules=list(schedules) or None,
        )


def describe_deployments() -> list[Described]:
    """Import the flows of the packaged prefect.yaml. Return its deployments with their flows."""
    found = []
    for deployment in read_deployments((TEMPLATES / "prefect.yaml").read_text(encoding="utf-8")):
        module, _, name = deployment.entrypoint.rpartition(".")
        flow = getattr(importlib.import_module(module), name)
        found.append(Described(deployment, flow, parameter_schema(flow).model_dump_for_openapi()))
    return found


def register_deployments(client: SyncPrefectClient, described: Iterable[Described]) -> bool:
    """Create or update the deployments that differ on the server, without schedules. Return True if any differed."""
    known = {(found.entrypoint, found.name, found.version) for found in client.read_deployments()}
    missing = [
        each
        for each in described
        if each.flow is not recover and (each.deployment.entrypoint, each.deployment.name, each.version) not in known
    ]
    for each in missing:
        each.create(client)
    return bool(missing)


def schedule_recovery(client: SyncPrefectClient, described: Iterable[Described]) -> None:
    """Create or update the deployment of `recover`, with a schedule that starts now."""
    looks = IntervalSchedule(interval=_LOOKS_EVERY, anchor_date=SystemClock().now())
    for each in described:
        if each.flow is recover:
            each.create(client, [DeploymentScheduleCreate(schedule=looks, slug="recover")])


def crash_leftovers(client: SyncPrefectClient) -> None:
    """Set unfinished flow runs of an earlier server in this folder to Crashed, because their processes have ended."""
    with suppress(ObjectNotFound):  # The request also deletes scheduled runs.
        client.delete_deployment(client.read_deployment_by_name("recover/recover").id)
    unfinished = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=list(UNFINISHED))))
    while runs := client.read_flow_runs(flow_run_filter=unfinished):
        for run in runs:
            client.set_flow_run_state(
                run.id, Crashed(message="the local Prefect server of this flow run has ended"), force=True
            )
