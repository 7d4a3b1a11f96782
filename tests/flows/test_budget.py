"""A run through Prefect that its budget stops: its state, its events, and how it goes on with more money."""

from __future__ import annotations

import pytest
from prefect.client.schemas.objects import StateType

from segue.prefect.state_words import Word, state_of_run, word_of
from segue.runlog.history import read_history
from tests.flows.test_live_run import events
from tests.flows.test_runs import client, final_state, start, until

__all__ = ["client"]

pytestmark = pytest.mark.prefect

HOUR = 3600.0
FACTS = {
    "steps": 300,
    "config": {"pause_seconds": 0.06},
    "pools": {"spot_price": HOUR, "on_demand_price": 3 * HOUR},
    "policy": {"changeover_seconds": 0.5},
}


def test_the_state_names_the_budget():
    state = state_of_run("budget", "the budget is used up")
    assert (state.type, state.message) == (StateType.FAILED, "Out of budget: the budget is used up")


@pytest.mark.soak
@pytest.mark.matrix
def test_a_run_is_stopped_by_its_budget_and_goes_on_with_more_money(client, make_spec):
    spec = make_spec(run_id="capped", budget=12.0, **FACTS)
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert (state.type, word_of(state)) == (StateType.FAILED, Word.OUT_OF_BUDGET)
    assert state.message.startswith("Out of budget: the budget is used up: ")
    committed = read_history(runlog.reload()).committed_step
    assert 0 < committed < 300
    until(lambda: "segue.budget" in events(client, "capped"), what="the event")
    more = make_spec(run_id="capped", budget=800.0, **FACTS)
    _, parent = start(client, more)
    assert final_state(client, parent).name == "Completed"
    assert read_history(runlog.reload()).last_reports()[-1].from_step == committed
