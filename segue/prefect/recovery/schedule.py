"""Reads the schedule of `recover`: its interval, its late starts, and the reasons why its checks do not complete."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterExpectedStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled

from segue.doctor.server_judgement import Recovery, judge_recovery
from segue.prefect.api import SILENCE
from segue.prefect.run_pools import recovery_of

DEPLOYMENT = "recover/recover"
LATE = timedelta(minutes=2)
"""Age at which a start is no longer needed, because a later start makes the same check."""


def interval_seconds(client: SyncPrefectClient) -> float | None:
    """Return the seconds between two scheduled checks. Return None if `recover` has no schedule."""
    try:
        deployment = client.read_deployment_by_name(DEPLOYMENT)
    except ObjectNotFound:
        return None
    active = [each.schedule for each in deployment.schedules if each.active]
    found = [schedule.interval.total_seconds() for schedule in active if isinstance(schedule, IntervalSchedule)]
    if active and not found:
        return _between_next(client, deployment.id)
    return min(found, default=None)


def _between_next(client: SyncPrefectClient, deployment_id: UUID) -> float | None:
    """Return the seconds between the next starts that the server has planned, for schedules without a fixed
    interval.
    """
    planned = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])))
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id])),
        flow_run_filter=planned,
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=2,
    )
    times = [run.expected_start_time for run in runs if run.expected_start_time is not None]
    return (times[0] - times[1]).total_seconds() or None if len(times) > 1 else None


def end_late_starts(client: SyncPrefectClient, deployment_id: UUID, *, due: datetime) -> None:
    """Cancel late flow runs of a deployment: no worker has taken them, and they were due more than `LATE` before `due`.

    Raises:
        httpx.HTTPError, PrefectHTTPStatusError: some flow runs were not cancelled; a retry is safe.
    """
    late = FlowRunFilter(
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        expected_start_time=FlowRunFilterExpectedStartTime(before_=due - LATE),
    )
    runs = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id])), flow_run_filter=late, limit=200
    )
    for run in runs:
        client.set_flow_run_state(
            run.id, Cancelled(message="this flow run is late; a later flow run made the check"), force=True
        )


def why_silent(client: SyncPrefectClient, *, now: datetime) -> tuple[str, str]:
    """From the data of the server, return the reason why the checks do not complete, and the fix."""
    try:
        found = recovery_of(client, now=now)
        if found is not Recovery.ALIVE:
            result = judge_recovery(found)
            return result.reason, result.fix or ""
        deployment = client.read_deployment_by_name(DEPLOYMENT)
        newest = client.read_flow_runs(
            deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment.id])),
            flow_run_filter=FlowRunFilter(expected_start_time=FlowRunFilterExpectedStartTime(before_=now)),
            sort=FlowRunSort.EXPECTED_START_TIME_DESC,
            limit=5,
        )
    except SILENCE as error:
        return f"the Prefect server does not answer ({type(error).__name__})", "start the Prefect server"
    except ObjectNotFound:
        return "the deployment recover/recover was deleted", "run `prefect --no-prompt deploy --all`"
    pool = deployment.work_pool_name or "parents"
    states = ", ".join(dict.fromkeys(run.state.name or "" for run in newest if run.state is not None)) or "none"
    if all(run.state is None or run.state.is_scheduled() for run in newest):
        return f"no worker takes the flow runs of {DEPLOYMENT}", f"`prefect worker start --pool {pool}`"
    return (
        f"the newest flow runs of {DEPLOYMENT} are in the states {states}",
        f"read their logs in Prefect's UI; `prefect deployment run {DEPLOYMENT}` starts one more check",
    )
