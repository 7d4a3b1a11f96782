"""Implements the orchestrator for Prefect, which starts each attempt and each standby as a flow run of a deployment."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling

from segue.doctor.pools.queue_judgement import blocker
from segue.doctor.pools.segment_job import AVOIDED_NODES
from segue.errors import OrchestratorError
from segue.policy.queueing import Queues
from segue.policy.starts import StartNumbers
from segue.prefect.answers import Answers, SharedReadings
from segue.prefect.api import SILENCE, create_flow_run, is_cancelled, quick_client, read_deployment, require_silence
from segue.prefect.flow_run_start import StartTimes, said_of_start, why_refused
from segue.prefect.messenger import Message, Messenger
from segue.prefect.queues import queues_of_attempt
from segue.prefect.run_pools import has_variable, read_pool
from segue.prefect.state_words import Word, in_words, is_by_a_person, state_with
from segue.records import Capacity, SegmentPlan, StopReason
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_QUEUE_SECONDS = 120.0
"""Seconds between two requests for the time that an attempt would wait for a slot of its pool."""
_BLOCKER_SECONDS = 20.0
"""Seconds between two requests for the reason why an attempt does not start."""
_SHARED_SECONDS = 10.0
"""Highest age in seconds of a pool's state that another parent of this process has read."""
_WORDS: dict[StopReason | None, Word] = {
    StopReason.NO_CAPACITY: Word.NO_CAPACITY,
    StopReason.START_FAILED: Word.START_FAILED,
    None: Word.WITHDRAWN,
}
"""Maps the reason for a cancellation to the word that the Cancelled state shows."""

# Keys: the URL of the API and the name of the deployment.
_pool_blockers: SharedReadings[str | None] = SharedReadings(period_seconds=_SHARED_SECONDS)


def label(spec: RunSpec, plan: SegmentPlan) -> str:
    """Return the name of an attempt in the Prefect UI."""
    place = plan.deployment.partition("/")[2] if plan.pools else plan.capacity
    return f"{spec.run_id}-seg{plan.segment}-a{plan.attempt}-{place}"


def idempotency_key(spec: RunSpec, name: str, *, log_id: str) -> str:
    """Return the idempotency key of an attempt or standby, with which repeated submissions create only one flow run.

    The key is unique within a flow. Two runs may have the same run id, in different stores or in a store that was
    emptied. The key therefore contains the id of the run's log.
    """
    return f"{spec.run_id}:{log_id}:{name}"


