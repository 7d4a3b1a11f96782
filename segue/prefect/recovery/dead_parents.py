"""Recovers runs whose parent is dead.

If the run has ended, recovery sets the state of the parent's flow run. If the run has not ended, recovery starts the
parent again.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowFilter,
    FlowFilterName,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound

from segue.clock import Clock
from segue.controller.steps import cancelled_at_slot, request_stop
from segue.errors import OrchestratorError, RunOverError
from segue.prefect.api import SILENCE, create_flow_run, quick_client, read_deployment
from segue.prefect.recovery.segment_states import settle_segments, store_of
from segue.prefect.state_words import Word, has_reached_goal, state_of_run, state_with, word_of
from segue.records import ParentRecord
from segue.reports.summary import late_seconds_at_end
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.parents import read_parent, remove_parent
from segue.spec import RunSpec

log = logging.getLogger(__name__)

PARENT_DEPLOYMENT = "train/train"
FIRST_BACKOFF_SECONDS = 10.0
LONGEST_BACKOFF_SECONDS = 1800.0
_START_SECONDS = 180.0
"""If a newly started parent sends no heartbeat for this number of seconds, recovery creates another start."""
_PROCESS_START_SECONDS = 45.0
"""Seconds from a new start of a parent to its first heartbeat, if no image has to be pulled.

