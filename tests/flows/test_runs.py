"""The main job through a real Prefect server and real workers."""

from __future__ import annotations

import os
import signal
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import StateType

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.deployments.follow import trigger
from segue.prefect.state_words import in_words
from segue.prefect.ui.artifacts import artifact_key
from segue.records import Capacity, StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.open import open_log
from tests.support.final_states import state_at_end
from tests.support.trackers import FileTracker

pytestmark = pytest.mark.prefect

LONG = {"steps": 1200, "config": {"pause_seconds": 0.005}, "checkpoints": {"every_steps": 60}, "threads": 1}
LIMIT_SECONDS = 240
PROGRAM = Path(__file__).parents[1] / "programs/own_loop.py"


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


def start(client, spec):
    runlog = open_run(spec, clock=SystemClock())
    return runlog, trigger(client, spec)


def until(condition, *, what: str, limit_seconds: float = LIMIT_SECONDS):
    give_up_at = time.monotonic() + limit_seconds
    while not (answer := condition()):
        assert time.monotonic() < give_up_at, f"waited {limit_seconds} s for {what}"
        time.sleep(0.25)
    return answer


def live_attempt(runlog, *, past_step: int = 0):
    """The claim and the heartbeat of an attempt that trains beyond `past_step`."""
    history = read_history(runlog)
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan else None
    beat = last_heartbeat(runlog, attempt)
    return (attempt.claim, beat) if beat and beat.phase == "training" and beat.step > past_step else None


def final_state(client, flow_run_id: UUID, *, limit_seconds: float = LIMIT_SECONDS):
    def over():
        state = client.read_flow_run(flow_run_id).state
        return state if state.is_final() else None

    return until(over, what="the parent flow", limit_seconds=limit_seconds)


def segment_runs(client, run_id: str):
    wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=["segue", run_id]))
    runs = client.read_flow_runs(flow_run_filter=wanted)
    return sorted((run for run in runs if run.name != run_id), key=lambda run: run.name)


def ended_segments(client, run_id: str):
    """The segments of a run that is over. The final state of a flow run may follow its report in the log."""

    def ended():
        runs = segment_runs(client, run_id)
        return runs if all(run.state.is_final() for run in runs) else None

    return until(ended, what="the segments' own states")


def test_a_run_survives_a_kill_and_a_notice_and_moves_to_on_demand_after_two_preemptions(
    client, make_spec, fork_server
):
    undisturbed = make_spec(run_id="undisturbed", **LONG | {"config": {}})
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)

    # A limit of preemptions moves it, not a deadline, which would act by the load of this machine.
    deadline = datetime.now(UTC) + timedelta(seconds=900)
    spec = make_spec(run_id="main-job", deadline=deadline, policy={"max_preemptions": 2}, **LONG)
    runlog, parent = start(client, spec)
    _, beat = until(lambda: live_attempt(runlog, past_step=250), what="the first segment")
    os.kill(beat.trainer_pid, signal.SIGKILL)
    claim, _ = until(lambda: live_attempt(runlog, past_step=500), what="the second segment")
    os.kill(claim.segment_pid, signal.SIGTERM)
    state = final_state(client, parent)

    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert [(r.capacity, r.stop_reason) for r in history.last_reports()] == [
        (Capacity.SPOT, StopReason.LOST),
        (Capacity.SPOT, StopReason.NOTICE),
        (Capacity.ON_DEMAND, StopReason.FINISHED),
    ]
    # A kill between a commit and its seal leaves nothing to replay, so the verdict is unverified.
    kinds = [attempt.verdict.kind for attempt in history.attempts[1:]]
    assert VerdictKind.EXACT in kinds
    assert set(kinds) <= {VerdictKind.EXACT, VerdictKind.UNVERIFIED}
    assert state_at_end(history) == state_at_end(read_history(reference))
    assert [(run.name, in_words(run.state)) for run in ended_segments(client, "main-job")] == [
        ("main-job-seg0-a1-spot", "Lost"),
        ("main-job-seg1-a1-spot", "Preempted"),
        ("main-job-seg2-a1-on-demand", "Completed"),
    ]
    assert len(artifacts(client, "main-job")) >= 2, "one while it ran, one at its end"


