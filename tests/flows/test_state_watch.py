"""The states of many flow runs are read in one request, and a deleted one counts as crashed."""

from __future__ import annotations

from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Completed, Scheduled

from segue.flows.notify import notify
from segue.prefect.messenger import states_of
from segue.prefect.state_words import Word, word_of

pytestmark = pytest.mark.prefect


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def test_states_of_many_flow_runs_are_those_of_the_server(client):
    facts = {"parameters": {"title": "a", "text": "b"}}
    waiting, ended = (client.create_flow_run(notify, state=state, **facts) for state in (Scheduled(), Completed()))
    deleted = uuid4()
    found = states_of(client, [waiting.id, deleted, ended.id])
    assert {known: state.type for known, state in found.items()} == {
        waiting.id: StateType.SCHEDULED,
        deleted: StateType.CRASHED,
        ended.id: StateType.COMPLETED,
    }
    assert word_of(states_of(client, [deleted])[deleted]) is Word.DELETED
