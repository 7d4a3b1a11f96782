"""Two hosts: the network of one is cut, its segment becomes a zombie, the other goes on, and the zombie is fenced."""

from __future__ import annotations

import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import StateType

from benchmarks.chaos import processes
from benchmarks.chaos.gate import Gate
from benchmarks.chaos.stack import ChaosStack
from benchmarks.crash.places import made_up_keys, moto_server, new_bucket
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.deployments.local_stack.registration import process_template
from segue.records import StopReason
from segue.runlog.entries import CommitEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import open_store
from tests.flows.test_runs import final_state, live_attempt, segment_runs, start, until
from tests.support.final_states import state_at_end
from tests.support.hosts import BRIDGE_ADDRESS, HostsUnavailableError, Network

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

NAMES = ("host-a", "host-b")
STEPS = 4000


@pytest.fixture
def network():
    try:
        with Network() as network:
            yield network
    except HostsUnavailableError as refused:
        pytest.skip(str(refused))


@pytest.fixture
def bucket():
    """A bucket: its own address, and that of a server which the hosts reach too."""
    with made_up_keys(), moto_server() as url, new_bucket(url) as bucket:
        yield url, f"s3://{bucket}/runs"


@pytest.fixture
def stack(network, bucket, tmp_path: Path):
    """A Prefect that listens on the bridge."""
    with Gate(lambda: stack.port, host=BRIDGE_ADDRESS) as gate:
        stack = ChaosStack(tmp_path / "prefect", gate=gate, variables={}, say=lambda text: None)
        try:
            stack.start()
            with stack.settings():
                yield stack
        finally:
            stack.stop()


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def hosts(network, stack, client):
    """Two hosts, each with a worker for a pool and a deployment of its name."""
    template = process_template(stack.home)
    model = client.read_deployment_by_name("segment/spot")
    same = ("path", "entrypoint", "pull_steps", "parameter_openapi_schema", "enforce_parameter_schema", "tags")
    facts = {field: getattr(model, field) for field in same}
    hosts = {}
    for name in NAMES:
        client.create_work_pool(WorkPoolCreate(name=name, type="process", base_job_template=template))
        client.create_deployment(model.flow_id, name, work_pool_name=name, **facts)
        hosts[name] = network.add_host(name)
        worker = [sys.executable, "-m", "prefect", "worker", "start", "--pool", name, "--name", name]
        hosts[name].start(worker, env=stack.environment(), log=stack.logs / f"{name}.log")
    return hosts


@pytest.mark.soak
def test_a_host_that_was_cut_off_is_fenced_when_it_returns_and_the_run_ends_elsewhere(
    client, hosts, bucket, make_spec, fork_server
):
    url, folder = bucket
    port = urlsplit(url).port
    fields = {
        "steps": STEPS,
        "config": {"pause_seconds": 0.008},
        "checkpoints": {"every_steps": 100},
        "liveness": {"heartbeat_seconds": 0.5, "heartbeat_timeout_seconds": 5},
        "policy": {"max_preemptions": 1, "handover": False},
        "pools": {"spot": [{"deployment": "segment/host-a"}], "on_demand": "segment/host-b"},
    }
    undisturbed = make_spec(run_id="undisturbed", **fields | {"config": {"pause_seconds": 0}})
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)

    with Gate(lambda: port, host=BRIDGE_ADDRESS) as gate:
        store = {"url": folder, "endpoint_url": gate.url, "region": "us-east-1"}
        spec = make_spec(run_id="two-hosts", store=store, **fields)
        _, parent = start(client, spec)
        runlog = RunLog(open_store(StoreSpec(**store | {"endpoint_url": url})), spec.run_id)
        zombie, _ = until(lambda: live_attempt(runlog, past_step=300), what="the first segment")
        hosts["host-a"].cut()
        successor, _ = until(lambda: other_attempt(runlog, zombie), what="the second segment")
        assert (zombie.host, successor.host) == NAMES
        assert processes.of_flow_run(zombie.flow_run_id), "the zombie still trains"
        hosts["host-a"].join()
        until(lambda: not processes.of_flow_run(zombie.flow_run_id), what="the end of the zombie")
        state = final_state(client, parent)

    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert runlog.damage == ()
    assert [report.stop_reason for report in history.last_reports()] == [StopReason.LOST, StopReason.FINISHED]
    entries = [slot.entry for slot in runlog.slots]
    since = entries.index(next(entry for entry in entries if entry.entry_id == successor.entry_id))
    assert {e.epoch for e in entries[since:] if isinstance(e, CommitEntry)} == {successor.epoch}
    assert state_at_end(history) == state_at_end(read_history(reference))
    runs = until(lambda: ended(client), what="the segments' own states")
    assert [(run.name, run.state.type) for run in runs] == [
        ("two-hosts-seg0-a1-spot", StateType.CRASHED),
        ("two-hosts-seg1-a1-on-demand", StateType.COMPLETED),
    ]


def other_attempt(runlog, first):
    """An attempt that trains on and has committed, other than the first."""
    claim, beat = live_attempt(runlog) or (None, None)
    if claim is None or claim.attempt_id == first.attempt_id:
        return None
    return (claim, beat) if beat.last_commit_step else None


def ended(client):
    runs = segment_runs(client, "two-hosts")
    return runs if len(runs) == 2 and all(run.state.is_final() for run in runs) else None
