"""`segue serve`: the parents of many runs in one process, and what differs from a process for each."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import LogFilter
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists
from prefect.states import Cancelling
from prefect.utilities.callables import parameter_schema

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.deployments.local_stack.registration import process_template
from segue.deployments.local_stack.stack import free_port
from segue.deployments.workers.parents_worker import PARENT_ENTRYPOINT, ProcessJob, why_own_process
from segue.flows.recover import recover
from segue.flows.train import train
from segue.prefect.recovery.look import look_at
from segue.prefect.state_words import in_words
from segue.process import ProcessRef
from segue.records import StopReason
from segue.runlog.history import read_history
from segue.runlog.parents import parents, read_parent
from tests.flows.conftest import REPO
from tests.flows.test_recovery import the_parents
from tests.flows.test_runs import LONG, artifacts, final_state, live_attempt, until
from tests.support.servers.prometheus import running_prometheus

pytestmark = pytest.mark.prefect

SEGUE = Path(sys.executable).with_name("segue")
POOL = "served"
USUAL = ProcessJob(
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
        ({"command": "nice python -m prefect.engine"}, "another command (nice python -m prefect.engine)"),
        ({"env": {"AWS_PROFILE": "training"}}, None),
        ({"env": {"AWS_PROFILE": "another"}}, "sets variables that `segue serve` does not have (AWS_PROFILE)"),
        ({"env": {"AWS_PROFILE": None}}, "sets variables that `segue serve` does not have (AWS_PROFILE)"),
        ({"env": {"UNKNOWN": None}}, None),
        ({"working_dir": Path("/runs/../runs")}, None),
        ({"working_dir": Path("/elsewhere")}, "its working_dir is /elsewhere; `segue serve` was started in /runs"),
        ({"working_dir": None}, "its job has no working_dir; `segue serve` was started in /runs"),
        ({"entrypoint": "segue.flows.recover.recover"}, "not the installed segue.flows.train"),
        ({"entrypoint": "flows/train.py:train"}, "not the installed segue.flows.train"),
        ({"entrypoint": None}, "not the installed segue.flows.train"),
        ({"has_pull_steps": True}, "not the installed segue.flows.train"),
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
def serving(
    stack, client, tmp_path, *, pool: str = POOL, runs: int = 10, variables: Mapping[str, str] = {}
) -> Iterator[psutil.Popen]:
    """`segue serve` as a process; ended with SIGTERM, unless the block has ended it."""
    name = f"serve-{tmp_path.name}"
    environment = stack.environment() | {"PREFECT_HOME": str(tmp_path / "prefect-of-serve")} | variables
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


def over(client, flow_run_id: UUID):
    state = client.read_flow_run(flow_run_id).state
    return state if state.is_final() else None


def start_served(client, spec, *, deployment: str = f"train/{POOL}", job_variables: dict[str, str] | None = None):
    runlog = open_run(spec, clock=SystemClock())
    found = client.read_deployment_by_name(deployment)
    parameters = {"spec": spec.model_dump(mode="json")}
    facts = {"name": spec.run_id, "tags": ["segue", spec.run_id], "job_variables": job_variables}
    made = client.create_flow_run_from_deployment(found.id, parameters=parameters, **facts)
    return runlog, made.id


def process_of_parent(runlog) -> int | None:
    record = read_parent(runlog.store, runlog.run_id)
    return int(record.process.split()[0]) if record is not None else None


def engines_of(flow_run_id: UUID) -> list[int]:
    """Processes that Prefect started for this flow run."""
    found = []
    for process in psutil.process_iter(["pid", "environ"]):
        environment = process.info["environ"] or {}
        if environment.get("PREFECT__FLOW_RUN_ID") == str(flow_run_id):
            found.append(process.pid)
    return found


@pytest.mark.soak
@pytest.mark.matrix
def test_two_runs_are_served_at_once_by_one_process(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path) as serve:
        specs = [make_spec(run_id=f"served-{name}", **LONG | {"steps": 400}) for name in ("one", "two")]
        begun = [start_served(client, spec) for spec in specs]
        for runlog, flow_run_id in begun:
            assert until(lambda runlog=runlog: process_of_parent(runlog), what="the parent") == serve.pid
            assert engines_of(flow_run_id) == []
        for runlog, flow_run_id in begun:
            state = final_state(client, flow_run_id)
            assert state.type is StateType.COMPLETED, state.message
            assert [r.stop_reason for r in read_history(runlog.reload()).last_reports()] == [StopReason.FINISHED]
            newest = artifacts(client, runlog.run_id)[0]
            assert newest.flow_run_id == flow_run_id
            assert "step 400 of 400" in newest.data
        assert parents(begun[0][0].store) == []
    assert serve.wait() == 128 + signal.SIGTERM


@pytest.mark.matrix
def test_prometheus_gets_the_served_runs_also_after_their_end(stack, client, pool, make_spec, tmp_path):
    port = free_port(0)
    variables = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
    url = f"http://127.0.0.1:{port}/metrics"
    with serving(stack, client, tmp_path, variables=variables), running_prometheus(tmp_path, url) as prometheus:
        assert f"metrics: {url}" in (tmp_path / "serve.log").read_text().replace("\n", "")
        begun = [start_served(client, make_spec(run_id=name, **LONG | {"steps": 200})) for name in ("first", "second")]
        assert prometheus.wait_for('segue_run_state{state="running"}')
        for _, flow_run_id in begun:
            assert final_state(client, flow_run_id).type is StateType.COMPLETED
        assert prometheus.wait_for('count(segue_run_state{state="finished"}) == 2')
        assert prometheus.value('segue_committed_steps{run="first"}') == 200
        assert prometheus.value('segue_goodput_ratio{run="second"}') > 0
        command, environment = [str(SEGUE), "serve", "--pool", pool], stack.environment() | variables
        refused = subprocess.run(command, env=environment, cwd=REPO, check=False, capture_output=True, text=True)
    assert refused.returncode == 2
    said = " ".join(refused.stderr.split())
    assert f"metrics: the endpoint for Prometheus cannot listen on 127.0.0.1:{port}" in said
    assert "Fix: set OTEL_EXPORTER_PROMETHEUS_PORT" in said


@pytest.mark.soak
@pytest.mark.matrix
def test_a_cancelled_run_is_stopped_and_the_others_go_on(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path) as serve:
        kept, cancelled = (make_spec(run_id=name, **LONG | {"steps": 4000}) for name in ("kept", "cancelled"))
        (kept_log, kept_run), (runlog, flow_run_id) = start_served(client, kept), start_served(client, cancelled)
        for one in (kept_log, runlog):
            until(lambda one=one: live_attempt(one, past_step=60), what="the segment")
        client.set_flow_run_state(flow_run_id, Cancelling(), force=True)
        state = until(lambda: over(client, flow_run_id), what="the cancelled parent", limit_seconds=15)
        assert state.type is StateType.CANCELLED
        # The parent saw its own cancellation, or the end of the segment, whichever came first.
        sentences = ("the run is stopped: the parent's flow run was cancelled", "segment 0 was cancelled; start")
        assert state.message.startswith(sentences), state.message
        # It was recalled, or saw the cancellation itself, whichever came first. It committed either way.
        wanted = (StopReason.BOUND, StopReason.CANCELLED)
        (report,) = until(
            lambda: [each for each in read_history(runlog.reload()).last_reports() if each.stop_reason in wanted],
            what="the attempt's own report",
        )
        assert report.lost_steps == 0
        assert read_history(runlog).stop is not None

        # Recovery runs in a process of its own on the same pool, and tidies up.
        found = client.read_deployment_by_name(f"recover/{POOL}")
        recovery = client.create_flow_run_from_deployment(found.id, parameters={"stores": [{"url": kept.store.url}]}).id
        assert final_state(client, recovery).type is StateType.COMPLETED
        assert client.read_flow_run(recovery).infrastructure_pid not in (None, str(serve.pid))
        assert client.read_flow_run(flow_run_id).state.type is StateType.CANCELLED
        assert [record.run_id for record in parents(kept_log.store)] == ["kept"]

        assert final_state(client, kept_run).type is StateType.COMPLETED
        assert len(read_history(kept_log.reload()).attempts) == 1


@pytest.mark.soak
@pytest.mark.matrix
def test_a_run_that_is_one_too_many_waits_and_recovery_does_not(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path, runs=1):
        # The first one goes on until it is cancelled, however long recovery takes on a busy machine.
        lengths = ((1, 1_000_000), (2, 100))
        specs = [make_spec(run_id=f"limited-{number}", **LONG | {"steps": steps}) for number, steps in lengths]
        first_log, first = start_served(client, specs[0])
        until(lambda: live_attempt(first_log), what="the segment")
        _, second = start_served(client, specs[1])
        found = client.read_deployment_by_name(f"recover/{POOL}")
        recovery = client.create_flow_run_from_deployment(
            found.id, parameters={"stores": [{"url": specs[0].store.url}]}
        ).id
        assert final_state(client, recovery).type is StateType.COMPLETED
        assert client.read_flow_run(second).state.type is StateType.SCHEDULED
        said = "1 runs are served at most; 1 more wait. Fix:"
        until(lambda: said in (tmp_path / "serve.log").read_text(), what="what is said about the second run")
        assert client.read_flow_run(second).state.type is StateType.SCHEDULED
        client.set_flow_run_state(first, Cancelling(), force=True)
        assert final_state(client, first).type is StateType.CANCELLED
        assert final_state(client, second).type is StateType.COMPLETED


@pytest.mark.soak
@pytest.mark.matrix
def test_whatever_a_run_started_in_the_process_ends_with_it(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path) as serve:
        threads = []
        for number in range(3):
            _, flow_run_id = start_served(client, make_spec(run_id=f"tidy-{number}", **LONG | {"steps": 100}))
            assert final_state(client, flow_run_id).type is StateType.COMPLETED
            threads.append(serve.num_threads())
        # The first run also starts what all runs of the process share.
        until(lambda: serve.num_threads() <= threads[0], what="the end of the later runs' threads")


@pytest.mark.soak
@pytest.mark.matrix
def test_a_parent_whose_job_differs_gets_a_process_of_its_own(stack, client, pool, make_spec, tmp_path):
    with serving(stack, client, tmp_path) as serve:
        spec = make_spec(run_id="own-process", **LONG | {"steps": 100})
        runlog, flow_run_id = start_served(client, spec, job_variables={"working_dir": str(tmp_path)})
        assert until(lambda: process_of_parent(runlog), what="the parent") != serve.pid
        assert final_state(client, flow_run_id).type is StateType.COMPLETED
        said = [line.message for line in client.read_logs(LogFilter(flow_run_id={"any_": [flow_run_id]}))]
        assert any(f"its working_dir is {tmp_path}; `segue serve` was started in {REPO}" in text for text in said)


@pytest.mark.soak
def test_runs_go_on_when_their_process_ends_and_is_started_again(own_stack, make_spec, tmp_path):
    stack = own_stack
    worker = stack.services["worker-parents"]
    worker.kill()
    until(lambda: not ProcessRef.of(worker.pid).is_alive(), what="the end of the worker")
    with get_client(sync_client=True) as client:
        specs = [make_spec(run_id=f"left-{number}", **LONG | {"steps": 5000}) for number in (1, 2)]
        with serving(stack, client, tmp_path, pool="parents") as serve:
            begun = [start_served(client, spec, deployment="train/train") for spec in specs]
            logs = [runlog for runlog, _ in begun]
            for runlog in logs:
                until(lambda runlog=runlog: live_attempt(runlog, past_step=60), what="the segment")
                assert process_of_parent(runlog) == serve.pid
            serve.send_signal(signal.SIGTERM)
            assert serve.wait(30) == 128 + signal.SIGTERM
        # It could still tell.
        assert [in_words(client.read_flow_run(parent).state) for _, parent in begun] == ["Parent lost", "Parent lost"]
        assert all(read_parent(runlog.store, runlog.run_id).has_left for runlog in logs)
        claims = [live_attempt(runlog)[0] for runlog in logs]
        with serving(stack, client, tmp_path, pool="parents") as serve:
            recovered(client, specs)
            for runlog in logs:
                until(lambda runlog=runlog: process_of_parent(runlog) == serve.pid, what="the next parent")
            serve.kill()
            assert serve.wait(30) == -signal.SIGKILL
        with serving(stack, client, tmp_path, pool="parents"):
            recovered(client, specs)
            for (runlog, first), claim in zip(begun, claims, strict=True):
                newest, *before = the_parents(client, runlog)
                assert [in_words(parent.state) for parent in before] == ["Parent lost", "Parent lost"]
                assert before[-1].id == first
                assert final_state(client, newest.id).type is StateType.COMPLETED
                assert [attempt.claim for attempt in read_history(runlog.reload()).attempts] == [claim]


def recovered(client, specs) -> None:
    """Both parents are started again."""
    looked = look_at(client, specs[0].store)
    assert (len(looked.done), looked.troubles) == (2, ())
