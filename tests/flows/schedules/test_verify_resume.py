"""The scheduled verification through a real Prefect: on the user's own pools and store, with a history and events."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.events.filters import EventFilter, EventResourceFilter

from segue.prefect.state_words import in_words
from segue.prefect.ui.announcements import resource_id
from segue.prefect.ui.artifacts import artifact_key
from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.stores import open_store
from segue.verification.runs import DrillRuns
from segue.verification.verifications import Outcome, VerificationsLog
from tests.flows.test_live_run import deploy_notify, notified, versions
from tests.flows.test_runs import final_state, live_attempt, until
from tests.verification.drills import sound

pytestmark = [pytest.mark.prefect, pytest.mark.soak]

SLOT = datetime(2026, 11, 1, 4, 0, tzinfo=UTC)
NEXT = datetime(2026, 11, 8, 4, 0, tzinfo=UTC)
LASTS = {
    "steps": 900,
    "config": {"pause_seconds": 0.008},
    "checkpoints": {"every_steps": 45, "staging": "overlapped", "staging_buffers": 2},
    "deadline": datetime(2026, 1, 1, tzinfo=UTC),  # A verification has none: this one would be refused.
    "policy": {"name": "threshold", "parameters": {"preemptions": 1}},  # Would move it to on-demand.
}


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def verify(client, spec, *, slot=SLOT, **parameters):
    deployment = client.read_deployment_by_name("verify-resume/verify-resume")
    assert deployment.work_pool_name == "parents"
    given = {"spec": spec.model_dump(mode="json"), "slot": slot.isoformat(), **parameters}
    return client.create_flow_run_from_deployment(deployment.id, parameters=given)


def events(client, run_id: str):
    """The events of a run's verifications, which the server stores some seconds after it took them."""
    wanted = EventFilter(resource=EventResourceFilter(id=[resource_id(run_id)]))
    found = [event for event in client.read_events(wanted, limit=50).events if event.event.startswith("segue.verify.")]
    return sorted(found, key=lambda event: event.occurred)


def recorded(spec):
    return VerificationsLog(open_store(spec.store), spec.run_id).read()


def test_a_sound_recipe_is_green_after_a_kill_and_a_notice_that_hit_it_on_spot(client, make_spec, tmp_path):
    spec = make_spec(run_id="sound", **LASTS | {"checkpoints": LASTS["checkpoints"] | fast(tmp_path)})
    state = final_state(client, verify(client, spec).id)
    assert (state.type, state.name) == (StateType.COMPLETED, "Completed"), state.message
    assert "after 1 kill and 1 notice the final state is identical to that of the undisturbed run" in state.message
    (found,) = recorded(spec)
    assert (found.outcome, found.identical, found.kills, found.notices) == (Outcome.PASSED, True, 1, 1)
    assert {resume.after for resume in found.resumes} == {"kill", "notice"}
    assert found.cost > 0

    runs = DrillRuns.of(spec, slot=SLOT)
    undisturbed, disturbed = (read_history(open_log(run)) for run in (runs.undisturbed, runs.disturbed))
    assert [report.stop_reason for report in undisturbed.last_reports()] == [StopReason.FINISHED]
    assert sorted(report.stop_reason for report in disturbed.last_reports()) == [
        StopReason.FINISHED,
        StopReason.LOST,
        StopReason.NOTICE,
    ]
    assert {report.capacity for report in disturbed.last_reports()} == {Capacity.SPOT}
    for history in (undisturbed, disturbed):
        assert history.spec.checkpoints == spec.checkpoints
        assert (history.spec.store, history.spec.deadline) == (spec.store, None)
        assert all(checkpoint.is_pruned for checkpoint in history.checkpoints)
    kept = open_store(spec.store).list_objects("")
    assert [item.key for item in kept if "/attempts/" in item.key] == [], "the checkpoints are removed"
    assert [item.key for item in kept if "/log/" in item.key], "the logs stay"

    (page,) = versions(client, artifact_key("sound-verify"))
    assert page.data.startswith("**sound** passed, exact: after 1 kill and 1 notice")
    assert "green for " in page.data.splitlines()[0]
    (event,) = until(lambda: events(client, "sound"), what="the event")
    assert (event.event, event.payload["outcome"]) == ("segue.verify.passed", "passed")

    again = final_state(client, verify(client, spec).id)
    assert again.type is StateType.COMPLETED
    assert recorded(spec) == (found,), "a verification that is recorded is not made again"