class PrefectOrchestrator:
    """Runs attempts and standbys as flow runs of the deployments in the run spec. A handle is an idempotency key.

    The class implements `segue.controller.orchestrator.Orchestrator`. No method waits for an API that does not answer.
    If the API does not answer, methods return the last known states, and a separate thread repeats each request until
    the API accepts it. `log_id` is the id of the run's log.
    """

    def __init__(self, *, log_id: str) -> None:
        self._log_id = log_id
        self._messenger = Messenger()
        self._flow_runs: dict[str, UUID] = {}
        self._deployments: dict[str, str] = {}
        self._blockers: Answers[str] = Answers(
            self._messenger, what="reason why an attempt does not start", period_seconds=_BLOCKER_SECONDS
        )
        self._queues: Answers[Queues] = Answers(self._messenger, what="queue of a pool", period_seconds=_QUEUE_SECONDS)
        self._start_times = StartTimes(self._messenger)
        self._pending: dict[str, Message] = {}
        self._missing: set[str] = set()

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        """Submit an attempt as a flow run, and return the handle of the flow run. A repeated call creates no second
        flow run.

        Prefect's `run_deployment` would first create a dummy task run. On SQLite, the dummy task run collides with the
        records of the current task. This method makes the current task run the parent of the new flow run, also in the
        graph of the UI.

        Raises:
            OrchestratorError: the deployment does not exist, or the API refuses the request.
        """
        self._deployments[idempotency_key(spec, name_of(plan), log_id=self._log_id)] = plan.deployment
        if plan.standby is not None:
            # A standby waits for this plan. If it has ended, a new standby with the same name takes the plan.
            return self._submit(*self._standby(spec, plan.standby, deployment=plan.deployment))
        return self._submit(*self._attempt(spec, plan))

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str:
        """Submit a further flow run for this attempt, next to the first flow run. Return the handle of the new flow
        run.

        Raises:
            OrchestratorError: the deployment does not exist, or the API refuses the request.
        """
        key, create = self._attempt(spec, plan, number=number)
        self._deployments[key] = plan.deployment
        return self._submit(key, create, is_first=False)

    def adopt(self, spec: RunSpec, plan: SegmentPlan, flow_run_id: str) -> str:
        """Return the handle of a plan without a submission. The machine of this flow run is kept for the plan."""
        key = idempotency_key(spec, name_of(plan), log_id=self._log_id)
        self._deployments[key], self._flow_runs[key] = plan.deployment, UUID(flow_run_id)
        return key

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        key, create = self._standby(spec, standby, deployment=deployment)
        try:
            with quick_client() as client:
                self._flow_runs[key] = create(client)
        except (*SILENCE, OrchestratorError) as error:
            log.warning("prefect could not create a standby standby=%s reason=%s", standby, type(error).__name__)
            return None
        return key

    def state(self, handle: str) -> str | None:
        self._messenger.require_accepted()
        if handle in self._missing:
            return "Refused"
        state = self._known_state(handle)
        return in_words(state) if state is not None and state.is_final() else None

    def is_running(self, handle: str) -> bool:
        state = self._known_state(handle)
        return state is not None and state.is_running()

    def starting_seconds(self, handle: str) -> float | None:
        flow_run_id = self._flow_runs.get(handle)
        return self._start_times.seconds(flow_run_id, self._known_state(handle)) if flow_run_id is not None else None

    def flow_run_id(self, handle: str) -> str | None:
        flow_run_id = self._flow_runs.get(handle)
        return str(flow_run_id) if flow_run_id is not None else None

    def why_waiting(self, handle: str) -> str | None:
        deployment, flow_run_id = self._deployments.get(handle), self._flow_runs.get(handle)
        if deployment is None:
            return None

        def ask(client: SyncPrefectClient) -> str | None:
            try:
                why = _pool_blockers.newest(
                    (client.api_url, deployment), lambda: blocker(read_pool(client, deployment))
                )
                return why or said_of_start(client, flow_run_id)
            except OrchestratorError as error:
                return str(error)  # The text is only shown; the submitted flow run does not depend on it.

        return self._blockers.newest(handle, ask)

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        deployment, flow_run_id = self._deployments.get(handle), self._flow_runs.get(handle)
        if deployment is None or flow_run_id is None:
            return None
        facts = {"run_id": spec.run_id, "deployment": deployment, "on_demand": spec.pools.on_demand}
        found = self._queues.newest(handle, lambda client: queues_of_attempt(client, flow_run_id, **facts))
        state = self._known_state(handle)
        # The answer may be two minutes old.
        has_slot = state is not None and not state.is_scheduled()
        return found.without_spot if found is not None and has_slot else found

    def refusal(self, handle: str) -> str | None:
        flow_run_id = self._flow_runs.get(handle)
        if flow_run_id is None:
            return None
        try:
            with quick_client() as client:
                return why_refused(client.read_flow_run(flow_run_id))
        except (*SILENCE, ObjectNotFound) as error:
            log.warning("prefect did not say if the pool started the attempt reason=%s", type(error).__name__)
            return None

    def was_cancelled(self, handle: str) -> bool:
        known, flow_run_id = self._known_state(handle), self._flow_runs.get(handle)
        if known is not None and known.is_final():
            return is_by_a_person(known)
        return flow_run_id is not None and is_cancelled(flow_run_id)

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        # If there is no process to end, Prefect replaces Cancelling by a state without a reason.
        word = _WORDS.get(reason)
        ended: State[Any] = state_with(word, why) if word is not None else Cancelled(message=why)
        self._set_state(handle, Cancelling(message=why), unless_begun=ended)

    def cancel_standby(self, handle: str, why: str) -> None:
        # The state is not Cancelling, because a standby that never started has no process that would react.
        self._set_state(handle, Cancelled(message=why))

    def mark_lost(self, handle: str, why: str) -> None:
        self._set_state(handle, state_with(Word.LOST, why))

    def deliver(self, message: Message) -> None:
        """Send a request that concerns only the UI, without waiting for the answer."""
        self._messenger.deliver(message)

    def close(self) -> None:
        """Stop watching the flow runs. Pending requests are repeated until this process ends."""
        self._messenger.close()

    def _known_state(self, handle: str) -> State[Any] | None:
        flow_run_id = self._flow_runs.get(handle)
        return self._messenger.state(flow_run_id) if flow_run_id is not None else None

    def _submit(self, key: str, create: Callable[[SyncPrefectClient], UUID], *, is_first: bool = True) -> str:
        def keep(client: SyncPrefectClient) -> None:
            try:
                self._flow_runs[key] = create(client)
            except SILENCE as error:
                require_silence(error)
                raise

        def keep_if_possible(client: SyncPrefectClient) -> None:
            try:
                keep(client)
            except OrchestratorError as error:
                # The other starts of the attempt are not disturbed.
                log.warning("another start of the attempt was refused reason=%s", error)
                self._missing.add(key)

        try:
            with quick_client() as client:
                keep(client)
        except SILENCE as error:
            log.warning(
                "prefect could not create the attempt's flow run yet, retrying key=%s reason=%s",
                key,
                type(error).__name__,
            )
            self._pending[key] = keep if is_first else keep_if_possible
            self._messenger.deliver(self._pending[key])
        return key

    def _set_state(self, handle: str, state: State[Any], *, unless_begun: State[Any] | None = None) -> None:
        """Set the state of a flow run that has not ended. If no worker has taken the flow run, set the state
        `unless_begun` instead.
        """
        if handle in self._pending:
            self._messenger.withdraw(self._pending.pop(handle))
        flow_run_id = self._flow_runs.get(handle)
        if flow_run_id is None:
            return  # The flow run was never created.

        def set_unless_final(client: SyncPrefectClient) -> None:
            known = client.read_flow_run(flow_run_id).state
            is_queued = known is None or known.is_scheduled()
            if known is None or not known.is_final():
                asked = unless_begun if unless_begun is not None and is_queued else state
                client.set_flow_run_state(flow_run_id, asked, force=True)

        self._messenger.deliver(set_unless_final)

    def _attempt(
        self, spec: RunSpec, plan: SegmentPlan, *, number: int = 1
    ) -> tuple[str, Callable[[SyncPrefectClient], UUID]]:
        key = idempotency_key(spec, name_of(plan, number), log_id=self._log_id)
        turn = StartNumbers.of(plan).turn_of(number)
        facts = {
            "parameters": _parameters(spec, plan=plan.model_dump(mode="json")),
            "name": label(spec, plan) + (f"-start{turn}" if turn > 1 else ""),
            "tags": ["segue", spec.run_id, plan.capacity.value],
            "idempotency_key": key,
        }
        return key, partial(_create, deployment=plan.deployment, facts=facts, avoided_nodes=plan.avoided_nodes)

    def _standby(
        self, spec: RunSpec, standby: str, *, deployment: str
    ) -> tuple[str, Callable[[SyncPrefectClient], UUID]]:
        key = idempotency_key(spec, standby, log_id=self._log_id)
        facts = {
            "parameters": _parameters(spec, standby=standby),
            "name": f"{spec.run_id}-{standby.replace('spare', 'standby')}",
            "tags": ["segue", spec.run_id, Capacity.SPOT.value],
            "idempotency_key": key,
        }
        return key, partial(_create, deployment=deployment, facts=facts)


