"""Slots of a scheduled retraining through a real Prefect server and real workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.events.filters import EventFilter, EventNameFilter
from prefect.states import Cancelling, Scheduled

from segue.deployments.retrain_deployments import deploy, start_slot
from segue.prefect.recovery.look import look_at
from segue.prefect.state_words import in_words
from segue.retraining.slots import run_id_of, store_of
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.stores import open_store
from tests.flows.conftest import REPO
from tests.retraining.monthly import Monthly, slot_of_month

pytestmark = pytest.mark.prefect

LIMIT_SECONDS = 300
SEGUE = str(Path(sys.executable).parent / "segue")
LONG = {"steps": 600, "config": {"pause_seconds": 0.02}}


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def monthly(tmp_path, request) -> Monthly:
    # A name of its own: one server has the artifacts and deployments of all these tests.
    return Monthly(tmp_path / "points", name=f"points{zlib.crc32(request.node.name.encode())}")


def started(client, monthly: Monthly, month: int) -> UUID:
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=False)
    return start_slot(client, monthly.spec, slot_of_month(month))


def until(condition, *, what: str):
    give_up_at = time.monotonic() + LIMIT_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"waited {LIMIT_SECONDS} s for {what}"
        time.sleep(0.25)
    return answer


def final_state(client, flow_run_id: UUID):
    def over():
        state = client.read_flow_run(flow_run_id).state
        return state if state is not None and state.is_final() else None

    return until(over, what="the slot's flow run")


def training(monthly: Monthly, month: int, *, past_step: int = 0):
    """The heartbeat of the slot's run once it trains."""
    opened = open_store(store_of(monthly.spec))
    runlog = RunLog(opened, run_id_of(monthly.spec, slot_of_month(month)))

    def beat():
        if not monthly.has_store:
            return None
        history = read_history(runlog)
        plan = history.open_plan
        attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
        found = last_heartbeat(runlog, attempt)
        return found if found is not None and found.phase == "training" and found.step > past_step else None

    return until(beat, what="a run that trains")


def long_runs(monthly: Monthly, **fields) -> None:
    monthly.write_spec(run=monthly.spec.run | LONG, **fields)


def artifact(client, key: str) -> str:
    found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return str(max(found, key=lambda each: each.updated).data)


def events(client, name: str, *, model: str) -> list:
    found = client.read_events(EventFilter(event=EventNameFilter(name=[name])), limit=50).events
    return [event for event in found if event.payload.get("model") == model]


def outcomes(monthly: Monthly) -> list[str | None]:
    return [state.end.outcome if state.end else None for state in monthly.models.slots.values()]


@pytest.mark.matrix
def test_a_slot_trains_and_promotes_and_bad_data_buys_nothing(client, monthly, stack):
    name = monthly.spec.name
    monthly.write(1, 2, 3)
    first = final_state(client, started(client, monthly, 4))
    assert (first.type.value, in_words(first)) == ("COMPLETED", "Promoted"), first
    assert "no model was in service" in first.message
    assert monthly.models.in_service == 1

    monthly.write(4, nulls=7)
    refused = final_state(client, started(client, monthly, 5))
    assert (refused.type.value, in_words(refused)) == ("FAILED", "Data gate"), refused
    assert "7 of 600 rows" in refused.message
    assert monthly.models.in_service == 1
    assert not monthly.store_folder.joinpath(f"{name}-20130501t0600").exists()
    page = artifact(client, f"segue-model-{name}-data")
    assert "Nothing was bought" in page
    assert "2013-04.parquet, row 0" in page
    assert len(until(lambda: events(client, "segue.data.refused", model=name), what="the event")) == 1
    assert "version 1 is in service" in artifact(client, f"segue-model-{name}")
    assert f"{name}-20130401t0600" in artifact(client, f"segue-model-{name}-card")
    # A person who changes what is in service sees it there at once.
    command = [SEGUE, "models", "promote", name, "1", "--why", "by hand", "--store", str(monthly.store_folder)]
    subprocess.run(command, env=os.environ | {"PREFECT_API_URL": stack.api_url}, check=True, capture_output=True)
    assert "by hand" in artifact(client, f"segue-model-{name}")


