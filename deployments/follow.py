"""Starts a run's parent flow through Prefect, and shows the run's progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import State
from prefect.states import Cancelling
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn

from segue.clock import SystemClock
from segue.controller.recovery import Life, OrphanWatch
from segue.prefect.api import SILENCE, quick_client, refusal
from segue.prefect.recovery.dead_parents import PARENT_DEPLOYMENT, create_parent, recover_run
from segue.prefect.run_pools import read_pool, refuse_unusable_parent, require_pools
from segue.prefect.state_words import in_words
from segue.records import Heartbeat
from segue.reports.console import StepLines, errors
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.parents import read_parent
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

_LOOK_SECONDS = 0.25
_ASK_PREFECT_SECONDS = 1.0
_MOST_RESTARTS = 5
"""Maximum number of times that one command restarts the parent of its run."""

Observer = Callable[[History, Heartbeat | None], str | None]
"""A function that is called with each new state of the run. If the function returns a text, the text is printed on the
terminal."""


def require_server() -> None:
    """Check that the Prefect server answers and gives access.

    Raises:
        OrchestratorError: the server does not answer, or refuses access.
    """
    try:
        with quick_client() as client:
            client.read_work_pools(limit=1)
    except SILENCE as error:
        raise refusal(error) from None


def require_deployments(client: SyncPrefectClient, spec: RunSpec, *, is_new: bool = True) -> None:
    """If this Prefect server cannot execute the run, refuse the run before writing any record.

    Raises:
        OrchestratorError: the server does not answer, or a deployment or its pool is missing or unusable.
    """
    require_server()
    try:
        parent = read_pool(client, PARENT_DEPLOYMENT)
    except SILENCE as error:
        raise refusal(error) from None
    if is_new:
        refuse_unusable_parent(parent)
    require_pools(spec, parent_pool=parent.pool, parent_queue=parent.queue, is_new=is_new)


def trigger(
    client: SyncPrefectClient, spec: RunSpec, *, accept_drift: bool = False, requested_at_slot: int | None = None
) -> UUID:
    """Create the parent's flow run, and return its id.

    `requested_at_slot` is the number of the next record in the run's log. If a later record stops the run, this start
    does not undo the stop.
    """
    parameters: dict[str, Any] = {"accept_drift": accept_drift}
    parameters |= {} if requested_at_slot is None else {"requested_at_slot": requested_at_slot}
    return create_parent(client, spec, parameters=parameters)


def follow(
    client: SyncPrefectClient, flow_run_id: UUID, runlog: RunLog, spec: RunSpec, *, observer: Observer | None = None
) -> State:
    """Show progress until the run has ended. Return the final state of the run's parent. Ctrl-C cancels the run.

    If the parent dies, the function starts it again, as the flow `recover` does.
    """
    parent = _Parent(client, flow_run_id, runlog)
    try:
        with step_bar() as bar:
            return _follow(parent, runlog, spec, observer=observer, bar=bar)
    except KeyboardInterrupt:
        with suppress(*SILENCE):
            cancelling: State = Cancelling(message="interrupted on the terminal")
            client.set_flow_run_state(parent.flow_run_id, cancelling, force=True)
        raise


class _Parent:
    """Reads the state of the parent that a command follows, and recovers the parent."""

    def __init__(self, client: SyncPrefectClient, flow_run_id: UUID, runlog: RunLog) -> None:
        self.flow_run_id = flow_run_id
        self._client, self._runlog, self._clock = client, runlog, SystemClock()
        self._watch = OrphanWatch(runlog.store, clock=self._clock)
        self._restarts, self._is_crashed = 0, False

    def final_state(self) -> State | None:
        """Return the final state of the parent. While it runs, or before a restart, return None."""
        try:
            state = self._client.read_flow_run(self.flow_run_id).state
        except SILENCE:
            return None
        if state is None or not state.is_final():
            return None
        self._is_crashed = state.is_crashed()
        if not self._is_crashed or self._restarts >= _MOST_RESTARTS:
            return state
        try:
            return state if read_parent(self._runlog.store, self._runlog.run_id) is None else None
        except StoreReadError:
            return None

    def recover(self) -> str | None:
        """If the parent is dead, start it again, and return a text for the terminal. If it is alive, return None.

        Raises:
            StoreReadError, StoreWriteError: the store failed. A retry is safe.
        """
        record = read_parent(self._runlog.store, self._runlog.run_id)
        if record is None or self._restarts >= _MOST_RESTARTS:
            return None
        life = self._watch.judge(record)
        if life is Life.ALIVE and self._is_crashed and record.flow_run_id not in (None, str(self.flow_run_id)):
            self.flow_run_id, self._is_crashed = UUID(record.flow_run_id), False
            return "the parent has died; the flow recover has started another parent"
        if life is not Life.DEAD:
            return None
        try:
            what, flow_run_id = recover_run(self._client, self._runlog, record, clock=self._clock)
        except SILENCE:
            return None
        if flow_run_id is None or flow_run_id == self.flow_run_id:
            return None
        self.flow_run_id, self._restarts = flow_run_id, self._restarts + 1
        return f"the parent has died; {what}"


class StepBar(Progress):
    """A progress bar on a terminal.

    In a file or pipe, it prints a line for each activity and each tenth of the steps.
    """

    def __init__(self, *columns: ProgressColumn) -> None:
        super().__init__(*columns, console=errors)
        self._lines = StepLines(lambda text: errors.print(f"  {text}", markup=False))

    def show(self, task: TaskID, *, doing: str, step: int, steps: int, loss: str = "") -> None:
        """Show the current activity, step and loss."""
        self.update(task, completed=step, description=doing, loss=loss)
        if not self.console.is_terminal:
            self._lines(doing, step, steps)


def step_bar() -> StepBar:
    """Return a progress bar with the pool and the loss, on standard error, because standard output is for results."""
    columns = (
        TextColumn("{task.description:<34}"),
        BarColumn(bar_width=40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeElapsedColumn(),
    )
    return StepBar(*columns)


def _follow(parent: _Parent, runlog: RunLog, spec: RunSpec, *, observer: Observer | None, bar: StepBar) -> State:
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
            state = parent.final_state()
            if state is not None:
                step = read_history(runlog).committed_step
                bar.update(task, completed=step, description=in_words(state), loss="")
                return state
            with suppress(StoreReadError, StoreWriteError):
                if (recovered := parent.recover()) is not None:
                    bar.console.print(f"  {recovered}", markup=False)
        time.sleep(_LOOK_SECONDS)


def _show_decisions(bar: StepBar, history: History, shown: int) -> int:
    for entry in history.decisions[shown:]:
        name = f"segment {entry.plan.segment}, attempt {entry.plan.attempt}" if entry.plan else entry.action
        bar.console.print(f"  {name}: {entry.reason}", markup=False)
    return len(history.decisions)


def _show(bar: StepBar, task: TaskID, runlog: RunLog, history: History) -> Heartbeat | None:
    plan = history.open_plan
    if plan is None:
        return None
    beat = last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt))
    phase = beat.phase if beat else "waiting for capacity"
    step = beat.step if beat and beat.phase != "starting" else history.committed_step
    loss = f"loss {beat.loss:.4f}" if beat and beat.loss is not None else ""
    steps = history.spec.steps if history.spec is not None else step
    bar.show(task, doing=f"seg{plan.segment} {plan.capacity}: {phase}", step=step, steps=steps, loss=loss)
    return beat


def open_client() -> SyncPrefectClient:
    """Return a client of the configured Prefect server."""
    return get_client(sync_client=True)
