"""Recovers the slots of scheduled retrainings. If the flow run of a slot has died, recovery starts it again."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Scheduled, to_state_create

from segue.errors import OrchestratorError
from segue.prefect.api import create_flow_run
from segue.prefect.parent_clock import time_at
from segue.prefect.recovery.dead_parents import known_server_id, start_seconds, will_start
from segue.prefect.slots.questions import go_on
from segue.prefect.slots.turns import stop_run
from segue.prefect.state_words import Word, is_by_a_person, state_with
from segue.records import ParentRecord
from segue.retraining.history import Models, SlotState
from segue.retraining.model_record import SlotEnd, SlotOutcome
from segue.retraining.models import ModelsLog, expired
from segue.retraining.slots import model_and_slot_of, slot_at, stamp_of
from segue.runlog.parents import read_parent, remove_parent
from segue.spec import StoreSpec
from segue.stores import open_store

_MOST_RESTARTS = 5
_LEFT_ALONE = timedelta(minutes=15)
"""Time for another server to continue the flow run of a decided slot.

If the other server takes longer, its database may be lost.
"""
_MOST_STARTS = 20
"""Maximum number of starts of one flow run that waits for a decision. Each answer needs one start."""


def is_slot(record: ParentRecord) -> bool:
    """Whether a heartbeat belongs to a slot. The result is False for the heartbeat of a run's parent."""
    return model_and_slot_of(record.run_id) is not None


def recover_slot(client: SyncPrefectClient, place: StoreSpec, dead: ParentRecord, *, take_over: bool = False) -> str:
    """Start the flow run of a slot again, and return a text about the action.

    Several processes may call this function at any time. After five restarts without an end, the slot has failed.

    Raises:
        OrchestratorError: the slot cannot be started again. A person must correct the cause.
        StoreReadError, StoreWriteError: a retry is safe.
    """
    known = model_and_slot_of(dead.run_id)
    assert known is not None
    store, slot = open_store(place), known[1]
    log = ModelsLog(store, known[0], spec=place)
    models = log.read()
    state = models.slots.get(slot)
    what = _settle(client, log, dead, models, state, take_over=take_over)
    if what is not None:
        return what
    if dead.flow_run_id is None:
        why = "its process has died, and it had no flow run to start again"
        _end(log, dead, slot, outcome="failed", why=why)
        return "it was started by hand, and is not started again"
    restarts = _restarts(client, dead)
    before = restarts[0] if restarts and dead.adopted_by is not None else _read(client, dead)
    if before.state is not None and is_by_a_person(before.state):
        _end(log, dead, slot, outcome="cancelled", why="its flow run was cancelled")
        return "its flow run was cancelled"
    if before.state is not None and before.state.is_paused() and not _is_of_adopter(before, dead):
        return "its flow run is suspended until a person resumes it"
    newest, now = restarts[0] if restarts else None, time_at(client)
    if newest is not None and will_start(newest, dead, now=now, limit_seconds=start_seconds(client, newest)):
        return "it will be started"
    if len(restarts) >= _MOST_RESTARTS:
        why = f"its flow run died {len(restarts) + 1} times"
        _end(log, dead, slot, outcome="failed", why=why)
        fix = "read the log of its newest flow run, correct the cause, and start the slot again: `segue retrain start`."
        raise OrchestratorError(what=f"the slot has failed: {why}.", fix=fix)
    _start_again(client, before, dead, slot=slot, number=len(restarts))
    return "its flow run was started again"


def _restarts(client: SyncPrefectClient, dead: ParentRecord) -> Sequence[FlowRun]:
    """Return the flow runs that recovery has created for a slot, the newest first."""
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", dead.run_id]))
    found = client.read_flow_runs(flow_run_filter=wanted)
    # The flow runs are not sorted by the due time, because all may have the same due time.
    return sorted(found, key=lambda run: run.created or datetime.min.replace(tzinfo=UTC), reverse=True)


def _is_of_adopter(run: FlowRun, dead: ParentRecord) -> bool:
    """Whether a flow run belongs to a later slot, which runs this slot first."""
    return dead.adopted_by is not None and str(run.id) == dead.flow_run_id


def _decided_at(models: Models, state: SlotState) -> datetime:
    return max(event.at for event in models.events if event.version == state.version)


def _end(log: ModelsLog, dead: ParentRecord, slot: datetime, *, outcome: SlotOutcome, why: str) -> None:
    state = log.read().slots.get(slot)
    if state is not None and state.start is not None and state.start.run is not None:
        stop_run(state.start, why=why)
    log.end_slot(SlotEnd(slot=slot, outcome=outcome, why=why))
    remove_parent(log.store, dead)


def _settle(
    client: SyncPrefectClient,
    log: ModelsLog,
    dead: ParentRecord,
    models: Models,
    state: SlotState | None,
    *,
    take_over: bool,
) -> str | None:
    """Handle a slot that has ended, waits for a decision, or belongs to another server. Otherwise return None."""
    is_asked = state is not None and state.decide_by is not None and (state.is_waiting or state.is_done)
    is_elsewhere = bool(dead.server_id) and not take_over and dead.server_id != known_server_id()
    if state is not None and is_asked and not is_elsewhere:
        what = _go_on_asked(client, log, dead, state)
        if what is not None:
            return what
    if state is not None and not state.is_open:
        is_asked_there = is_asked and is_elsewhere
        if not is_asked_there or time_at(client) - _decided_at(models, state) > _LEFT_ALONE:
            remove_parent(log.store, dead)
            return "it had ended"
    if is_elsewhere:
        return "its flow run was on another Prefect server; `segue recover --take-over` starts it here"
    is_waiting = state is not None and state.is_waiting
    if not is_waiting and dead.adopted_by is not None and read_parent(log.store, dead.adopted_by) is not None:
        return f"the flow run of {dead.adopted_by} continues it"
    return None


