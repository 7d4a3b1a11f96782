"""Processes die or hang around a segment: the run ends as it should, and none of its processes is left."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling

from segue.deployments.follow import trigger
from segue.notices.recall import recall
from segue.prefect.state_words import in_words
from segue.records import Capacity, StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.last_heartbeat import last_heartbeat
from tests.flows.test_runs import LONG, ended_segments, final_state, live_attempt, segment_runs, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

STUCK = "tests.recipes.stuck:build"
CHATTY = LONG | {"recipe": STUCK, "config": {"how": "sleep", "at_step": -1, "print": True, "pause_seconds": 0.005}}


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.mark.soak
def test_a_killed_engine_is_no_fault_of_a_recipe_that_prints(client, make_spec):
    spec = make_spec(run_id="engine-killed", **CHATTY)
    runlog, parent = start(client, spec)
    for past in (100, 500):
        claim, _ = until(lambda past=past: live_attempt(runlog, past_step=past), what="the segment")
        os.kill(claim.segment_pid, signal.SIGKILL)
        until(lambda: read_history(runlog).open_plan is None, what="its report")
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    reports = read_history(runlog.reload()).last_reports()
    assert [report.stop_reason for report in reports] == [StopReason.NOTICE, StopReason.NOTICE, StopReason.FINISHED]
    assert [report.lost_steps for report in reports] == [0, 0, 0]
    assert reports[0].notice.kind == "orphaned"


def test_a_killed_worker_ends_neither_the_recipe_that_prints_nor_the_parent(own_stack, make_spec):
    with get_client(sync_client=True) as client:
        spec = make_spec(run_id="worker-killed", **CHATTY)
        runlog, parent = start(client, spec)
        until(lambda: live_attempt(runlog, past_step=100), what="the segment")
        for pool in ("spot", "parents"):
            own_stack.services[f"worker-{pool}"].kill()
        state = final_state(client, parent)
        assert state.type is StateType.COMPLETED, state.message
        (report,) = read_history(runlog.reload()).last_reports()
        assert report.stop_reason is StopReason.FINISHED


@pytest.mark.soak
def test_a_recipe_that_always_hangs_fails_the_run_and_shows_its_stack(client, make_spec):
    liveness = {"heartbeat_seconds": 0.5, "hang_seconds": 4, "hang_factor": 2}
    config = {"how": "sleep", "at_step": 100, "pause_seconds": 0.005}
    spec = make_spec(run_id="hung", **LONG | {"recipe": STUCK, "config": config, "liveness": liveness})
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert (state.type, state.name) == (StateType.FAILED, "Failed")
    assert "the recipe hung in 2 attempts" in state.message
    runs = ended_segments(client, "hung")
    assert [in_words(run.state) for run in runs] == ["Hung", "Hung"]
    assert "in _sleep" in runs[0].state.message
    plans = [entry.plan for entry in read_history(runlog.reload()).decisions if entry.plan is not None]
    assert [str(plan.capacity) for plan in plans] == ["spot", "spot"]


@pytest.mark.soak
def test_a_recipe_that_always_runs_out_of_memory_fails_the_run_and_never_buys_on_demand(client, make_spec):
    fields = {"recipe": STUCK, "config": {"how": "allocate", "at_step": 100}, "checkpoints": {"every_steps": 1000}}
    deadline = datetime.now(UTC) + timedelta(seconds=600)
    policy = {"changeover_seconds": 5, "step_seconds": 0.01, "detection_seconds": 1}
    spec = make_spec(run_id="no-memory", **LONG | fields | {"deadline": deadline, "policy": policy})
    runlog, parent = start(client, spec)
    state = final_state(client, parent)
    assert (state.type, state.name) == (StateType.FAILED, "Failed")
    assert "the recipe ran out of memory in 2 attempts" in state.message
    assert "peak memory " in state.message
    assert [in_words(run.state) for run in ended_segments(client, "no-memory")] == ["Out of memory", "Out of memory"]
    reports = read_history(runlog.reload()).last_reports()
    assert [(r.stop_reason, r.capacity) for r in reports] == [(StopReason.OUT_OF_MEMORY, Capacity.SPOT)] * 2


@pytest.mark.soak
def test_a_sigterm_after_a_recall_leaves_only_its_own_time(client, make_spec, tmp_path):
    brake = tmp_path / "brake"
    config = {"brake": str(brake), "brake_seconds": 1.0, "pause_seconds": 0.005}
    fields = LONG | {"recipe": "tests.recipes.paced:build", "config": config, "grace_seconds": 6}
    spec = make_spec(run_id="recalled-then-killed", **fields)
    runlog, parent = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    brake.touch()
    recall(runlog.store, run_id=runlog.run_id, attempt_id=claim.attempt_id, reason="on-demand takes over")
    attempt = read_history(runlog).attempts[0]
    # After the last commit come the steps that a resume replays: 8 s of them, if only the recall counted.
    until(lambda: last_heartbeat(runlog, attempt).phase == "stopping", what="the end that the recall asks for")
    os.kill(claim.segment_pid, signal.SIGTERM)
    (report,) = until(lambda: read_history(runlog).last_reports(), what="its report")
    brake.unlink()
    assert (report.stop_reason, report.notice.kind, report.notice.grace_seconds) == (StopReason.BOUND, "sigterm", 6)
    assert report.lost_steps == 0
    assert final_state(client, parent).type is StateType.COMPLETED
    verdict = read_history(runlog.reload()).attempts[1].verdict
    # A slow machine may leave time for no step at all after the commit: then there is nothing to compare.
    assert verdict.kind is (VerdictKind.EXACT if verdict.rows_compared else VerdictKind.UNVERIFIED)
    assert verdict.rows_compared < spec.continuity.witness_steps


@pytest.mark.soak
def test_a_hung_segment_that_is_cancelled_leaves_nothing_behind(client, make_spec):
    config = {"how": "sleep", "at_step": 100, "pause_seconds": 0.005}
    fields = LONG | {"recipe": STUCK, "config": config, "grace_seconds": 2}
    runlog, parent = start(client, make_spec(run_id="hung-cancelled", **fields))
    claim, beat = until(lambda: live_attempt(runlog, past_step=98), what="the hang")
    trainer = psutil.Process(beat.trainer_pid)
    client.set_flow_run_state(client_run(client, "hung-cancelled").id, Cancelling(), force=True)
    trainer.wait(60)
    state = final_state(client, parent)
    assert state.type is StateType.CANCELLED, state.message
    assert claim.trainer_pid == beat.trainer_pid


def test_a_cancelled_segment_commits_ends_the_run_and_the_next_start_goes_on(client, make_spec):
    spec = make_spec(run_id="cancelled-segment", **LONG)
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    client.set_flow_run_state(client_run(client, "cancelled-segment").id, Cancelling(), force=True)
    state = final_state(client, parent)
    assert state.type is StateType.CANCELLED
    assert "segment 0 was cancelled; start the run again to resume it" in state.message
    history = read_history(runlog.reload())
    (report,) = history.last_reports()
    assert (report.stop_reason, report.lost_steps) == (StopReason.CANCELLED, 0)
    assert final_state(client, trigger(client, spec)).type is StateType.COMPLETED
    last = read_history(runlog.reload()).last_reports()[-1]
    assert (last.stop_reason, last.from_step) == (StopReason.FINISHED, report.to_step)


@pytest.mark.soak
def test_a_suspended_trainer_does_not_outlive_its_run(client, make_spec):
    liveness = {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 5}
    spec = make_spec(run_id="suspended", **LONG | {"liveness": liveness, "grace_seconds": 2})
    runlog, parent = start(client, spec)
    _, beat = until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    trainer = psutil.Process(beat.trainer_pid)
    trainer.suspend()
    assert final_state(client, parent).type is StateType.COMPLETED
    trainer.wait(60)
    reports = read_history(runlog.reload()).last_reports()
    assert [report.stop_reason for report in reports] == [StopReason.LOST, StopReason.FINISHED]


def client_run(client, run_id):
    """The flow run of the run's only segment."""
    (run,) = segment_runs(client, run_id)
    return run