@pytest.mark.soak
def test_a_slot_that_is_done_is_left_as_it_is_and_a_slot_runs_once_at_a_time(client, monthly):
    monthly.write(1, 2, 3)
    long_runs(monthly)
    first = started(client, monthly, 4)
    training(monthly, 4)
    second = final_state(client, started(client, monthly, 4))
    assert (second.type.value, in_words(second)) == ("CANCELLED", "Duplicate"), second
    assert in_words(final_state(client, first)) == "Promoted"
    again = final_state(client, started(client, monthly, 4))
    assert (in_words(again), [*monthly.models.candidates]) == ("Promoted", [1])
    assert "is done" in again.message


@pytest.mark.soak
@pytest.mark.matrix
def test_a_slot_waits_for_the_one_before_it(client, monthly):
    monthly.write(1, 2, 3, 4)
    long_runs(monthly, overlap="queue")
    first = started(client, monthly, 4)
    training(monthly, 4)
    second = started(client, monthly, 5)
    assert in_words(final_state(client, first)) == "Promoted"
    assert final_state(client, second).type.value == "COMPLETED"
    candidates = monthly.models.candidates
    assert [candidates[number].slot for number in (1, 2)] == [slot_of_month(4), slot_of_month(5)]
    assert candidates[2].compared_with == 1


@pytest.mark.soak
@pytest.mark.matrix
def test_a_slot_may_leave_itself_out_while_the_one_before_trains(client, monthly):
    monthly.write(1, 2, 3, 4)
    long_runs(monthly, overlap="skip")
    first = started(client, monthly, 4)
    training(monthly, 4)
    second = final_state(client, started(client, monthly, 5))
    assert (second.type.value, in_words(second)) == ("COMPLETED", "Skipped"), second
    assert in_words(final_state(client, first)) == "Promoted"
    assert outcomes(monthly) == ["promoted", "skipped"]


@pytest.mark.soak
@pytest.mark.matrix
def test_a_slot_may_take_the_place_of_the_one_before_which_ends_at_a_checkpoint(client, monthly):
    monthly.write(1, 2, 3, 4)
    long_runs(monthly, overlap="supersede")
    first = started(client, monthly, 4)
    training(monthly, 4, past_step=60)
    second = started(client, monthly, 5)
    left = final_state(client, first)
    assert (left.type.value, in_words(left)) == ("CANCELLED", "Superseded"), left
    assert in_words(final_state(client, second)) == "Promoted"
    assert outcomes(monthly) == ["superseded", "promoted"]
    history = read_history(RunLog(open_store(monthly.store_folder), run_id_of(monthly.spec, slot_of_month(4))))
    assert history.committed_step >= 60
    assert "superseded by" in history.decisions[-1].reason


@pytest.mark.soak
@pytest.mark.matrix
def test_a_slot_whose_flow_run_dies_is_started_again_and_goes_on_with_its_run(client, monthly):
    monthly.write(1, 2, 3)
    long_runs(monthly)
    flow_run = started(client, monthly, 4)
    training(monthly, 4, past_step=30)
    window = monthly.models.slots[slot_of_month(4)].start.window
    kill_flow_run(flow_run)
    monthly.write(2, slope=9.0)  # Nothing that comes later changes what the slot has begun with.
    monthly.write(2)

    def recovered():
        looked = look_at(client, store_of(monthly.spec))
        assert looked.troubles == ()
        return any("its flow run was started again" in line for line in looked.done)

    until(recovered, what="recovery")
    state = until(lambda: monthly.models.slots[slot_of_month(4)].end, what="the end of the slot")
    assert state.outcome == "promoted"
    models = monthly.models
    assert (models.in_service, [*models.candidates]) == (1, [1])
    assert models.slots[slot_of_month(4)].start.window == window
    until(lambda: has_nothing_to_recover(client, store_of(monthly.spec)), what="nothing left to recover")


def has_nothing_to_recover(client, store) -> bool:
    looked = look_at(client, store)
    return not (looked.done or looked.troubles)


