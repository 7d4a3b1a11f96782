"""Starts that take too long, on a real Prefect: another one is asked for, and whichever claims first trains."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.states import Pending

from segue.clock import SystemClock
from segue.controller.steps import decide_next, open_run
from segue.policy.availability import preemptions
from segue.prefect import flow_run_start
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from tests.flows.test_runs import LONG, ended_segments, final_state, segment_runs, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

NEVER = "exec sleep 900"


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def starter(client, tmp_path):
    """What gives the pool spot another start command: before the engine it does what its number says."""
    deployment = client.read_deployment_by_name("segment/spot")

    def use(*before: str) -> None:
        lines = [f"if mkdir {tmp_path}/{number} 2>/dev/null; then {what}; exec {sys.executable} -m {ENGINE}; fi"
                 for number, what in enumerate(before)]  # fmt: skip
        script = tmp_path / "start.sh"
        script.write_text("\n".join([*lines, f"exec {sys.executable} -m {ENGINE}", ""]))
        client.update_deployment(deployment.id, DeploymentUpdate(job_variables={"command": f"sh {script}"}))

    yield use
    client.update_deployment(deployment.id, DeploymentUpdate(job_variables=deployment.job_variables))


ENGINE = "segue.flows.prefect_engine"


def timed_spec(make_spec, run_id: str):
    deadline = datetime.now(UTC) + timedelta(seconds=900)
    liveness = {"heartbeat_seconds": 0.5, "slow_start_seconds": 6}
    policy = {"step_seconds": 0.02, "changeover_seconds": 30}
    return make_spec(run_id=run_id, deadline=deadline, policy=policy, **LONG | {"steps": 200, "liveness": liveness})


def require_spot_alone(state, runlog):
    """The run is on time, one attempt trained it on spot, and nothing of the start counts against the pool."""
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert [(r.capacity, r.stop_reason) for r in history.last_reports()] == [(Capacity.SPOT, StopReason.FINISHED)]
    assert state.name == "Completed", "it is late"
    assert preemptions(history) == 0
    return history


def outcomes(history):
    return [(entry.number, entry.outcome) for entry in history.starts]


def test_a_start_that_never_comes_is_given_up_when_another_one_has_claimed(client, make_spec, starter):
    starter(NEVER)
    runlog, parent = start(client, timed_spec(make_spec, "slow-once"))
    history = require_spot_alone(final_state(client, parent), runlog)
    found = outcomes(history)
    assert (found[0], (1, "start_failed") in found, (1, "claimed") in found) == ((1, "slow"), True, False)
    assert history.starts[0].reason.endswith("no earlier start on this pool is known; a second start was requested")
    runs = ended_segments(client, "slow-once")
    first = next(run for run in runs if not run.name.rpartition("-")[2].startswith("start"))
    assert first.state.type is StateType.CANCELLED
    assert history.attempts[0].claim.flow_run_id in {str(run.id) for run in runs if "-start" in run.name}


def test_a_slow_start_that_comes_first_after_all_goes_on_and_the_others_are_withdrawn(client, make_spec, starter):
    starter("sleep 20", NEVER, NEVER)
    runlog, parent = start(client, timed_spec(make_spec, "slow-first"))
    history = require_spot_alone(final_state(client, parent), runlog)
    found = outcomes(history)
    assert (found[0], (1, "claimed") in found, (2, "withdrawn") in found) == ((1, "slow"), True, True)
    runs = {run.name: run for run in ended_segments(client, "slow-first")}
    assert history.attempts[0].claim.flow_run_id == str(runs["slow-first-seg0-a1-spot"].id)
    assert runs["slow-first-seg0-a1-spot"].state.type is StateType.COMPLETED
    assert runs["slow-first-seg0-a1-spot-start2"].state.type is StateType.CANCELLED


def test_a_segment_whose_worker_died_before_it_started_is_started_again_though_nobody_takes_it(client, make_spec):
    client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
    try:
        runlog, parent = start(client, timed_spec(make_spec, "never-started"))
        (first,) = until(lambda: segment_runs(client, "never-started"), what="the segment")
        client.set_flow_run_state(first.id, Pending(), force=True)  # As the worker did that has died.
    finally:
        client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))
    history = require_spot_alone(final_state(client, parent), runlog)
    assert (1, "start_failed") in outcomes(history)


def test_how_long_a_start_has_taken_is_known_to_a_parent_that_comes_later(client, make_spec, monkeypatch):
    monkeypatch.setattr(flow_run_start, "_ASK_SECONDS", 0.5)
    spec = make_spec(run_id="taken-and-lost", **LONG)
    runlog = open_run(spec, clock=SystemClock())
    plan = decide_next(runlog, spec, clock=SystemClock()).plan

    def parent():
        orchestrator = PrefectOrchestrator(log_id=runlog.log_id)
        return orchestrator, orchestrator.submit(spec, plan)

    client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
    try:
        first, handle = parent()
        (segment,) = segment_runs(client, spec.run_id)
        assert first.starting_seconds(handle) is None
        client.set_flow_run_state(segment.id, Pending(), force=True)
        begun = time.monotonic()
        until(lambda: time.monotonic() - begun > 12 and first.starting_seconds(handle), what="a while")
        first.close()
        second, handle = parent()
        asked_at = time.monotonic()
        # More than the time for which this one has seen it.
        until(
            lambda: (second.starting_seconds(handle) or 0.0) > time.monotonic() - asked_at + 10,
            what="the server's answer",
        )
        second.mark_lost(handle, "the test")
        second.close()
        final_state(client, segment.id)
    finally:
        client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))
