"""Reads the state of a run's pools on the Prefect server, their problems, and the reasons why an attempt waits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from datetime import datetime, timedelta
from typing import Any

from prefect.client.base import ServerType
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
)
from prefect.client.schemas.objects import WorkPool, WorkQueue, WorkQueueStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.exceptions import ObjectNotFound
from prefect.utilities.collections import set_in_dict
from prefect.utilities.templating import apply_values

from segue.clock import SystemClock
from segue.doctor.check import CheckOutcome, Result
from segue.doctor.pools.judgement import refusals, refusals_of_parents, warnings
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.queue_judgement import blocker
from segue.doctor.pools.segment_job import PoolJob, job_of
from segue.doctor.server_judgement import Recovery, judge_recovery, judge_version
from segue.errors import OrchestratorError, QueueMissingError
from segue.launch.registry import require_clusters
from segue.prefect.api import SILENCE, own_flow_run_id, quick_client, read_deployment, require_silence
from segue.prefect.kubernetes_nodes import with_nodes
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_SEEN_WITHIN = timedelta(minutes=1)
"""Age up to which a new queue need not have been polled by a worker."""
_SCHEDULED_WITHIN = timedelta(minutes=1)
"""If a deployment is newer than this time, it may have no flow runs. The server schedules flow runs every 5 s."""


def require_pools(
    spec: RunSpec, *, parent_pool: str | None = None, parent_queue: str | None = None, is_new: bool = True
) -> None:
    """Refuse a run that its pools cannot run, before any flow run is started. Log warnings about the pools.

    The run's parent runs on `parent_pool`, in `parent_queue`. If `is_new` is False, the run has already begun, and only
    a missing deployment is a reason to refuse it. The pools of this run may be paused or have no worker for some time.
    If the API does not answer, nothing is checked, and the first submission waits for the API.

    Raises:
        OrchestratorError: a pool cannot run the run, or the API refuses access.
        SlurmSetupError: the run trains on a Slurm cluster that cannot run the trainers, and Slurm's commands are
            installed on this machine.
        RaySetupError: the run trains on a Ray cluster that cannot run the trainers, and Ray is installed on this
            machine.
    """
    if is_new:
        require_clusters(spec)
    wanted = dict.fromkeys([*(pool.deployment for pool in spec.pools.spot), spec.pools.on_demand])
    try:
        with quick_client() as client:
            states = [read_pool(client, name) for name in wanted]
            if is_new:
                require_server_version(server_version(client))
                needs = needs_of(spec, parent_pool=parent_pool, parent_queue=parent_queue)
                refuse_unusable(states, needs)
                warn_of_idle_schedule(client, now=SystemClock().now())
    except SILENCE as error:
        require_silence(error)
        return
    if is_new:
        warn_of_shortcomings(states, needs)
    for state in states:
        why = blocker(state)
        if why is not None:
            log.warning("segments will wait deployment=%s reason=%s", state.deployment, why)


def own_pool() -> tuple[str | None, str | None]:
    """Return the pool and the queue of the current flow run. If there is no flow run, or if the server does not answer,
    both are None."""
    flow_run_id = own_flow_run_id()
    if flow_run_id is None:
        return None, None
    try:
        with quick_client() as client:
            own = client.read_flow_run(flow_run_id)
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("the pool of the parent could not be read reason=%s", type(error).__name__)
        return None, None
    return own.work_pool_name, own.work_queue_name


def needs_of(spec: RunSpec, *, parent_pool: str | None, parent_queue: str | None) -> Needs:
    """Return what a run requires of its pools."""
    return Needs(
        grace_seconds=spec.grace_seconds,
        parent_pool=parent_pool,
        parent_queue=parent_queue,
        is_store_remote=spec.store.is_remote,
    )


def refuse_unusable(states: Iterable[PoolState], needs: Needs) -> None:
    """Refuse pools on which segments cannot run correctly. A paused pool is accepted. The function is pure.

    Raises:
        OrchestratorError: a pool is refused.
    """
    _refuse(refusals(list(states), needs))


def refuse_unusable_parent(state: PoolState) -> None:
    """Refuse a pool on which parents cannot run correctly. Checks for training do not apply, because parents do not
    train.

    Raises:
        OrchestratorError: the pool is refused.
    """
    _refuse(refusals_of_parents([state]))


def warn_of_shortcomings(states: Sequence[PoolState], needs: Needs) -> None:
    """Log a warning about each problem of these pools, and of the cluster's nodes if this process can read them."""
    for result in warnings(with_nodes(states), needs):
        log.warning("%s. Fix: %s", result.reason, result.fix)


def warn_of_idle_schedule(client: SyncPrefectClient, *, now: datetime) -> None:
    """Log a warning if the active schedule of `recover` starts no flow runs, or may soon start no flow runs."""
    found = recovery_of(client, now=now)
    if found in (Recovery.IDLE, Recovery.LIMITED):
        result = judge_recovery(found)
        log.warning("%s. Fix: %s", result.reason, result.fix)


def recovery_of(client: SyncPrefectClient, *, now: datetime) -> Recovery:
    """Return the state of the deployment `recover` and of its schedule, whose flow runs start dead parents again."""
    try:
        deployment = client.read_deployment_by_name("recover/recover")
    except ObjectNotFound:
        return Recovery.MISSING
    if deployment.paused:
        return Recovery.PAUSED
    if not any(schedule.active for schedule in deployment.schedules):
        return Recovery.INACTIVE
    if deployment.global_concurrency_limit is not None:
        return Recovery.LIMITED
    if deployment.created is None or now - deployment.created < _SCHEDULED_WITHIN:
        return Recovery.ALIVE
    due = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
        flow_run_filter=FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(after_=now)),
        limit=1,
    )
    return Recovery.ALIVE if due else Recovery.IDLE


