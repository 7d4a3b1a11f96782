"""The worker of `segue serve`: parents run in threads of one process, and other flow runs in separate processes."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from abc import ABC
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import anyio
import anyio.abc
import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import DeploymentResponse, WorkerFlowRunResponse
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.workers.process import ProcessJobConfiguration, ProcessWorker, ProcessWorkerResult
from pydantic import PrivateAttr

from segue.controller.ending import Why
from segue.deployments.follow import require_server
from segue.deployments.workers.served_run import ServedRun, name_runs
from segue.errors import OrchestratorError
from segue.metrics.metrics_export import METRICS
from segue.prefect.api import quick_client
from segue.prefect.refused_requests import repeat_refused_requests

PARENT_ENTRYPOINT = "segue.flows.train.train"
_USUAL_COMMANDS = (None, "python -m prefect.engine")
"""The command of an ordinary parent is None in Prefect's own template, and `prefect.engine` in
segue's templates."""


class ProcessJob(NamedTuple):
    """The job that a process pool must start for a flow run."""

    entrypoint: str | None
    """Entrypoint of the deployment. Without a deployment, the value is None."""
    has_pull_steps: bool
    command: str | None
    env: Mapping[str, str | None]
    """Environment variables of the job. The value None removes a variable."""
    working_dir: Path | None

    @property
    def is_parent(self) -> bool:
        """Whether the flow is `train` of the installed segue."""
        return self.entrypoint == PARENT_ENTRYPOINT and not self.has_pull_steps


def why_own_process(job: ProcessJob, *, here: Path, environment: Mapping[str, str]) -> str | None:
    """Return the reason why a job cannot run in a thread of this process. If it can, return None.

    This process works in the folder `here`, with the variables `environment`, and its threads share both. In another
    working folder, a relative path of a store would name another store.
    """
    if not job.is_parent:
        return "its flow is not the installed segue.flows.train"
    if job.command not in _USUAL_COMMANDS:
        return f"its job has another command ({job.command})"
    changed = sorted(name for name, value in job.env.items() if environment.get(name) != value)
    if changed:
        return f"its job sets variables that `segue serve` does not have ({', '.join(changed)})"
    if job.working_dir is None:
        return f"its job has no working_dir; `segue serve` was started in {here}"
    if job.working_dir.resolve() != here.resolve():
        return f"its working_dir is {job.working_dir}; `segue serve` was started in {here}"
    return None


_ASK_SECONDS = 2.0
"""Seconds between two requests for cancelled parents. One request covers all parents."""
_LEAVE_SECONDS = 20.0
"""Longest time in seconds for which this process waits at its end for the parents. Kubernetes kills a pod after 30
s."""
_CANCELLED = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CANCELLING, StateType.CANCELLED]))


class ServedJob(ProcessJobConfiguration):
    """A job in a process pool, with its settings before Prefect added variables."""

    _job: ProcessJob = PrivateAttr()

    @property
    def job(self) -> ProcessJob:
        return self._job

    def prepare_for_flow_run(
        self, flow_run: FlowRun, deployment: DeploymentResponse | None = None, *args: Any, **more: Any
    ) -> None:
        self._job = _job_of(deployment, self)
        super().prepare_for_flow_run(flow_run, deployment, *args, **more)


def _job_of(deployment: DeploymentResponse | None, asked: ProcessJobConfiguration) -> ProcessJob:
    return ProcessJob(
        entrypoint=deployment.entrypoint if deployment is not None else None,
        has_pull_steps=bool(deployment is not None and deployment.pull_steps),
        command=asked.command,
        env=dict(asked.env),
        working_dir=asked.working_dir,
    )


