"""Start a run's parent through Prefect and show how it comes along."""

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
from segue.runlog.heartbeat import last_heartbeat
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError

PARENT_DEPLOYMENT = "train/train"

_LOOK_SECONDS = 0.25
_ASK_PREFECT_SECONDS = 1.0

Observer = Callable[[History, Heartbeat | None], str | None]
"""Looks on while a run goes; what it says is printed above the bar."""


def trigger(client: SyncPrefectClient, spec: RunSpec, *, accept_drift: bool = False) -> UUID:
    """Create the parent's flow run; returns its id.

    Raises:
        OrchestratorError: the parent's deployment is not there.
    """
    try:
        deployment = client.read_deployment_by_name(PARENT_DEPLOYMENT)
    except ObjectNotFound:
        raise OrchestratorError(
            what=f"there is no deployment {PARENT_DEPLOYMENT!r} on the Prefect server.",
            fix="Run `prefect --no-prompt deploy --all` in the folder of prefect.yaml.",
        ) from None
    except SILENCE as error:
        raise OrchestratorError(
            what=f"the Prefect server does not answer ({type(error).__name__}).",
            fix="Check PREFECT_API_URL, or unset it to have a local server started.",
        ) from None
    parameters = {"spec": spec.model_dump(mode="json"), "accept_drift": accept_drift}
    run = client.create_flow_run_from_deployment(
        deployment.id, parameters=parameters, state=Scheduled(), name=spec.run_id, tags=["segue", spec.run_id]
    )
    return run.id


def follow(
    client: SyncPrefectClient, flow_run_id: UUID, runlog: RunLog, spec: RunSpec, *, observer: Observer | None = None
) -> State:
    """Show progress until the parent's flow run is over; returns its final state. Ctrl-C cancels the run."""
    try:
        with step_bar() as bar:
            return _follow(client, flow_run_id, runlog, spec, observer=observer, bar=bar)
    except KeyboardInterrupt:
        client.set_flow_run_state(flow_run_id, Cancelling(message="interrupted on the terminal"), force=True)
        raise


def step_bar() -> Progress:
    """A bar over steps with the pool and the loss beside it, on standard error: standard output is for results."""
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
    asked_at, told = 0.0, 0
    while True:
        with suppress(StoreReadError):  # A store that is away is looked at again; the run does not depend on us.
            history = read_history(runlog)
            told = _tell_decisions(bar, history, told)
            beat = _show(bar, task, runlog, history)
            if observer is not None and (said := observer(history, beat)) is not None:
                bar.console.print(f"  {said}", style="bold", markup=False)
        if time.monotonic() - asked_at > _ASK_PREFECT_SECONDS:
            asked_at = time.monotonic()
            state = _state(client, flow_run_id)
            if state is not None and state.is_final():
                bar.update(task, completed=read_history(runlog).committed_step, description=state.name or "over")
                return state
        time.sleep(_LOOK_SECONDS)


def _tell_decisions(bar: Progress, history: History, told: int) -> int:
    for entry in history.decisions[told:]:
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
