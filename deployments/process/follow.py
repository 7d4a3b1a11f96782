"""Start a run's parent flow through Prefect and show its progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling, Scheduled
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from segue.tasks.prefect_orchestrator import SILENCE

from segue.errors import OrchestratorError
from segue.records import Heartbeat
from segue.reports.console import errors
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError

PARENT_DEPLOYMENT = "train/train"

_LOOK_SECONDS = 0.25
_ASK_PREFECT_SECONDS = 1.0

Observer = Callable[[History, Heartbeat | None], str | None]
"""Called with each new state of the run; the text it returns is printed above the bar."""


def require_deployments(client: SyncPrefectClient, spec: RunSpec) -> None:
    """Refuse a run that this Prefect server cannot run, before anything of it is written.

    Raises:
        OrchestratorError: the server does not answer, or a deployment or its work pool is missing.
    """
    problem: Exception | None = client.api_healthcheck()
    if problem is not None:
        raise _no_answer(problem)
    for name in dict.fromkeys(
        (PARENT_DEPLOYMENT, *(pool.deployment for pool in spec.pools.spot), spec.pools.on_demand)
    ):
        try:
            deployment = client.read_deployment_by_name(name)
        except ObjectNotFound:
            raise OrchestratorError(
                what=f"there is no deployment {name!r} on the Prefect server.",
                fix="run `prefect --no-prompt deploy --all` in the folder of prefect.yaml (`segue init` writes one), "
                "or name another deployment under [pools] in the run spec.",
            ) from None
        except SILENCE as error:
            raise _no_answer(error) from None
        if deployment.work_pool_name is None:
            raise OrchestratorError(
                what=f"the deployment {name!r} has no work pool on the Prefect server.",
                fix="create the pool, then run `prefect --no-prompt deploy --all` again.",
            )


def trigger(
    client: SyncPrefectClient, spec: RunSpec, *, accept_drift: bool = False, requested_at_slot: int | None = None
) -> UUID:
    """Create the parent's flow run; returns its id.

    With `requested_at_slot`, the next slot of the run's log, this start does not undo a later stop of the run.
    """
    deployment = client.read_deployment_by_name(PARENT_DEPLOYMENT)
    parameters = {"spec": spec.model_dump(mode="json"), "accept_drift": accept_drift}
    parameters |= {} if requested_at_slot is None else {"requested_at_slot": requested_at_slot}
    run = client.create_flow_run_from_deployment(
        deployment.id, parameters=parameters, state=Scheduled(), name=spec.run_id, tags=["segue", spec.run_id]
    )
    return run.id


def _no_answer(error: Exception) -> OrchestratorError:
    return OrchestratorError(
        what=f"the Prefect server does not answer ({type(error).__name__}).",
        fix="check PREFECT_API_URL, or unset it to have a local server started.",
    )


def follow(
    client: SyncPrefectClient, flow_run_id: UUID, runlog: RunLog, spec: RunSpec, *, observer: Observer | None = None
) -> State:
    """Show progress until the parent's flow run has ended; returns its final state. Ctrl-C cancels the run."""
    try:
        with step_bar() as bar:
            return _follow(client, flow_run_id, runlog, spec, observer=observer, bar=bar)
    except KeyboardInterrupt:
        with suppress(*SILENCE):
            client.set_flow_run_state(flow_run_id, Cancelling(message="interrupted on the terminal"), force=True)
        raise


def step_bar() -> Progress:
    """A progress bar with the pool and the loss, on standard error: standard output is for results."""
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=errors)


def _follow(
    client: SyncPrefectClient,
    flow_run_id: UUID,
    runlog: RunLog,
    spec: RunSpec,
    *,
    observer: Observer | None,
    bar: Progress,
) -> State:
    task = bar.add_task("waiting for the parent flow", total=spec.steps, loss="")
    asked_at, shown = 0.0, 0
    while True:
        with suppress(StoreReadError):  # The store is read again; the run does not depend on this process.
            history = read_history(runlog)
            shown = _show_decisions(bar, history, shown)
            beat = _show(bar, task, runlog, history)
            if observer is not None and (event := observer(history, beat)) is not None:
                bar.console.print(f"  {event}", style="bold", markup=False)
        if time.monotonic() - asked_at > _ASK_PREFECT_SECONDS:
            asked_at = time.monotonic()
            state = _state(client, flow_run_id)
            if state is not None and state.is_final():
                step = read_history(runlog).committed_step
                bar.update(task, completed=step, description=state.name or "ended", loss="")
                return state
        time.sleep(_LOOK_SECONDS)


def _show_decisions(bar: Progress, history: History, shown: int) -> int:
    for entry in history.decisions[shown:]:
        name = f"segment {entry.plan.segment}, attempt {entry.plan.attempt}" if entry.plan else entry.action
        bar.console.print(f"  {name}: {entry.reason}", markup=False)
    return len(history.decisions)


def _show(bar: Progress, task: TaskID, runlog: RunLog, history: History) -> Heartbeat | None:
    plan = history.open_plan
    if plan is None:
        return None
    beat = last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt))
    phase = beat.phase if beat else "waiting for capacity"
    step = beat.step if beat and beat.phase != "starting" else history.committed_step
    loss = f"loss {beat.loss:.4f}" if beat and beat.loss is not None else ""
    bar.update(task, completed=step, description=f"seg{plan.segment} {plan.capacity}: {phase}", loss=loss)
    return beat


def _state(client: SyncPrefectClient, flow_run_id: UUID) -> State | None:
    try:
        return client.read_flow_run(flow_run_id).state
    except SILENCE:
        return None


def open_client() -> SyncPrefectClient:
    """A client of the configured server."""
    return get_client(sync_client=True)
