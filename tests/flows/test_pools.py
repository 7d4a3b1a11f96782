"""Pools that cannot run a segment are found before the first one, and a wait for a machine is shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists

from segue.controller.steps import request_stop
from segue.deployments.local_stack.registration import process_template
from segue.doctor.pools.pool_state import Needs, PoolState
from segue.doctor.pools.queue_judgement import blocker
from segue.errors import OrchestratorError
from segue.prefect.run_pools import read_pool, refuse_unusable, require_pools, require_server_version
from segue.prefect.state_words import in_words
from segue.records import StopReason
from segue.runlog.history import read_history
from tests.flows.test_runs import LONG, final_state, live_attempt, segment_runs, start, until

SEGUE = Path(sys.executable).with_name("segue")
GOOD = PoolState("segment/spot", "spot", workers=1)


@pytest.mark.parametrize(
    ("fields", "parent", "named"),
    [
        ({"workers": 0, "known_workers": 0}, None, "'segment/spot' has no worker and never had one"),
        ({"limit": 0}, None, "runs at most 0 flow runs at once (limit of the deployment 'segment/spot')."),
        (
            {"limit": 1, "pool_limit": 1},
            "spot",
            "runs at most 1 flow runs at once, and the run's parent is one of them",
        ),
        ({"unknown_variables": ("imagee",)}, None, "sets job variables that the pool spot does not have (imagee)"),
    ],
)
def test_a_pool_on_which_no_segment_can_start_is_refused_with_the_fix(fields, parent, named):
    state = PoolState(**{**vars(GOOD), **fields})
    with pytest.raises(OrchestratorError) as refused:
        refuse_unusable([GOOD, state], Needs(parent_pool=parent))
    assert named in str(refused.value)
    assert "Fix: " in str(refused.value)


@pytest.mark.parametrize("fields", [{}, {"limit": 1}, {"workers": 0, "known_workers": 1}, {"workers": None}])
def test_a_pool_on_which_one_may_start_later_is_accepted(fields):
    refuse_unusable([PoolState(**{**vars(GOOD), **fields})], Needs(parent_pool="parents"))


@pytest.mark.parametrize("fields", [{"limit": 1}, {"limit": 2, "pool_limit": 2}])
def test_only_the_limit_of_the_pool_is_shared_with_the_parent(fields):
    refuse_unusable([PoolState(**{**vars(GOOD), **fields})], Needs(parent_pool="spot"))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, None),
        ({"is_paused": True}, "the pool spot is paused"),
        ({"queue": "default", "is_queue_paused": True}, "the queue default of the pool spot is paused"),
        ({"workers": 0, "known_workers": 2}, "no worker of the pool spot is online; workers known to the server: 2"),
        (
            {"limit": 0, "pool_limit": 0},
            "the pool spot of the deployment 'segment/spot' runs at most 0 flow runs at once (limit of the pool spot)",
        ),
    ],
)
def test_a_pool_says_why_nothing_starts(fields, why):
    assert blocker(PoolState(**{**vars(GOOD), **fields})) == why


@pytest.mark.parametrize(("version", "refused"), [("2.20.1", True), ("3.8.8", False), ("4.0.0", True), ("odd", False)])
def test_a_server_of_another_version_is_refused(version, refused):
    expected = pytest.raises(OrchestratorError, match=f"has version {version}") if refused else nullcontext()
    with expected:
        require_server_version(version)


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def deployment(client, stack):
    """Makes a deployment `segment/<name>` on a pool of that name, which has no worker."""

    def make(name, *, job_variables=None, limit=None):
        template = process_template(stack.home)
        try:
            client.create_work_pool(
                WorkPoolCreate(name=name, type="process", base_job_template=template, concurrency_limit=limit)
            )
        except ObjectAlreadyExists:
            client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=limit))
        spot = client.read_deployment_by_name("segment/spot")
        client.create_deployment(
            flow_id=spot.flow_id,
            name=name,
            entrypoint=spot.entrypoint,
            work_pool_name=name,
            job_variables=job_variables or {},
        )
        return f"segment/{name}"

    return make


@pytest.mark.prefect
@pytest.mark.matrix
def test_a_pool_without_worker_is_refused_before_anything_of_the_run_is_written(stack, deployment, tmp_path):
    name = deployment("nobody")
    config = tmp_path / "run.toml"
    config.write_text(f'[pools]\nspot = "{name}"\n')
    store = tmp_path / "store"
    command = [SEGUE, "run", "segue.testing.recipes:tiny", "--config", config, "--steps", "5", "--run-id", "refused"]
    environment = os.environ | {"PREFECT_API_URL": stack.api_url, "COLUMNS": "300", "NO_COLOR": "1"}
    ended = subprocess.run(
        [*command, "--store", store], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert ended.returncode == 2
    assert "the pool nobody of the deployment 'segment/nobody' has no worker and never had one." in ended.stderr
    assert "Fix: start one with `prefect worker start --pool nobody`." in ended.stderr
    assert not (store / "refused").exists()


@pytest.mark.prefect
@pytest.mark.matrix
def test_unknown_job_variables_a_missing_deployment_and_a_limit_are_seen_on_the_server(
    client, deployment, make_spec, stack
):
    name = deployment("odd", job_variables={"imagee": "x", "working_dir": "/"}, limit=3)
    state = read_pool(client, name)
    assert (state.unknown_variables, state.limit, state.workers) == (("imagee",), 3, 0)
    with pytest.raises(OrchestratorError, match="there is no deployment 'segment/none'"):
        require_pools(make_spec(pools={"spot": "segment/none"}))
    assert read_pool(client, "segment/spot").workers == 1


@pytest.mark.prefect
@pytest.mark.matrix
def test_a_request_for_spot_that_is_given_up_shows_why(client, make_spec):
    client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
    try:
        liveness = {"heartbeat_seconds": 0.5, "start_seconds": 3}
        spec = make_spec(run_id="no-spot", policy={"changeover_seconds": 1}, liveness=liveness, **LONG)
        runlog, parent = start(client, spec)
        until(lambda: read_history(runlog).last_reports(), what="the end of the first wait")
        until(
            lambda: [run for run in segment_runs(client, "no-spot") if run.state.is_final()], what="its flow run's end"
        )
        request_stop(runlog, reason="the test has seen enough")
        assert final_state(client, parent).type is StateType.CANCELLED
    finally:
        client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))
    first, *_ = segment_runs(client, "no-spot")
    assert (first.state.type, in_words(first.state)) == (StateType.CANCELLED, "No capacity")
    assert first.state.message.startswith("No capacity: no capacity on spot within ")
    assert read_history(runlog.reload()).last_reports()[0].stop_reason is StopReason.NO_CAPACITY


@pytest.mark.prefect
@pytest.mark.soak
def test_a_run_that_waits_for_on_demand_says_so_stays_queued_and_ends_late(client, make_spec):
    client.update_work_pool("on-demand", WorkPoolUpdate(is_paused=True))
    try:
        deadline = datetime.now(UTC) + timedelta(seconds=15)
        policy = {"name": "on_demand_only", "changeover_seconds": 30, "step_seconds": 0.01}
        liveness = {"heartbeat_seconds": 0.5, "start_seconds": 5}
        spec = make_spec(run_id="late", deadline=deadline, policy=policy, liveness=liveness, **LONG | {"steps": 100})
        runlog, parent = start(client, spec)
        command = [SEGUE, "status", "late", "--store", spec.store.url]

        def shown():
            environment = os.environ | {"COLUMNS": "300", "NO_COLOR": "1"}
            text = subprocess.run(command, env=environment, capture_output=True, text=True, check=False).stdout
            return text if "is paused" in text and "late by about" in text else None

        text = until(shown, what="the reason of the wait")
        assert "waiting for on-demand capacity (segment/on-demand): the pool on-demand is paused" in text
    finally:
        client.update_work_pool("on-demand", WorkPoolUpdate(is_paused=False))
    until(lambda: live_attempt(runlog) or read_history(runlog).is_over, what="the segment")
    state = final_state(client, parent)
    assert (state.type, in_words(state)) == (StateType.FAILED, "Late")
    assert re.match(r"Late: .* after the deadline; ", state.message)
    plans = [entry.plan for entry in read_history(runlog.reload()).decisions if entry.plan is not None]
    assert [(plan.attempt, plan.start_within_seconds) for plan in plans] == [(1, None)]
    assert len(segment_runs(client, "late")) == 1
