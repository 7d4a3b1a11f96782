"""Asks in the Prefect UI if a candidate should be promoted. The flow run that asks is suspended until a person answers.

Prefect only transports the answer. The model's log records the decision, so segue may safely ask the question again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.flow_runs import suspend_flow_run
from prefect.input import RunInput
from prefect.input.run_input import keyset_from_paused_state
from prefect.states import Scheduled, Suspended
from pydantic import Field, ValidationError

from segue.clock import Clock, SystemClock
from segue.errors import DamagedVersionError, ModelChangedError
from segue.prefect.api import SILENCE, own_flow_run_id, quick_client
from segue.prefect.parent_clock import as_parent, time_at
from segue.prefect.state_words import Word, state_with
from segue.prefect.ui.announcements import Logger
from segue.retraining.history import SlotState
from segue.retraining.model_record import Answer, Decision
from segue.retraining.models import ModelsLog, expired
from segue.retraining.pages import question
from segue.retraining.spec import RetrainSpec
from segue.retraining.versions.version_files import require_artifact

_LOOK_SECONDS = 5.0


class PromotionAnswer(RunInput):
    """The form for the answer of a person in the UI."""

    answer: Literal["approve", "reject"] = Field(
        description="Decision about the version; approve puts it into service."
    )
    name: str = Field(min_length=1, description="Your name, for the model's history.")
    why: str = Field(min_length=1, description="Reason, for the model's history.")


class _Given(NamedTuple):
    """An answer, and its time by the server's clock. The flow run may begin again much later than this time."""

    answer: PromotionAnswer
    at: datetime


class Questions:
    """Asks a person if the candidates of a model's slots should be promoted, and records the answers."""

    def __init__(
        self, spec: RetrainSpec, log: ModelsLog, *, clock: Clock, logger: Logger, show: Callable[[datetime], None]
    ) -> None:
        """Before a person is asked about a slot, `show` publishes the pages of the slot."""
        self._spec, self._log, self._clock, self._logger, self._show = spec, log, clock, logger, show

    def answered(self, slot: datetime) -> SlotState:
        """Wait for the decision about a slot's candidate, and return the ended slot.

        The decision may also come from the command line. The end of the decision period also counts as a decision.
        Until the decision, this flow run is suspended: its process ends, and the flow run begins again after the
        decision. Prefect cannot suspend a flow run without a deployment, or while Prefect does not answer. The flow run
        then waits in this method.

        Raises:
            StoreReadError, StoreWriteError: a retry is safe.
        """
        while True:
            state = self._read(slot)
            if not state.is_waiting:
                return state
            try:
                self._look(state)
            except SILENCE as error:
                self._logger.warning("the question cannot be shown in prefect now reason=%s", type(error).__name__)
                self._clock.sleep(_LOOK_SECONDS)

    def _look(self, state: SlotState) -> None:
        """Record the answer from the UI. If the UI has no answer, ask in the UI. Without a deployment, only wait a
        moment.
        """
        assert state.version is not None
        assert state.decide_by is not None
        own = _own()
        # The key has the version, because an answer concerns only the candidate of the answered form, not the candidate
        # of a later question.
        start, problem = f"promotion-{state.version}-", ""
        keys = own.empirical_policy.pause_keys or () if own is not None else ()
        questions = sum(key.startswith(start) for key in keys)
        given = _answer(own, f"{start}{questions}") if own is not None and questions else None
        if given is not None:
            problem = self._take(given, state.version)
            if not problem:
                return
        if self._clock.now() >= state.decide_by:
            self._decide(expired(state.version, state.decide_by), at=self._clock.now())
        elif own is None or own.deployment_id is None:  # Prefect restarts only runs of deployments.
            self._clock.sleep(_LOOK_SECONDS)
        else:
            _withdraw_other_questions(own)
            self._show(state.slot)
            text = question(self._log.read(), state.version, zone=self._spec.zone, problem=problem)
            form = PromotionAnswer.with_initial_data(description=text)
            suspend_flow_run(wait_for_input=form, key=f"{start}{questions + 1}")

    def _take(self, given: _Given, version: int) -> str:
        """Record an answer, and return an empty text. Return the reason if the answer is not valid and must be asked
        again.
        """
        answer: Answer = "approved" if given.answer.answer == "approve" else "rejected"
        try:
            if answer == "approved":
                require_artifact(self._log.store, self._log.read().version(version).weights)
            decision = Decision(version=version, answer=answer, by=given.answer.name, why=given.answer.why)
            self._decide(decision, at=given.at)
        except (DamagedVersionError, ModelChangedError) as error:
            self._logger.warning("answer refused, asking the question again reason=%s", error)
            return str(error)
        return ""

    def _decide(self, decision: Decision, *, at: datetime) -> None:
        models = as_parent(lambda: self._log.decide(decision, now=at), what="decision")
        stands = models.slot_of(decision.version).decision
        if stands is not None and stands != decision:
            self._logger.warning("the candidate was already decided: %s", stands.sentence)

    def _read(self, slot: datetime) -> SlotState:
        return as_parent(self._log.read, what="log of the model").slots[slot]


def _answer(own: FlowRun, question: str) -> _Given | None:
    """Return the answer to a question of this flow run.

    Return None if the UI has no answer, because the decision was made elsewhere.
    """
    key = keyset_from_paused_state(Suspended(pause_key=question))["response"]
    with quick_client() as client:
        inputs = client.filter_flow_run_input(own.id, key_prefix=key, limit=1, exclude_keys=set())
    found = [each for each in inputs if each.key == key]
    if not found:
        return None
    try:
        answer = PromotionAnswer.model_validate_json(found[0].value)
    except ValidationError:
        return None  # The form did not write this value.
    return _Given(answer, at=found[0].created or SystemClock().now())


def go_on(client: SyncPrefectClient, run: FlowRun) -> None:
    """Restart a flow run that has no process, or that was suspended and has no answer."""
    # Prefect's own `resume` is not used, because it treats a missing answer as a wrong answer.
    state: State[Any] = Scheduled(scheduled_time=time_at(client), message="it continues with its slot")
    client.set_flow_run_state(run.id, state, force=True)


def _withdraw_other_questions(own: FlowRun) -> None:
    """End the other suspended flow runs of the same slot, because this flow run now asks the question."""
    wanted = FlowRunFilter(
        name=FlowRunFilterName(any_=[own.name]),
        deployment_id=FlowRunFilterDeploymentId(any_=[own.deployment_id] if own.deployment_id else []),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED])),
    )
    with quick_client() as client:
        for other in client.read_flow_runs(flow_run_filter=wanted):
            if other.id != own.id:
                why = f"the flow run {own.id} asks for the decision now"
                client.set_flow_run_state(other.id, state_with(Word.DUPLICATE, why), force=True)


def _own() -> FlowRun | None:
    flow_run_id = own_flow_run_id()
    if flow_run_id is None:
        return None
    with quick_client() as client:
        return client.read_flow_run(flow_run_id)
