"""A slot that asks a person, through a real Prefect server: in its UI, from the command line, and with nobody there."""

from __future__ import annotations

import json
from uuid import UUID

import pytest
from prefect.states import Crashed

from segue.clock import SystemClock
from segue.prefect.recovery.look import look_at
from segue.prefect.state_words import in_words
from segue.retraining.model_record import Decision
from segue.retraining.slots import store_of
from tests.flows.schedules.test_slots_run import artifact, client, events, final_state, monthly, started, until
from tests.retraining.monthly import Monthly, slot_of_month

__all__ = ["client", "monthly"]

pytestmark = pytest.mark.prefect


def suspended(client, flow_run_id: UUID) -> UUID:
    def waits() -> bool:
        state = client.read_flow_run(flow_run_id).state
        assert not state.is_final(), state
        return state.is_paused()

    until(waits, what="the question")
    return flow_run_id


def gone_on(client, monthly: Monthly) -> str:
    """What a look of recovery says of the one open slot, once its flow run has left it."""

    def looked() -> str:
        found = look_at(client, store_of(monthly.spec))
        assert found.troubles == ()
        return next((line for line in found.done if "_slot-" in line), "")

    return until(looked, what="a look at the slot")


@pytest.mark.matrix
def test_a_slot_waits_for_a_person_who_answers_in_the_ui_or_on_the_command_line(client, monthly):
    name = monthly.spec.name
    monthly.write(1, 2, 3, 4)
    monthly.write_spec(promotion="ask", decide_within_hours=1.0, evaluation=None, overlap="queue")
    first = suspended(client, started(client, monthly, 4))
    assert (monthly.models.in_service, [*monthly.models.waiting]) == (None, [1])
    assert len(until(lambda: events(client, "segue.model.waiting", model=name), what="the event")) == 1
    assert "waits for a decision" in artifact(client, f"segue-model-{name}-card")
    form = json.loads(client.read_flow_run_input(first, "suspended-promotion-1-1-schema"))
    assert [*form["properties"]] == ["answer", "name", "why"]
    assert "waits for a decision: `segue models approve" in gone_on(client, monthly)
    refused = client.resume_flow_run(first, run_input={"answer": "perhaps", "name": "anna", "why": "seen"})
    assert refused.status == "REJECT"
    client.resume_flow_run(first, run_input={"answer": "approve", "name": "anna", "why": "seen"})
    state = final_state(client, first)
    assert in_words(state) == "Promoted", state
    assert "approved by anna: seen" in state.message
    assert monthly.models.in_service == 1
    [given] = client.filter_flow_run_input(first, "suspended-promotion-1-1-response", limit=1, exclude_keys=set())
    assert given.created is not None  # When it was answered is what counts.

    second = suspended(client, started(client, monthly, 5))
    client.set_flow_run_state(second, Crashed(), force=True)
    assert "its flow run continues" in gone_on(client, monthly)
    until(lambda: not client.read_flow_run(second).state.is_scheduled(), what="another start of the flow run")
    suspended(client, second)
    assert client.read_flow_run(second).empirical_policy.pause_keys == {"promotion-2-1", "promotion-2-2"}
    # Nobody has to look at the UI: the decision is in the store, and recovery lets the flow run end.
    rejected = Decision(version=2, answer="rejected", by="ben", why="a holiday")
    monthly.log.decide(rejected, now=SystemClock().now())
    assert "its flow run continues" in gone_on(client, monthly)
    state = final_state(client, second)
    assert in_words(state) == "Not promoted", state
    assert "rejected by ben: a holiday" in state.message
    assert monthly.models.slots[slot_of_month(5)].decision == rejected
    assert until(lambda: look_at(client, store_of(monthly.spec)).open_runs == 0, what="nothing left open")