# The class has the base ABC, because Prefect does not register abstract classes. The type "process" therefore remains
# Prefect's own ProcessWorker.
class ParentsWorker(ProcessWorker, ABC):
    """A worker of a process pool that runs up to `runs` parents, and any number of other flow runs."""

    job_configuration = ServedJob

    def __init__(self, *, pool: str, runs: int, name: str, say: Callable[[str], None]) -> None:
        super().__init__(work_pool_name=pool, name=name, create_pool_if_not_found=False)
        self._most_runs, self._say = runs, say
        self._served: dict[UUID, ServedRun] = {}
        self._taken: set[UUID] = set()
        """Parents that this worker has taken from the pool, including parents that are not in `_served` yet."""
        self._here = Path.cwd()
        self._held = 0

    async def run(
        self,
        flow_run: FlowRun,
        configuration: ProcessJobConfiguration,
        task_status: anyio.abc.TaskStatus[int] | None = None,
    ) -> ProcessWorkerResult:
        """Run a flow run to its end. If it is a parent and its job permits a thread, it runs in a thread, otherwise in
        a process."""
        assert isinstance(configuration, ServedJob)
        why = why_own_process(configuration.job, here=self._here, environment=os.environ)
        if why is not None:
            if configuration.job.is_parent:
                self._taken.discard(flow_run.id)
                text = "this parent runs in a separate process of about 230 MB: %s"
                self.get_flow_run_logger(flow_run).warning(text, why)
            return await super().run(flow_run, configuration, task_status)
        served = self._served[flow_run.id] = ServedRun(flow_run.id)
        served.start()
        if task_status is not None:
            task_status.started(os.getpid())
        try:
            status_code = await _ended(served)
        finally:
            del self._served[flow_run.id]
        return ProcessWorkerResult(status_code=status_code, identifier=str(os.getpid()))

    async def watch_cancellations(self) -> None:
        """End the parents whose flow runs are being cancelled. This coroutine never returns."""
        with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}):
            async with get_client() as client:
                while True:
                    await anyio.sleep(_ASK_SECONDS)
                    wanted = FlowRunFilter(id=FlowRunFilterId(any_=list(self._served)), state=_CANCELLED)
                    try:
                        found = await client.read_flow_runs(flow_run_filter=wanted) if self._served else []
                    except (httpx.HTTPError, PrefectHTTPStatusError) as error:
                        self._logger.debug("cancellations could not be read reason=%s", type(error).__name__)
                        continue
                    for run in found:
                        if (served := self._served.get(run.id)) is not None:
                            served.end(Why.CANCELLED)

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        # Prefect's own limit is not used, because it counts every flow run. A flow run of `recover` must not wait for
        # parents.
        self._taken &= self._submitting_flow_run_ids | self._served.keys()
        known: dict[UUID, bool] = {}
        chosen, held = [], 0
        for entry in flow_run_response:
            run = entry.flow_run
            if run.id in self._submitting_flow_run_ids:
                continue
            if await self._is_parent(run, known):
                if len(self._taken) >= self._most_runs:
                    held += 1
                    continue
                self._taken.add(run.id)
            chosen.append(entry)
        self._tell(held)
        return await super()._submit_scheduled_flow_runs(chosen)

    async def _is_parent(self, run: FlowRun, known: dict[UUID, bool]) -> bool:
        """Whether the deployment of a flow run is the deployment of parents.

        If the deployment was deleted, return False. Prefect then cancels the flow run.
        """
        if run.deployment_id is None:
            return False
        if run.deployment_id not in known:
            try:
                deployment = await self.client.read_deployment(run.deployment_id)
            except ObjectNotFound:
                return False
            known[run.deployment_id] = _job_of(deployment, ProcessJobConfiguration()).is_parent
        return known[run.deployment_id]

    def _tell(self, held: int) -> None:
        if held > 0 and self._held == 0:
            self._say(f"{self._most_runs} runs are served at most; {held} more wait. Fix: start another `segue serve`.")
        self._held = held


async def _ended(served: ServedRun) -> int:
    """Wait for the end of a parent, and return its status. If this process ends, first ask the parent to end."""
    ended = asyncio.wrap_future(served.ended)
    try:
        return await asyncio.shield(ended)
    except asyncio.CancelledError:
        served.end(Why.LEAVING)
        with anyio.CancelScope(shield=True), anyio.move_on_after(_LEAVE_SECONDS):
            await asyncio.shield(ended)
        raise


def serve(*, pool: str, runs: int, name: str | None, say: Callable[[str], None]) -> signal.Signals:
    """Serve a process pool until SIGINT or SIGTERM, and return the signal.

    After the signal, the parents end as Crashed within `_LEAVE_SECONDS`. The attempts of these parents continue to
    train, and recovery starts the parents again.

    Raises:
        OrchestratorError: no server is configured or answers, or the pool does not exist or has another type.
        MetricsExportError, MissingExtraError: the metrics cannot be exported as the environment variables require.
    """
    _require_pool(pool)
    repeat_refused_requests()
    name_runs()
    if (address := METRICS.open()) is not None:
        say(f"metrics: {address}")
    worker = ParentsWorker(pool=pool, runs=runs, name=name or f"serve-{socket.gethostname()}", say=say)
    return asyncio.run(_serve(worker, say))


async def _serve(worker: ParentsWorker, say: Callable[[str], None]) -> signal.Signals:
    got: list[signal.Signals] = []
    async with anyio.create_task_group() as tasks:

        async def await_signal() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for signum in signals:
                    got.append(signum)
                    say("ending: no further runs are taken, and the attempts of the served runs continue to train")
                    tasks.cancel_scope.cancel()
                    return

        tasks.start_soon(await_signal)
        tasks.start_soon(worker.watch_cancellations)
        await worker.start(printer=say)
    return got[0]


def _require_pool(pool: str) -> None:
    if not PREFECT_API_URL.value():
        raise OrchestratorError(
            what="serve needs the Prefect server whose runs it serves.", fix="set PREFECT_API_URL to its address."
        )
    require_server()
    try:
        with quick_client() as client:
            found = client.read_work_pool(pool)
    except ObjectNotFound:
        raise OrchestratorError(
            what=f"there is no work pool {pool!r} on this Prefect server.",
            fix="create it with deployments/templates/create-pools.sh, or name another pool with --pool.",
        ) from None
    if found.type != "process":
        raise OrchestratorError(
            what=f"the work pool {pool!r} has the type {found.type}, but serve needs a process pool.",
            fix="name another pool, or start a worker of that type with `prefect worker start`.",
        )