@pytest.mark.soak
def test_a_program_with_its_own_loop_survives_a_kill_and_a_notice(client, make_spec, fork_server, tmp_path):
    def program(*options):
        command = ["python", str(PROGRAM), "--steps", "1200", *options]
        return {name: value for name, value in LONG.items() if name != "config"} | {"program": {"command": command}}

    undisturbed = make_spec(run_id="program-undisturbed", recipe=None, **program())
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)
    trackers = {"tests.support.trackers:FileTracker": {"file": str(tmp_path / "tracked.jsonl")}}
    spec = make_spec(run_id="program", recipe=None, trackers=trackers, **program("--pause-seconds", "0.005"))
    runlog, parent = start(client, spec)
    _, beat = until(lambda: live_attempt(runlog, past_step=250), what="the first segment")
    os.kill(beat.trainer_pid, signal.SIGKILL)
    claim, _ = until(lambda: live_attempt(runlog, past_step=500), what="the second segment")
    os.kill(claim.segment_pid, signal.SIGTERM)
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    reasons = [report.stop_reason for report in history.last_reports()]
    assert reasons == [StopReason.LOST, StopReason.NOTICE, StopReason.FINISHED]
    kinds = [attempt.verdict.kind for attempt in history.attempts[1:]]
    assert VerdictKind.EXACT in kinds
    assert set(kinds) <= {VerdictKind.EXACT, VerdictKind.UNVERIFIED}
    assert state_at_end(history) == state_at_end(read_history(reference))
    *steps, end = FileTracker(file=str(tmp_path / "tracked.jsonl")).lines()
    assert [line["step"] for line in steps] == list(range(1, 1201))
    assert (end["status"], end["segue.segments"]) == ("finished", "3")


def artifacts(client, run_id: str):
    return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[artifact_key(run_id)])))


@pytest.mark.matrix
def test_a_recipe_that_raises_fails_with_its_traceback_and_never_uses_on_demand(client, make_spec):
    spec = make_spec(
        run_id="raises",
        steps=100,
        config={"raise_at_step": 30},
        checkpoints={"every_steps": 1000},  # No commit: one that is later than a failure would end its count.
        deadline=datetime.now(UTC) + timedelta(seconds=600),
        policy={"changeover_seconds": 5, "step_seconds": 0.01, "detection_seconds": 1},
    )
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert (state.type, state.name) == (StateType.FAILED, "Failed")
    assert "ArithmeticError: this recipe raises here, as its config asks" in state.message
    reports = read_history(runlog.reload()).last_reports()
    assert [(r.stop_reason, r.capacity) for r in reports] == [(StopReason.FAILED, Capacity.SPOT)] * 2
    runs = ended_segments(client, "raises")
    assert [run.state.name for run in runs] == ["Failed", "Failed"]
    assert "Traceback" in runs[0].state.message
    assert "recipes.py" in runs[0].state.message


@pytest.mark.matrix
def test_a_deadline_in_the_past_fails_the_parent_with_one_sentence(client, make_spec):
    spec = make_spec(run_id="too-late", deadline=datetime.now(UTC) - timedelta(hours=1))
    parent = trigger(client, spec)
    state = final_state(client, parent)
    assert state.type is StateType.FAILED
    assert "has passed" in state.message
    assert "Traceback" not in state.message


@pytest.mark.matrix
def test_a_tracker_with_wrong_options_is_refused_before_anything_of_the_run_is_written(client, make_spec):
    spec = make_spec(run_id="tracked", trackers={"tensorboard": {"dir": "board"}})
    state = final_state(client, trigger(client, spec))
    assert state.type is StateType.FAILED
    assert "trackers.tensorboard: got an unexpected keyword argument 'dir'; it takes: folder" in state.message
    assert read_history(open_log(spec).reload()).next_slot == 0


@pytest.mark.parametrize(
    "pools",
    [{"on_demand": "segment/typo"}, pytest.param({"spot": [{"deployment": "segment/typo"}]}, marks=pytest.mark.matrix)],
)
def test_a_pool_without_a_deployment_is_refused_before_anything_starts(client, make_spec, pools):
    spec = make_spec(run_id="typo", pools=pools)
    state = final_state(client, trigger(client, spec))
    assert state.type is StateType.FAILED
    assert "there is no deployment 'segment/typo' on the Prefect server. Fix: run `prefect" in state.message
    assert segment_runs(client, "typo") == []