def _go_on_asked(client: SyncPrefectClient, log: ModelsLog, dead: ParentRecord, state: SlotState) -> str | None:
    """Continue the flow run of a slot whose candidate waits for a decision, or has a decision.

    Return None if the flow run cannot continue. An answer in the UI belongs to one flow run, so the slot's own flow run
    must continue. If the slot ran in the flow run of a later slot, it gets a separate flow run. The separate flow run
    asks for the decision, or shows the end of the slot.
    """
    assert state.decide_by is not None
    now, run = time_at(client), _own_flow_run(client, dead)
    waits = f"version {state.version} waits for a decision: `segue models approve {log.name}`"
    is_late = now >= state.decide_by
    if run is None:
        adopter = _found(client, dead) if dead.adopted_by is not None else None
        if adopter is not None and adopter.deployment_id is not None:
            _start_again(client, adopter, dead, slot=state.slot, number=0)
            return "a separate flow run continues it"
        if not state.is_waiting:
            return None
        if not is_late:
            return waits
        assert state.version is not None
        log.decide(expired(state.version, state.decide_by), now=now)
        remove_parent(log.store, dead)
        return "nobody has decided in time"
    match next_start(run, state, now=now, start_seconds=start_seconds(client, run)):
        case "wait":
            return waits
        case "starts":
            return "its flow run will be started"
        case "none":
            return None
    go_on(client, run)
    return "nobody has decided in time, and its flow run continues" if is_late else "its flow run continues"


def next_start(
    run: FlowRun, state: SlotState, *, now: datetime, start_seconds: float
) -> Literal["wait", "starts", "go on", "none"]:
    """Return the next action for a flow run without a process, whose slot waits or waited for a person's decision."""
    if run.state is None or is_by_a_person(run.state) or run.deployment_id is None:
        return "none"
    if run.state.is_paused():
        is_undecided = state.is_waiting and state.decide_by is not None and now < state.decide_by
        return "wait" if is_undecided else "go on"
    if run.state.is_scheduled():
        return "starts"
    if run.state.is_final():
        return "go on" if run.run_count < _MOST_STARTS and (state.is_open or run.state.is_crashed()) else "none"
    is_starting = now - run.state.timestamp < timedelta(seconds=start_seconds)
    return "starts" if is_starting else "go on"


def _own_flow_run(client: SyncPrefectClient, dead: ParentRecord) -> FlowRun | None:
    if dead.adopted_by is None:
        return _found(client, dead)
    return next(iter(_restarts(client, dead)), None)


def _found(client: SyncPrefectClient, dead: ParentRecord) -> FlowRun | None:
    """Return the flow run of a record. Return None if the flow run was deleted, or if the record has no flow run."""
    if dead.flow_run_id is None:
        return None
    with suppress(ObjectNotFound):
        return client.read_flow_run(UUID(dead.flow_run_id))
    return None


def _read(client: SyncPrefectClient, dead: ParentRecord) -> FlowRun:
    try:
        return client.read_flow_run(UUID(dead.flow_run_id))
    except ObjectNotFound:
        raise OrchestratorError(
            what=f"the flow run of {dead.run_id} was deleted.", fix="start the slot again: `segue retrain start`."
        ) from None


def _start_again(
    client: SyncPrefectClient, before: FlowRun, dead: ParentRecord, slot: datetime, *, number: int
) -> None:
    if before.deployment_id is None:
        fix = "deploy the retraining: `segue retrain deploy`, and start the slot again."
        raise OrchestratorError(what=f"the flow run of {dead.run_id} has no deployment.", fix=fix)
    if before.state is not None and not before.state.is_final() and not _is_of_adopter(before, dead):
        message = "its process has died; another flow run continues the slot"
        client.set_flow_run_state(before.id, state_with(Word.PARENT_LOST, message), force=True)
    known = model_and_slot_of(dead.run_id)
    assert known is not None
    create_flow_run(
        client,
        before.deployment_id,
        name=f"{known[0]}-{stamp_of(slot)}",
        tags=["segue", dead.run_id],
        idempotency_key=f"{dead.run_id}:{dead.parent_id}:{number}",
        **_same_slot(before, slot),
    )


def _same_slot(before: FlowRun, slot: datetime) -> dict[str, Any]:
    """Return the arguments with which a new flow run belongs to the same slot.

    If the slot comes from the schedule, the new flow run is due at the same time and gets no slot as a parameter. In
    this case, the new flow run checks again for slots that were missed before this slot.
    """
    due = before.expected_start_time
    if due is not None and before.parameters.get("slot") is None and slot_at(due) == slot:
        return {"parameters": before.parameters, "state": to_state_create(Scheduled(scheduled_time=due))}
    return {"parameters": before.parameters | {"slot": slot.isoformat()}}