def fast(tmp_path):
    return {"fast_folder": str(tmp_path / "fast")}


def test_a_recipe_that_loses_state_is_red_with_the_component_an_event_and_its_evidence(
    client, stack, make_spec, tmp_path
):
    deploy_notify(stack)
    earlier = sound(slot=SLOT).model_copy(update={"run_id": "lossy"})
    store = open_store(make_spec().store)
    store.check()
    VerificationsLog(store, "lossy").add(earlier)
    # The marker exists when the disturbed run resumes: the undisturbed one is built once, before anything is lost.
    config = {"fault": "optimizer_not_restored", "marker": str(tmp_path / "marker")} | LASTS["config"]
    spec = make_spec(run_id="lossy", recipe="tests.recipes.faulty:build", **LASTS | {"config": config})
    state = final_state(client, verify(client, spec, slot=NEXT, notices=0).id)
    assert (state.type, in_words(state)) == (StateType.FAILED, "Not continuous"), state.message
    assert "optimizer" in state.message
    assert "the last one that passed was at 2026-11-01" in state.message
    before, found = recorded(spec)
    assert (before.outcome, found.outcome) == (Outcome.PASSED, Outcome.NOT_CONTINUOUS)
    assert [problem.component for problem in found.problems][:1] == ["optimizer"]

    page = max(versions(client, artifact_key("lossy-verify")), key=lambda version: version.created)
    assert "Fix: restore all of optimizer in its load_state_dict" in page.data
    assert [line.split(" | ")[1] for line in page.data.splitlines() if line.startswith("| 2026")] == [
        "not continuous",
        "passed",
    ]
    (event,) = until(lambda: events(client, "lossy"), what="the event")
    assert (event.event, event.payload["component"]) == ("segue.verify.failed", "optimizer")
    assert (event.payload["run"], event.payload["verdict"]) == ("lossy", "broken")
    (told,) = until(lambda: notified(client, "lossy"), what="the flow run of the automation")
    assert told.state.message.startswith("lossy did not pass its verification: not continuous: ")
    assert "Fix: restore all of optimizer" in told.state.message
    kept = [item.key for item in open_store(spec.store).list_objects(f"{found.disturbed}/attempts/")]
    assert any(key.endswith(".safetensors") for key in kept), "the evidence stays"


def test_many_disturbances_at_random_moments_all_hit_and_leave_the_same_final_state(client, make_spec):
    spec = make_spec(run_id="stormy", **LASTS | {"steps": 3000})
    state = final_state(client, verify(client, spec, kills=3, notices=2).id, limit_seconds=600)
    assert state.type is StateType.COMPLETED, state.message
    (found,) = recorded(spec)
    assert (found.kills, found.notices, found.identical) == (3, 2, True)
    assert [resume.after for resume in found.resumes].count("kill") == 3


def test_a_verification_whose_process_was_killed_goes_on_with_the_same_two_runs(client, make_spec):
    spec = make_spec(run_id="restarted-check", **LASTS)
    runs = DrillRuns.of(spec, slot=SLOT)
    first = verify(client, spec, notices=0)
    runlog = open_log(runs.undisturbed)
    until(lambda: open_store_exists(spec), what="the store")
    until(lambda: live_attempt(runlog, past_step=100), what="the undisturbed run")
    (process,) = [one for one in psutil.process_iter() if str(first.id) in environment_of(one)]
    os.kill(process.pid, signal.SIGKILL)
    second = verify(client, spec, notices=0)
    state = final_state(client, second.id)
    assert state.type is StateType.COMPLETED, state.message
    (found,) = recorded(spec)
    assert (found.kills, found.undisturbed) == (1, runs.undisturbed.run_id)
    claims = read_history(runlog.reload()).attempts
    assert len(claims) == 1, "the attempt of the first parent trained on"


def open_store_exists(spec):
    return (Path(spec.store.url) / ".segue-store").exists()


def environment_of(process) -> str:
    try:
        return process.environ().get("PREFECT__FLOW_RUN_ID", "")
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return ""
