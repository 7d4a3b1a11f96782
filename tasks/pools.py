"""The pools of a run on the Prefect server: what is wrong with them, and why an attempt does not start."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.runtime import flow_run
from segue.tasks.prefect_api import SILENCE, quick_client, require_silence

from segue.clock import SystemClock
from segue.errors import OrchestratorError
from segue.spec import RunSpec

log = logging.getLogger(__name__)

SERVERS = SpecifierSet(">=3.4,<4")
"""Versions of the Prefect server that segue works with."""
_SCHEDULED_WITHIN = timedelta(minutes=1)
"""How long a new deployment may have no flow runs. The server looks at new schedules every 5 s."""
_DEPLOY = (
    "run `prefect --no-prompt deploy --all` in the folder of prefect.yaml (`segue init` writes one), or name another "
    "deployment under [pools] in the run spec."
)


@dataclass(frozen=True)
class PoolState:
    """A deployment's work pool and queue, as the server shows them."""

    deployment: str
    pool: str
    queue: str | None = None
    is_paused: bool = False
    is_queue_paused: bool = False
    limit: int | None = None
    """Flow runs that may run at once: the smallest limit of pool, queue and deployment; None without one."""
    pool_limit: int | None = None
    """The limit of the pool alone."""
    workers: int | None = None
    """Workers online; None for a pool that needs none."""
    known_workers: int | None = None
    """Workers that the pool ever had, as far as the server knows; None for a pool that needs none."""
    unknown_variables: tuple[str, ...] = ()
    """Job variables of the deployment that the pool's template does not have."""

    @property
    def blocker(self) -> str | None:
        """Why flow runs of the deployment do not start now; None if they do as soon as there is a machine."""
        if self.is_paused:
            return f"the pool {self.pool} is paused"
        if self.is_queue_paused:
            return f"the queue {self.queue} of the pool {self.pool} is paused"
        if self.workers == 0:
            return f"the pool {self.pool} has no worker"
        return f"the concurrency limit of the pool {self.pool} is 0" if self.limit == 0 else None


def require_pools(spec: RunSpec, *, parent_pool: str | None = None, is_new: bool = True) -> None:
    """Refuse a run that its pools cannot run, before anything of it is started.

    `parent_pool` is the pool on which the run's parent runs. A run that has begun (not `is_new`) is refused only if a
    deployment does not exist: a pool may be paused, or between two workers. An API that does not answer is not asked
    again here; the first submission waits for it.

    Raises:
        OrchestratorError: with the pool, the reason and the fix; or the API refuses access.
    """
    wanted = dict.fromkeys([*(pool.deployment for pool in spec.pools.spot), spec.pools.on_demand])
    try:
        with quick_client() as client:
            states = [read_pool(client, name) for name in wanted]
            if is_new:
                require_server_version(client.api_version())
                refuse_unusable(states, parent_pool=parent_pool)
                warn_of_idle_schedule(client, now=SystemClock().now())
    except SILENCE as error:
        require_silence(error)
        return
    for state in states:
        if state.blocker is not None:
            log.warning("segments will wait deployment=%s reason=%s", state.deployment, state.blocker)


def own_pool() -> str | None:
    """The pool on which the current flow run runs; None outside of one, and when the API does not answer."""
    if flow_run.id is None:
        return None
    try:
        with quick_client() as client:
            return client.read_flow_run(UUID(str(flow_run.id))).work_pool_name
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("the parent's pool is not known reason=%s", type(error).__name__)
        return None


def refuse_unusable(states: Iterable[PoolState], *, parent_pool: str | None) -> None:
    """Refuse pools on which no segment can ever start. Pure. A paused pool may be resumed, and is not refused.

    Raises:
        OrchestratorError: with the pool, the reason and the fix.
    """
    for state in states:
        if state.unknown_variables:
            names = ", ".join(state.unknown_variables)
            raise OrchestratorError(
                what=f"the deployment {state.deployment!r} sets job variables that the pool {state.pool} does not have "
                f"({names}).",
                fix="correct their names in prefect.yaml, or give the pool the template of `segue init`.",
            )
        if state.known_workers == 0:  # One that went offline comes back, with its machine.
            raise OrchestratorError(
                what=f"the pool {state.pool} of the deployment {state.deployment!r} has no worker and never had one.",
                fix=f"start one with `prefect worker start --pool {state.pool}`.",
            )
        # The parent holds a slot of its pool for as long as the run lasts.
        is_shared = state.pool == parent_pool and state.pool_limit is not None and state.pool_limit < 2
        if is_shared or state.limit == 0:
            needed = 2 if is_shared else 1
            taken = ", and the run's parent is one of them" if is_shared else ""
            most = f"at most {state.limit} flow runs at once{taken}"
            raise OrchestratorError(
                what=f"the pool {state.pool} of the deployment {state.deployment!r} runs {most}.",
                fix=f"raise its concurrency limit to {needed} or more, or run the parent on a pool of its own.",
            )