No image is needed if the parent runs in an existing process or on a process pool.
"""
_MOST_FLOW_RUNS = 200
_OF_ANOTHER_SERVER = (
    "its parent ran on another Prefect server, which recovers it; `segue recover --take-over` starts it here"
)
_CANCELLED = "the parent's flow run was cancelled"
_LEFT_ALONE = timedelta(minutes=15)
_QUEUED = (StateType.SCHEDULED, StateType.PAUSED)


def create_parent(
    client: SyncPrefectClient,
    spec: RunSpec,
    *,
    parameters: dict[str, Any],
    tags: tuple[str, ...] = (),
    key: str | None = None,
) -> UUID:
    """Create a flow run of the parent's deployment, at most one for each `key`. Return the id of the flow run.

    If an answer is lost and Prefect's client repeats the request, the server creates no second flow run.

    Raises:
        OrchestratorError: the parent's deployment does not exist.
    """
    return create_flow_run(
        client,
        read_deployment(client, PARENT_DEPLOYMENT).id,
        parameters={"spec": spec.model_dump(mode="json")} | parameters,
        name=spec.run_id,
        tags=["segue", spec.run_id, *tags],
        idempotency_key=key or uuid4().hex,
    )


def server_id(client: SyncPrefectClient) -> str:
    """Return the id of the parent's deployment. Each Prefect server has another id, whatever its address.

    Raises:
        OrchestratorError: the parent's deployment does not exist.
    """
    return str(read_deployment(client, PARENT_DEPLOYMENT).id)


def known_server_id() -> str:
    """Return the `server_id` of the configured server.

    Return an empty text if the server does not answer or does not have the parent's deployment.
    """
    try:
        with quick_client() as client:
            return server_id(client)
    except (OrchestratorError, *SILENCE) as error:
        log.warning("the id of the prefect server could not be read reason=%s", type(error).__name__)
        return ""


def recover_run(
    client: SyncPrefectClient, runlog: RunLog, dead: ParentRecord, *, clock: Clock, take_over: bool = False
) -> tuple[str, UUID | None]:
    """Recover one run whose parent is dead. Return a text about the action, and the id of the new parent's flow run.

    Several processes may call this function at any time. Each start has an idempotency key, and the new parent checks
    the run again. If the parent ran on another server, that server must recover the run, with two exceptions. The first
    exception is that `take_over` is set. The second exception is a delay of more than 15 minutes, because the other
    server may have lost its database.

    Raises:
        OrchestratorError: the parent's deployment does not exist.
        StoreReadError, StoreWriteError: a retry is safe.
    """
    is_left_alone = clock.now() - dead.beat_at > _LEFT_ALONE
    if dead.server_id and dead.server_id != server_id(client) and not take_over and not is_left_alone:
        return _OF_ANOTHER_SERVER, None
    history = read_history(runlog)
    parents = parents_of(client, history.spec, dead)
    runs = [run for run in parents if run.state is None or word_of(run.state) is not Word.DUPLICATE]
    if history.spec is None or (history.is_over and not (runs and _starts_it_again(runs[0], runlog))):
        return _end(client, runlog, dead, runs, clock=clock), None
    # The key contains the number of starts, because the length of the log also grows while the attempt continues to
    # train.
    starts = sum(run.parameters.get("after_parent") == dead.parent_id for run in parents)
    # Each further start gets twice as much time, so that one start succeeds even if all starts are slow.
    limit_seconds = start_seconds(client, runs[0]) * 2.0 ** max(starts - 1, 0) if runs else 0.0
    _give_up_slow(client, runs[1:], now=clock.now(), after_seconds=2 * limit_seconds)
    if runs and will_start(runs[0], dead, now=clock.now(), limit_seconds=limit_seconds):
        return "a start of its parent is queued", runs[0].id
    holder = next((run for run in runs if str(run.id) == dead.flow_run_id), runs[0] if runs else None)
    if holder is not None and _is_cancelled(holder):
        with suppress(RunOverError):  # The run has ended since its log was read.
            request_stop(runlog, reason=_CANCELLED)
        return "it was stopped, because its parent's flow run was cancelled", None
    restarts = [run for run in runs if _tag(history) in run.tags]
    wait_seconds = _backoff_seconds(restarts, now=clock.now())
    if wait_seconds > 0:
        return f"its parent failed {len(restarts)} times in a row; next start in {wait_seconds:.0f} s", None
    for run in runs:
        # The newest start may only be slow, so recovery gives it up only after another start has begun.
        is_slow_start = run is runs[0] and run.state is not None and run.state.is_pending()
        if run.state is not None and not run.state.is_final() and not is_slow_start:
            why = "the parent's process has died; the run has a new parent"
            client.set_flow_run_state(run.id, state_with(Word.PARENT_LOST, why), force=True)
    # If a segment was cancelled and nobody has requested another start since then, the new parent ends the run.
    cancelled = cancelled_at_slot(runlog)
    requested = history.next_slot if cancelled is None else cancelled
    flow_run_id = create_parent(
        client,
        history.spec,
        parameters={"requested_at_slot": requested, "after_parent": dead.parent_id},
        tags=(_tag(history),),
        key=f"{dead.run_id}:{runlog.log_id}:after:{dead.parent_id}:{starts}",
    )
    log.info("parent started again run=%s flow_run=%s", dead.run_id, flow_run_id)
    return "its parent was started again", flow_run_id


def stop_if_cancelled(client: SyncPrefectClient, runlog: RunLog) -> None:
    """Stop the run if a person cancelled the flow run of its dead parent. Call this before a new parent starts.

    If a parent was killed while it was ending, the parent has not stopped the run. Without the stop, the late report of
    the parent's segment would end the new run.

    Raises:
        StoreReadError, StoreWriteError: a retry is safe.
    """
    known = read_parent(runlog.store, runlog.run_id)
    if known is None or known.flow_run_id is None:
        return
    with suppress(ObjectNotFound, RunOverError, *SILENCE):  # If the state is unknown, the log decides.
        if _is_cancelled(client.read_flow_run(UUID(known.flow_run_id))):
            request_stop(runlog, reason=_CANCELLED)


def _give_up_slow(client: SyncPrefectClient, runs: list[FlowRun], *, now: datetime, after_seconds: float) -> None:
    """Give up earlier starts that are still Pending, because they hold slots of the pool that the newest start may
    need.
    """
    for run in runs:
        if run.state is None or not run.state.is_pending():
            continue
        if now - run.state.timestamp > timedelta(seconds=after_seconds):
            why = f"the parent's process did not start within {after_seconds:.0f} s"
            client.set_flow_run_state(run.id, state_with(Word.PARENT_LOST, why), force=True)


def parents_of(client: SyncPrefectClient, spec: RunSpec | None, dead: ParentRecord) -> list[FlowRun]:
    """Return the flow runs of a run's parents, the newest first.

    If another store has a run with the same id, the flow runs of that run are not in the result. The result always has
    the parent in the record `dead`. A parent that was started from the UI or by `retrain` has no tag with the run id.
    """
    found = client.read_flow_runs(
        flow_filter=FlowFilter(name=FlowFilterName(any_=["train"])),
        flow_run_filter=FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", dead.run_id])),
        sort=FlowRunSort.EXPECTED_START_TIME_DESC,
        limit=_MOST_FLOW_RUNS,
    )
    runs = [run for run in found if spec is None or store_of(run) == spec.store.url]
    if dead.flow_run_id is not None and all(str(run.id) != dead.flow_run_id for run in runs):
        with suppress(ObjectNotFound):
            runs.append(client.read_flow_run(UUID(dead.flow_run_id)))
    return runs


def withdraw_other_starts(spec: RunSpec, *, own: UUID | None) -> None:
    """Cancel the slower starts of the run's parent. If a request fails, segue only logs this, because slower starts
    also end by themselves.
    """
    wanted = FlowRunFilter(
        tags=FlowRunFilterTags(all_=["segue", spec.run_id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PENDING])),
    )
    try:
        with quick_client() as client:
            trains = FlowFilter(name=FlowFilterName(any_=["train"]))
            for run in client.read_flow_runs(flow_filter=trains, flow_run_filter=wanted):
                if run.id != own and store_of(run) == spec.store.url:
                    why = "another start of the run's parent was first"
                    client.set_flow_run_state(run.id, state_with(Word.DUPLICATE, why), force=True)
    except (*SILENCE, ObjectNotFound) as error:
        log.warning("other starts of the parent could not be cancelled reason=%s", type(error).__name__)


def _end(client: SyncPrefectClient, runlog: RunLog, dead: ParentRecord, runs: list[FlowRun], *, clock: Clock) -> str:
    history = read_history(runlog)
    last = history.decisions[-1] if history.decisions else None
    for run in runs[:1]:
        is_right = run.state is not None and (has_reached_goal(run.state) or run.state.is_cancelled())
        if last is not None and not is_right:
            client.set_flow_run_state(run.id, _state_of(last, history), force=True)
    settle_segments(client, runlog, now=clock.now())
    remove_parent(runlog.store, dead)
    return "it had ended; its state was set from its log"


def _state_of(last: DecisionEntry, history: History) -> State[Any]:
    return state_of_run(last.action, last.reason, late_seconds=late_seconds_at_end(history))


def will_start(run: FlowRun, dead: ParentRecord, *, now: datetime, limit_seconds: float) -> bool:
    """Whether this flow run has not begun but will begin, so that no second flow run is needed.

    The worker that took the flow run may have died together with the flow run. After `limit_seconds` without a
    heartbeat, the flow run therefore counts as dead.
    """
    if run.state is None or run.state.type in _QUEUED:
        return True
    is_new = str(run.id) != dead.flow_run_id and not run.state.is_final()
    return is_new and now - run.state.timestamp < timedelta(seconds=limit_seconds)


def start_seconds(client: SyncPrefectClient, run: FlowRun) -> float:
    """Return the longest expected time in seconds between a worker's start of the flow run and the parent's first
    heartbeat."""
    if run.state is not None and run.state.is_running():
        return _PROCESS_START_SECONDS
    try:
        pool = client.read_work_pool(run.work_pool_name) if run.work_pool_name else None
    except ObjectNotFound:
        pool = None
    return _PROCESS_START_SECONDS if pool is not None and pool.type == "process" else _START_SECONDS


def _starts_it_again(run: FlowRun, runlog: RunLog) -> bool:
    """Whether this flow run starts an ended run again. The flow run was requested after the run's end, and has not
    ended."""
    requested = run.parameters.get("requested_at_slot")
    ended = max((slot.number for slot in runlog.slots if isinstance(slot.entry, DecisionEntry)), default=-1)
    is_over = run.state is not None and (has_reached_goal(run.state) or run.state.is_cancelled())
    return isinstance(requested, int) and requested > ended and not is_over


def _is_cancelled(run: FlowRun) -> bool:
    return run.state is not None and (run.state.is_cancelled() or run.state.is_cancelling())


def _backoff_seconds(restarts: list[FlowRun], *, now: datetime) -> float:
    """Return the seconds until the next start. After each start that wrote nothing to the log, the wait is twice as
    long."""
    if not restarts or restarts[0].state is None:
        return 0.0
    wait = min(FIRST_BACKOFF_SECONDS * 2.0 ** (len(restarts) - 1), LONGEST_BACKOFF_SECONDS)
    since: timedelta = now - restarts[0].state.timestamp
    return wait - since.total_seconds()


def _tag(history: History) -> str:
    return f"recovered-at-{history.next_slot}"
