"""Slots of a scheduled retraining through a real Prefect server and real workers."""

from __future__ import annotations

import time
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from segue.deployments.retraining import deploy, start_slot

from tests.flows.conftest import REPO
from tests.retraining.monthly import Monthly, slot_of_month

pytestmark = pytest.mark.prefect

LIMIT_SECONDS = 240


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def monthly(tmp_path) -> Monthly:
    return Monthly(tmp_path / "points")


def started(client, monthly: Monthly, month: int) -> UUID:
    spec = monthly.spec
    deploy(client, spec, file=str(monthly.file), working_dir=REPO, active=False)
    return start_slot(client, spec, slot_of_month(month))


def final_state(client, flow_run_id: UUID):
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while True:
        state = client.read_flow_run(flow_run_id).state
        if state is not None and state.is_final():
            return state
        assert time.monotonic() < give_up_at
        time.sleep(0.3)


def artifact(client, key: str) -> str:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return str(max(found, key=lambda each: each.updated).data)


def test_a_slot_trains_and_promotes_and_bad_data_buys_nothing(client, monthly):
    monthly.write(1, 2, 3)
    first = final_state(client, started(client, monthly, 4))
    assert (first.type.value, first.name) == ("COMPLETED", "Promoted"), first
    assert "no model was in service" in first.message
    assert monthly.models.in_service == 1

    again = final_state(client, started(client, monthly, 4))
    assert (again.name, [*monthly.models.candidates]) == ("Promoted", [1])

    monthly.write(4, nulls=7)
    refused = final_state(client, started(client, monthly, 5))
    assert (refused.type.value, refused.name) == ("FAILED", "DataGate"), refused
    assert "7 of 600 rows" in refused.message
    assert monthly.models.in_service == 1
    assert monthly.store_folder.joinpath("points-20130501t0600").exists() is False
    page = artifact(client, "segue-model-points-data")
    assert "Nothing was bought" in page
    assert "2013-04.parquet, row 0" in page