def _parameters(spec: RunSpec, **of_attempt: Any) -> dict[str, Any]:
    context = TaskRunContext.get()
    parent = context.task_run.flow_run_id if context is not None else None
    return {"spec": spec.model_dump(mode="json"), "parent": str(parent) if parent is not None else None} | of_attempt


def name_of(plan: SegmentPlan, number: int = 1) -> str:
    """Return the part of the idempotency key that names the flow run for this start of a plan."""
    return plan.standby or f"{plan.segment}:{plan.attempt}" + (f":start{number}" if number > 1 else "")


def _create(
    client: SyncPrefectClient, *, deployment: str, facts: dict[str, Any], avoided_nodes: tuple[str, ...] = ()
) -> UUID:
    found = read_deployment(client, deployment)
    if avoided_nodes and has_variable(client, found, AVOIDED_NODES):
        facts["job_variables"] = {AVOIDED_NODES: list(avoided_nodes)}
    # The id is kept for a second try, because the server creates the task run only once.
    facts["parent_task_run_id"] = facts.get("parent_task_run_id") or _shown_task_run(client)
    return create_flow_run(client, found.id, **facts)


def _shown_task_run(client: SyncPrefectClient) -> UUID | None:
    """Return the id of the current task run, which links the new flow run to the task run in the graph of the UI.

    Return None if the server refuses the task run. Prefect sends task runs to the server as events, which arrive
    seconds later. A flow run can refer only to a task run that the server has. For this reason, this function creates
    the task run under its own id. The later events update this task run.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.flow_run_id is None:
        return None
    run = context.task_run
    create = partial(
        client.create_task_run,
        task=context.task,
        flow_run_id=context.task_run.flow_run_id,
        dynamic_key=run.dynamic_key,
        id=run.id,
        name=run.name,
        state=run.state,
    )
    try:
        return create().id
    except SILENCE as error:
        log.info("the flow run could not be linked to its task in the UI's graph reason=%s", type(error).__name__)
        return None