def warn_of_idle_schedule(client: SyncPrefectClient, *, now: datetime) -> None:
    """Log a warning if the schedule of `recover` is active, but the server creates no flow runs for it."""
    with suppress(ObjectNotFound):
        deployment = client.read_deployment_by_name("recover/recover")
        is_new = deployment.created is None or now - deployment.created < _SCHEDULED_WITHIN
        if is_new or not any(schedule.active for schedule in deployment.schedules):
            return
        due = client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            flow_run_filter=FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(after_=now)),
            limit=1,
        )
        if not due:
            log.warning(
                "the server creates no flow runs for the schedule of recover/recover: a parent that dies is not started"
                " again. Fix: look into the server's log; for `bulk DML` there, install `sqlalchemy<2.0.38` beside it."
            )


def require_server_version(found: str) -> None:
    """Refuse a server of a version that segue does not work with. A version that cannot be read is accepted.

    Raises:
        OrchestratorError: with both versions.
    """
    try:
        version = Version(found)
    except InvalidVersion:
        return
    if not SERVERS.contains(version, prereleases=True):
        raise OrchestratorError(
            what=f"the Prefect server has version {found}; segue works with {SERVERS}.",
            fix="use a server of the same version as the installed prefect.",
        )


def read_pool(client: SyncPrefectClient, deployment: str) -> PoolState:
    """The state of a deployment's pool.

    Raises:
        OrchestratorError: there is no such deployment, or it has no pool.
    """
    try:
        found = client.read_deployment_by_name(deployment)
    except ObjectNotFound:
        what = f"there is no deployment {deployment!r} on the Prefect server."
        raise OrchestratorError(what=what, fix=_DEPLOY) from None
    if found.work_pool_name is None:
        raise OrchestratorError(
            what=f"the deployment {deployment!r} has no work pool on the Prefect server.",
            fix="create the pool, then run `prefect --no-prompt deploy --all` again.",
        )
    try:
        return _state_of(client, deployment, found, found.work_pool_name)
    except ObjectNotFound:
        what = f"the pool {found.work_pool_name!r} or the queue of the deployment {deployment!r} does not exist."
        raise OrchestratorError(what=what, fix="create it, then deploy again.") from None


def _state_of(client: SyncPrefectClient, name: str, deployment: DeploymentResponse, pool_name: str) -> PoolState:
    pool = client.read_work_pool(pool_name)
    queue = None
    if deployment.work_queue_name is not None:
        queue = client.read_work_queue_by_name(deployment.work_queue_name, work_pool_name=pool_name)
    of_deployment = deployment.global_concurrency_limit.limit if deployment.global_concurrency_limit else None
    limits = [pool.concurrency_limit, queue.concurrency_limit if queue else None, of_deployment]
    workers = known_workers = None
    if not pool.is_push_pool and not pool.is_managed_pool:
        found = client.read_workers_for_work_pool(pool_name)
        workers, known_workers = sum(worker.status == "ONLINE" for worker in found), len(found)
    known = pool.base_job_template.get("variables", {}).get("properties")
    unknown = sorted(set(deployment.job_variables or {}) - set(known)) if known is not None else []
    return PoolState(
        deployment=name,
        pool=pool_name,
        queue=queue.name if queue else None,
        is_paused=pool.is_paused,
        is_queue_paused=queue is not None and queue.is_paused,
        limit=min((limit for limit in limits if limit is not None), default=None),
        pool_limit=pool.concurrency_limit,
        workers=workers,
        known_workers=known_workers,
        unknown_variables=tuple(unknown),
    )
