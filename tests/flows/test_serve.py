"""`segue serve`: the parents of many runs in one process, and what differs from a process for each."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists
from prefect.utilities.callables import parameter_schema
from segue.deployments.process.own_process import PARENT_ENTRYPOINT, Job, why_own_process
from segue.deployments.process.registration import process_template
from segue.flows.recover import recover
from segue.flows.train import train

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.parents import parents, read_parent
from tests.flows.conftest import REPO
from tests.flows.test_runs import LONG, artifacts, final_state, live_attempt, until

pytestmark = [pytest.mark.prefect, pytest.mark.timeout(300)]

SEGUE = Path(sys.executable).with_name("segue")
POOL = "served"
USUAL = Job(
    entrypoint=PARENT_ENTRYPOINT,
    has_pull_steps=False,
    command="python -m prefect.engine",
    env={},
    working_dir=Path("/runs"),
)


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({}, None),
        ({"command": None}, None),
        ({"command": "nice python -m prefect.engine"}, "a command of its own (nice python -m prefect.engine)"),
        ({"env": {"AWS_PROFILE": "training"}}, None),
        ({"env": {"AWS_PROFILE": "another"}}, "sets variables that `segue serve` does not have (AWS_PROFILE)"),
        ({"env": {"AWS_PROFILE": None}}, "sets variables that `segue serve` does not have (AWS_PROFILE)"),
        ({"env": {"UNKNOWN": None}}, None),
        ({"working_dir": Path("/runs/../runs")}, None),
        ({"working_dir": Path("/elsewhere")}, "its working_dir is /elsewhere; `segue serve` was started in /runs"),
        ({"working_dir": None}, "its job has no working_dir; `segue serve` was started in /runs"),
        ({"entrypoint": "segue.flows.recover.recover"}, "another flow"),
        ({"entrypoint": "flows/train.py:train"}, "another flow"),
        ({"entrypoint": None}, "another flow"),
        ({"has_pull_steps": True}, "another flow"),
    ],
)
def test_a_parent_shares_the_process_only_if_its_own_would_be_the_same(changed, why):
    found = why_own_process(USUAL._replace(**changed), here=Path("/runs"), environment={"AWS_PROFILE": "training"})
    assert found is None if why is None else why in found


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def pool(client):
    """A process pool that only `segue serve` works for; the flows `train` and `recover` are deployed on it."""
    try:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process", base_job_template=process_template(REPO)))
    except ObjectAlreadyExists:
        return POOL
    for flow in (train, recover):
        client.create_deployment(
            flow_id=client.create_flow(flow),
            name=POOL,
            entrypoint=f"segue.flows.{flow.name}.{flow.name}",
            work_pool_name=POOL,
            parameter_openapi_schema=parameter_schema(flow).model_dump_for_openapi(),
            enforce_parameter_schema=True,
        )
    return POOL


@contextmanager
def serving(stack, client, tmp_path, *, pool: str = POOL, runs: int = 10) -> Iterator[psutil.Popen]:
    """`segue serve` as a process; ended with SIGTERM, unless the block has ended it."""
    name = f"serve-{tmp_path.name}"
    environment = stack.environment() | {"PREFECT_HOME": str(tmp_path / "prefect-of-serve")}
    command = [str(SEGUE), "serve", "--pool", pool, "--runs", str(runs), "--name", name]
    with (tmp_path / "serve.log").open("ab") as log:
        process = psutil.Popen(command, env=environment, cwd=REPO, stdout=log, stderr=subprocess.STDOUT)
    try:
        until(lambda: name in online(client, pool) or process.poll() is not None, what="segue serve")
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(60)


def online(client, pool: str) -> list[str]:
    return [worker.name for worker in client.read_workers_for_work_pool(pool) if worker.status == "ONLINE"]


def start_served(client, spec, *, deployment: str = f"train/{POOL}"):
    runlog = open_run(spec, clock=SystemClock())
    found = client.read_deployment_by_name(deployment)
    parameters = {"spec": spec.model_dump(mode="json")}
    tags = ["segue", spec.run_id]
    made = client.create_flow_run_from_deployment(found.id, parameters=parameters, name=spec.run_id, tags=tags)
    return runlog, made.id


def process_of_parent(runlog) -> int:
    return int(read_parent(runlog.store, runlog.run_id).process.split()[0])


def engines_of(flow_run_id: UUID) -> list[int]:
    """Processes that Prefect started for this flow run."""
    found = []
    for process in psutil.process_iter(["pid", "environ"]):
        environment = process.info["environ"] or {}
        if environment.get("PREFECT__FLOW_RUN_ID") == str(flow_run_id):
            found.append(process.pid)
    return found


def test_two_runs_are_served_at_once_by_one_process(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path) as serve:
        idle_threads = serve.num_threads()
        begun = [start_served(client, make_spec(run_id=f"served-{name}", **LONG)) for name in ("one", "two")]
        for runlog, flow_run_id in begun:
            until(lambda runlog=runlog: live_attempt(runlog), what="the segment")
            assert process_of_parent(runlog) == serve.pid
            assert engines_of(flow_run_id) == []
        for runlog, flow_run_id in begun:
            state = final_state(client, flow_run_id)
            assert state.type is StateType.COMPLETED, state.message
            assert [r.stop_reason for r in read_history(runlog.reload()).last_reports()] == [StopReason.FINISHED]
            assert "step 1200 of 1200" in artifacts(client, runlog.run_id)[0].data
            assert artifacts(client, runlog.run_id)[0].flow_run_id == flow_run_id
        assert parents(begun[0][0].store) == []
        until(lambda: serve.num_threads() <= idle_threads + 2, what="the end of their threads")
    assert serve.wait() == 128 + signal.SIGTERM