def kill_flow_run(flow_run_id: UUID) -> None:
    """SIGKILL to the process of a flow run, and to nothing that it started."""
    named = [
        process
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("PREFECT__FLOW_RUN_ID") == str(flow_run_id)
    ]
    assert named
    for process in named:
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.soak
@pytest.mark.matrix
def test_a_cancelled_slot_stops_its_run_at_a_checkpoint_and_can_be_started_again(client, monthly):
    monthly.write(1, 2, 3)
    long_runs(monthly)
    flow_run = started(client, monthly, 4)
    training(monthly, 4, past_step=60)
    client.set_flow_run_state(flow_run, Cancelling())
    assert final_state(client, flow_run).type.value == "CANCELLED"
    until(lambda: outcomes(monthly) == ["cancelled"], what="the outcome")
    runlog = RunLog(open_store(monthly.store_folder), run_id_of(monthly.spec, slot_of_month(4)))
    until(lambda: read_history(runlog).last_reports(), what="the end of the attempt")
    committed = read_history(runlog).committed_step
    assert 60 <= committed < 600
    assert in_words(final_state(client, started(client, monthly, 4))) == "Promoted"
    assert outcomes(monthly) == ["promoted"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("missed", "expected"),
    [("skip", ["skipped", "skipped"]), pytest.param("run", ["promoted", None], marks=pytest.mark.soak)],
)
def test_slots_that_no_worker_started_are_left_out_or_run_in_order(client, monthly, missed, expected):
    monthly.write(1, 2, 3, 4)
    monthly.write_spec(missed=missed)
    monthly.log.store.check()
    deployment_id = deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=False)
    runs = [
        client.create_flow_run_from_deployment(deployment_id, state=Scheduled(scheduled_time=slot_of_month(month))).id
        for month in (4, 5)
    ]
    names = [in_words(final_state(client, run)) for run in runs]
    found = outcomes(monthly)
    if missed == "skip":
        assert (names, found) == (["Skipped", "Skipped"], expected)
    else:
        assert found[0] == "promoted"
        assert found[1] in ("promoted", "not_promoted")
        assert [each.slot for each in monthly.models.candidates.values()] == [slot_of_month(4), slot_of_month(5)]


@pytest.mark.soak
@pytest.mark.matrix
def test_a_backfill_runs_the_slots_of_the_schedule_in_order_once(client, monthly, stack):
    monthly.write(1, 2, 3, 4, 5)
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=False)
    command = [SEGUE, "retrain", "backfill", str(monthly.file)]
    options = ["--from", "2013-04-01", "--to", "2013-05-31"]
    environment = os.environ | {"PREFECT_API_URL": stack.api_url}
    for _ in range(2):
        facts = {"env": environment, "cwd": REPO, "capture_output": True, "text": True}
        done = subprocess.run([*command, *options], check=False, **facts)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "20130401t0600: Promoted" in done.stdout.replace("\n", " ")
    assert [each.slot for each in monthly.models.candidates.values()] == [slot_of_month(4), slot_of_month(5)]


@pytest.mark.soak
@pytest.mark.matrix
def test_the_schedule_starts_a_slot_by_itself_with_a_deadline(client, monthly):
    monthly.write(1, 2, 3)
    files = {"files": f"{monthly.folder}/*.parquet", "period": None}
    monthly.write_spec(schedule="* * * * *", ready_within_hours=1.0, overlap="skip", data=files)
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=True)
    until(lambda: monthly.has_store and monthly.models.candidates, what="a slot of the schedule")
    monthly.write_spec(schedule=None)
    deploy(client, monthly.spec, file=str(monthly.file), working_dir=REPO, active=False)
    candidate = monthly.models.version(1)
    assert candidate.slot.second == 0
    assert candidate.slot > datetime.now(UTC) - timedelta(minutes=10)
    assert candidate.training.late_seconds < 0
    assert Path(monthly.file).exists()


@pytest.mark.soak
@pytest.mark.matrix
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"gate": {"suite": "expectations/other.json"}}, "the file cannot be read (No such file or directory)"),
        ({"evaluation": {"scores": "tests.recipes.monthly:dies"}}, "its process ended without a result"),
    ],
)
def test_what_is_wrong_with_a_slot_is_its_state_and_it_can_be_started_again(client, monthly, fields, message):
    monthly.write(1, 2, 3)
    monthly.write_spec(**fields)
    state = final_state(client, started(client, monthly, 4))
    assert state.type.value == "FAILED", state
    assert message in state.message
    assert has_nothing_to_recover(client, store_of(monthly.spec))
    if "evaluation" in fields:  # The run has been trained, and is not trained again.
        monthly.write_spec()
        assert in_words(final_state(client, started(client, monthly, 4))) == "Promoted"
