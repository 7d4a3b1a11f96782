"""A slot that begins because data has arrived, through a real Prefect server: its event, the look, one slot."""

from __future__ import annotations

import pytest
from prefect.client.schemas.filters import FlowFilter, FlowFilterName
from prefect.events import Event, Resource

from segue.deployments.retrain_deployments import deploy
from segue.flows.watch import watch
from segue.prefect.state_words import in_words
from segue.retraining.slots import run_id_of
from segue.stores import open_store
from tests.flows.conftest import REPO
from tests.flows.schedules.test_slots_run import client, final_state, monthly, until
from tests.retraining.monthly import Monthly

__all__ = ["client", "monthly"]

pytestmark = pytest.mark.prefect


def delivered(client, monthly: Monthly) -> None:
    """What the program sends that has delivered the data."""
    event = Event(
        event=f"lake.{monthly.spec.name}.delivered", resource=Resource({"prefect.resource.id": "lake.points"})
    )
    client.request("POST", "/events", json=[event.model_dump(mode="json")])


def messages(client, flow: str, deployment_id) -> list[str]:
    """What the flow runs of a deployment ended with."""
    found = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=[flow])))
    ended = [run for run in found if run.deployment_id == deployment_id and run.state and run.state.is_final()]
    assert not [run.state for run in ended if not run.state.is_completed()]
    return [run.state.message or "" for run in ended]


def test_a_look_that_fails_keeps_no_slot_from_being_started(client, monthly):
    monthly.write(1, 2, 3)
    drift = {"data": "nowhere://served/", "max_psi": 0.25}
    data = {"files": f"{monthly.folder}/*.parquet", "period": None}
    monthly.write_spec(trigger={"arrival": {"settle_minutes": 0}, "drift": drift}, data=data)
    open_store(monthly.store_folder).check()
    watch(str(monthly.file), return_state=True)  # Asks for a slot.
    state = watch(str(monthly.file), return_state=True)
    assert len(monthly.models.triggers) == 1
    assert "nowhere://served/" in state.message
    assert f"there is no deployment 'retrain/{monthly.spec.name}'" in state.message  # Its start was tried.


@pytest.mark.matrix
def test_data_that_is_delivered_twice_begins_one_slot(client, monthly):
    name = monthly.spec.name
    monthly.write(1, 2, 3)
    arrival = {"every_minutes": 600, "event": f"lake.{name}.delivered", "arrival": {"settle_minutes": 0}}
    monthly.write_spec(trigger=arrival, schedule=None, data={"files": f"{monthly.folder}/*.parquet", "period": None})
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=True)
    looks = client.read_deployment_by_name(f"watch/{name}").id
    delivered(client, monthly)
    until(lambda: any("started" in each for each in messages(client, "watch", looks)), what="the look")
    trigger = next(iter(monthly.models.triggers.values()))
    before = len(messages(client, "watch", looks))
    delivered(client, monthly)
    until(lambda: len(messages(client, "watch", looks)) > before, what="another look")
    assert len(monthly.models.triggers) == 1
    named = run_id_of(monthly.spec, trigger.slot)
    runs = client.read_flow_runs(flow_filter=FlowFilter(name=FlowFilterName(any_=["retrain"])))
    mine = [run for run in runs if run.name == named]
    assert len(mine) == 1
    state = final_state(client, mine[0].id)
    assert in_words(state) == "Promoted", state
    assert [each.slot for each in monthly.models.candidates.values()] == [trigger.slot]
    # Without [trigger] nothing looks any more.
    monthly.write_spec(schedule=None)
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=False)
    assert not [each for each in client.read_deployments() if each.id == looks]
