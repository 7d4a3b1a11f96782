"""Prefect as the orchestrator: attempts and standbys are flow runs of deployments."""

from __future__ import annotations

import logging
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.context import TaskRunContext
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.states import Cancelled, Cancelling, Crashed, Scheduled

from segue.errors import OrchestratorError
from segue.records import Capacity, SegmentPlan
from segue.spec import RunSpec

log = logging.getLogger(__name__)

SILENCE = (httpx.HTTPError, PrefectHTTPStatusError)
"""Exceptions of a Prefect API that does not answer, restarts or is overloaded."""

_PARENT_KNOWN_WITHIN = timedelta(seconds=5)
_DISPATCH_SECONDS = 120.0


def label(spec: RunSpec, plan: SegmentPlan) -> str:
    """The name of an attempt in the Prefect UI."""
    return f"{spec.run_id}-seg{plan.segment}-a{plan.attempt}-{plan.capacity}"


def idempotency_key(spec: RunSpec, plan: SegmentPlan) -> str:
    """The key by which each attempt has one flow run, however often it is submitted. Unique per flow."""
    return f"{spec.run_id}:{plan.segment}:{plan.attempt}"


class PrefectOrchestrator:
    """Attempts and standbys as flow runs of the deployments that the run spec names. A handle is a flow run's id.

    Implements `segue.controller.orchestrator.Orchestrator`. Only `require_pools` and `submit` raise; all other methods
    return without an answer when the API does not answer.
    """

    def __init__(self) -> None:
        self._client = get_client(sync_client=True)

    def require_pools(self, spec: RunSpec) -> None:
        """Refuse deployments that do not exist, at the start and not when the run needs them.

        An API that does not answer is not asked again here; the first submission waits for it.
        """
        wanted = [*(pool.deployment for pool in spec.pools.spot), spec.pools.on_demand]
        with suppress(*SILENCE):
            for name in dict.fromkeys(wanted):
                try:
                    self._client.read_deployment_by_name(name)
                except ObjectNotFound:
                    raise _no_such(name) from None

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """The flow run of this attempt: a new one, or the one that was submitted before.

        It is created directly instead of by `run_deployment`, which first creates a dummy task run: on SQLite that
        collides with the records of the current task. Here the current task is the parent, also in the graph.

        Raises:
            OrchestratorError: there is no such deployment, or the API does not answer for two minutes.
        """
        give_up_at = time.monotonic() + _DISPATCH_SECONDS
        while True:
            try:
                if plan.standby is not None:
                    # The standby that waits for this plan. If it is gone, a new one of its name takes the plan.
                    return _create_standby(self._client, spec, plan.standby, deployment=plan.deployment)
                return _create(self._client, spec, plan)
            except ObjectNotFound:
                raise _no_such(plan.deployment) from None
            except SILENCE as error:
                if time.monotonic() > give_up_at:
                    raise OrchestratorError(
                        what=f"Prefect did not accept the segment within {_DISPATCH_SECONDS:.0f} s "
                        f"({type(error).__name__}).",
                        fix="check the Prefect server, then start the run again with the same run id.",
                    ) from error
                time.sleep(1.0)

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        try:
            return _create_standby(self._client, spec, standby, deployment=deployment)
        except (*SILENCE, ObjectNotFound) as error:
            log.warning("prefect did not accept a standby standby=%s reason=%s", standby, type(error).__name__)
            return None

    def state(self, handle: str) -> str | None:
        try:
            state = self._client.read_flow_run(UUID(handle)).state
        except ObjectNotFound:
            return "deleted"
        except SILENCE as error:
            log.warning("prefect did not answer reason=%s", type(error).__name__)
            return None
        return state.name if state is not None and state.is_final() else None

    def cancel(self, handle: str, why: str) -> None:
        self._set_state(handle, Cancelling(message=why))

    def cancel_standby(self, handle: str, why: str) -> None:
        # Not Cancelling: a standby that never started has no process that would answer.
        self._set_state(handle, Cancelled(message=why))

    def mark_lost(self, handle: str, why: str) -> None:
        self._set_state(handle, Crashed(name="Lost", message=why))

    def _set_state(self, handle: str, state: Any) -> None:
        try:
            if self.state(handle) is None:
                self._client.set_flow_run_state(UUID(handle), state, force=True)
        except (*SILENCE, ObjectNotFound) as error:
            log.warning("prefect did not accept a state state=%s reason=%s", state.name, type(error).__name__)


def _create(client: SyncPrefectClient, spec: RunSpec, plan: SegmentPlan) -> str:
    return _create_run(
        client,
        spec,
        deployment=plan.deployment,
        parameters={"plan": plan.model_dump(mode="json")},
        name=label(spec, plan),
        capacity=plan.capacity,
        key=idempotency_key(spec, plan),
    )


def _create_standby(client: SyncPrefectClient, spec: RunSpec, standby: str, *, deployment: str) -> str:
    return _create_run(
        client,
        spec,
        deployment=deployment,
        parameters={"standby": standby},
        name=f"{spec.run_id}-{standby.replace('spare', 'standby')}",
        capacity=Capacity.SPOT,
        key=f"{spec.run_id}:{standby}",
    )


def _create_run(
    client: SyncPrefectClient,
    spec: RunSpec,
    *,
    deployment: str,
    parameters: dict[str, Any],
    name: str,
    capacity: Capacity,
    key: str,
) -> str:
    found = client.read_deployment_by_name(deployment)
    flow_run = client.create_flow_run_from_deployment(
        found.id,
        parameters={"spec": spec.model_dump(mode="json")} | parameters,
        state=Scheduled(),
        name=name,
        tags=["segue", spec.run_id, capacity.value],
        idempotency_key=key,
        parent_task_run_id=_known_task_run(client),
    )
    return str(flow_run.id)


def _no_such(deployment: str) -> OrchestratorError:
    return OrchestratorError(
        what=f"there is no deployment {deployment!r} on this Prefect server.",
        fix="run `prefect --no-prompt deploy --all`, or set the name of your deployment under pools in the run spec.",
    )


def _known_task_run(client: SyncPrefectClient) -> UUID | None:
    """The id of the current task run, once the server has it: task runs reach the server as events, with a delay."""
    context = TaskRunContext.get()
    if context is None:
        return None
    give_up_at = time.monotonic() + _PARENT_KNOWN_WITHIN.total_seconds()
    while time.monotonic() < give_up_at:
        try:
            return client.read_task_run(context.task_run.id).id
        except ObjectNotFound:
            time.sleep(0.05)
    return None