def is_verification_limited(client: SyncPrefectClient) -> bool | None:
    """Whether the deployment of scheduled verifications has a concurrency limit. None if there is no such
    deployment.
    """
    try:
        deployment = client.read_deployment_by_name("verify-resume/verify-resume")
    except ObjectNotFound:
        return None
    return deployment.global_concurrency_limit is not None


def server_version(client: SyncPrefectClient) -> str | None:
    """Return the version of the server. Return None for Prefect Cloud, which works with every client version."""
    return None if client.server_type is ServerType.CLOUD else client.api_version()


def require_server_version(found: str | None) -> None:
    """Refuse a server whose version does not work with segue. A version that cannot be parsed is accepted.

    Raises:
        OrchestratorError: the version is refused.
    """
    _refuse([judge_version(found)])


def _refuse(results: Iterable[Result]) -> None:
    for result in results:
        if result.outcome is CheckOutcome.FAIL:
            raise OrchestratorError(what=f"{result.reason}.", fix=result.fix)


def read_pool(client: SyncPrefectClient, deployment: str) -> PoolState:
    """Return the state of a deployment's pool.

    Raises:
        QueueMissingError: the deployment has no queue and therefore no pool.
        OrchestratorError: the deployment or its pool does not exist.
    """
    found = read_deployment(client, deployment)
    if found.work_pool_name is None:
        raise QueueMissingError(deployment=deployment)
    try:
        return _state_of(client, deployment, found, found.work_pool_name)
    except ObjectNotFound:
        what = f"the pool {found.work_pool_name!r} or the queue of the deployment {deployment!r} does not exist."
        raise OrchestratorError(what=what, fix="create it, then deploy again.") from None


def has_variable(client: SyncPrefectClient, deployment: DeploymentResponse, name: str) -> bool:
    """Whether the template of a deployment's pool has this job variable."""
    if deployment.work_pool_name is None:
        return False
    template = client.read_work_pool(deployment.work_pool_name).base_job_template
    return name in template.get("variables", {}).get("properties", {})


def _state_of(client: SyncPrefectClient, name: str, deployment: DeploymentResponse, pool_name: str) -> PoolState:
    pool = client.read_work_pool(pool_name)
    queue = None
    if deployment.work_queue_name is not None:
        queue = client.read_work_queue_by_name(deployment.work_queue_name, work_pool_name=pool_name)
    shared = deployment.global_concurrency_limit
    of_deployment = shared.limit if shared is not None and shared.active else None
    limits = [pool.concurrency_limit, queue.concurrency_limit if queue else None, of_deployment]
    workers = known_workers = None
    if not pool.is_push_pool and not pool.is_managed_pool:
        found = client.read_workers_for_work_pool(pool_name)
        workers, known_workers = sum(worker.status == "ONLINE" for worker in found), len(found)
    known, given = pool.base_job_template.get("variables", {}).get("properties"), deployment.job_variables or {}
    # `env.NAME` sets one key of a variable.
    unknown = sorted({name for name in given if name.partition(".")[0] not in known}) if known is not None else []
    return PoolState(
        deployment=name,
        pool=pool_name,
        queue=queue.name if queue else None,
        is_paused=pool.is_paused,
        is_queue_paused=queue is not None and queue.is_paused,
        is_queue_polled=queue is None or not workers or _is_polled(queue, now=SystemClock().now()),
        limit=min((limit for limit in limits if limit is not None), default=None),
        pool_limit=pool.concurrency_limit,
        queue_limit=queue.concurrency_limit if queue else None,
        workers=workers,
        known_workers=known_workers,
        unknown_variables=tuple(unknown),
        job=_job_of(pool, given),
    )


def _is_polled(queue: WorkQueue, *, now: datetime) -> bool:
    """Whether a worker has recently polled the queue. The server updates the time of the last poll once a minute."""
    is_new = queue.created is None or now - queue.created < _SEEN_WITHIN
    return is_new or queue.status is not WorkQueueStatus.NOT_READY


def _job_of(pool: WorkPool, given: Mapping[str, Any]) -> PoolJob | None:
    """Return the job that a worker would start. If the template cannot be read, log a warning and return None."""
    try:
        return _filled_in(pool.type, pool.base_job_template, given)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("the template of a pool could not be read pool=%s reason=%r", pool.name, error)
        return None


def _filled_in(pool_type: str, template: Mapping[str, Any], given: Mapping[str, Any]) -> PoolJob | None:
    """Fill in a template with its defaults and these job variables, and return the job.

    The function fills in the template in the same way as `BaseJobConfiguration.from_template_and_values` of Prefect's
    workers. The function does not fill in blocks and Prefect's variables. The result is None if the pool has no
    template. The first worker of a pool creates the template.
    """
    configuration = template.get("job_configuration")
    if configuration is None:
        return None
    properties = template.get("variables", {}).get("properties", {})
    values = {
        name: deepcopy(found["default"]) for name, found in properties.items() if found.get("default") is not None
    }
    default_env = values.get("env")
    for name, value in given.items():
        if "." in name:
            set_in_dict(values, name, value)
        else:
            values[name] = value
    filled = apply_values(template=deepcopy(configuration), values=values)
    if isinstance(default_env, dict) and isinstance(filled.get("env"), dict):
        filled["env"] = default_env | filled["env"]
    return job_of(pool_type, filled)
