"""The doctor on a real Prefect server: what it reads there, and that a run is refused by the same checks."""

from __future__ import annotations

import copy
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.settings import PREFECT_API_URL, temporary_settings

from segue.doctor.check import examine
from segue.doctor.pools.queue_judgement import blocker
from segue.doctor.server_judgement import Database, Recovery
from segue.doctor.subject import Subject
from segue.errors import OrchestratorError, QueueMissingError
from segue.prefect.doctor import database_of, items, open_parents
from segue.prefect.run_pools import is_verification_limited, read_pool, recovery_of, require_pools
from tests.cli.test_errors import closed_port
from tests.cli.test_run_command import answering
from tests.doctor.showing import bad, makes_fail
from tests.doctor.templates import KUBERNETES
from tests.doctor.waiting import awaited
from tests.flows.test_runs import until
from tests.support.kube.client import running_cluster

__all__ = ["answering", "closed_port"]
in_matrix = partial(pytest.param, marks=pytest.mark.matrix)
ENGINE = "python -m segue.flows.prefect_engine"


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def on_pods(client):
    """Makes a deployment of segments on a new pool of Kubernetes with the default template, changed by `pod`."""

    def make(*, variables=None, pod=None, queue=None):
        name = f"pods-{uuid.uuid4().hex[:8]}"
        configuration = copy.deepcopy(KUBERNETES) | {"command": "{{ command }}", "env": "{{ env }}"}
        configuration["job_manifest"]["spec"]["backoffLimit"] = "{{ backoff_limit }}"
        configuration["job_manifest"]["spec"]["template"]["spec"] |= pod or {}
        configuration["job_manifest"]["spec"]["template"]["spec"]["containers"][0]["args"] = "{{ command }}"
        properties = {
            "command": {"type": "string"},
            "env": {"type": "object", "default": {"A": "1"}},
            "backoff_limit": {"type": "integer", "default": 0},
        }
        template = {"job_configuration": configuration, "variables": {"type": "object", "properties": properties}}
        client.create_work_pool(WorkPoolCreate(name=name, type="kubernetes", base_job_template=template))
        spot = client.read_deployment_by_name("segment/spot")
        client.create_deployment(
            flow_id=spot.flow_id,
            name=name,
            entrypoint=spot.entrypoint,
            work_pool_name=name,
            work_queue_name=queue,
            job_variables=variables or {},
        )
        client.send_worker_heartbeat(work_pool_name=name, worker_name="observed", heartbeat_interval_seconds=600)
        return f"segment/{name}", name

    return make


def outcomes(spec):
    checks = examine(items(Subject(spec=spec, store=spec.store)))
    return {check.name: check for check in checks}


@pytest.mark.prefect
def test_the_local_stack_passes_every_check_of_the_server(stack, make_spec):
    found = outcomes(make_spec())
    assert {name: check for name, check in found.items() if check.outcome in ("warn", "fail")}.keys() <= {
        "prefect.recover"  # The tests pause it.
    }
    assert found["prefect.database"].reason.startswith("SQLite, ")
    assert found["pool.workers"].reason == "spot: 1 online; on-demand: 1 online; parents: 1 online"
    assert found["pool.sigterm"].outcome == "ok"
    assert found["pool.backoff-limit"].outcome == "skipped"


@pytest.mark.prefect
def test_the_kind_of_the_database_is_found_without_writing_anything(stack, client):
    assert database_of(client) is Database.SQLITE
    assert open_parents(client) == 0


@makes_fail("prefect.deployments")
@pytest.mark.prefect
def test_a_deployment_that_does_not_exist_is_found(stack, make_spec):
    found = outcomes(make_spec(pools={"spot": "segment/none"}))
    bad("prefect.deployments", found["prefect.deployments"], "fail", "'segment/none'", "deploy --all")
    assert found["pool.workers"].outcome == "ok"


@makes_fail("pool.queue")
@pytest.mark.prefect
@pytest.mark.parametrize("deleted", ["queue", in_matrix("pool")])
def test_a_queue_that_does_not_exist_is_found_and_refused_before_the_first_segment(client, on_pods, make_spec, deleted):
    deployment, pool = on_pods(variables={"command": ENGINE}, queue="gpu")
    assert read_pool(client, deployment).queue == "gpu"
    client.request("DELETE", f"/work_pools/{pool}/queues/gpu" if deleted == "queue" else f"/work_pools/{pool}")
    spec = make_spec(pools={"spot": deployment})
    bad("pool.queue", outcomes(spec)["pool.queue"], "fail", f"{deployment!r} has no work queue")
    with pytest.raises(QueueMissingError, match="has no work queue"):
        require_pools(spec)


@makes_fail("pool.sigterm", "pool.grace-period", "pool.backoff-limit")
@pytest.mark.prefect
@pytest.mark.parametrize(
    ("name", "variables", "pod", "words"),
    [
        ("pool.sigterm", {}, {}, "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR=crash"),
        in_matrix("pool.sigterm", {"env.B": "2"}, {}, "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR=crash"),
        in_matrix("pool.backoff-limit", {"command": ENGINE, "backoff_limit": 3}, {}, "backoffLimit 3"),
        in_matrix(
            "pool.grace-period", {"command": ENGINE}, {"terminationGracePeriodSeconds": 20}, "grace_seconds = 25"
        ),
    ],
)
def test_a_template_of_kubernetes_that_loses_work_is_found_and_refused(on_pods, make_spec, name, variables, pod, words):
    deployment, _ = on_pods(variables=variables, pod=pod)
    spec = make_spec(pools={"spot": deployment})
    bad(name, outcomes(spec)[name], "fail", deployment, words)
    with pytest.raises(OrchestratorError) as refused:
        require_pools(spec)
    assert words in str(refused.value)
    assert "Fix: " in str(refused.value)


@pytest.mark.matrix
@makes_fail("pool.limits")
@pytest.mark.prefect
def test_a_queue_with_room_for_the_parent_alone_is_found_and_refused(stack, client, make_spec):
    spot = client.read_deployment_by_name("segment/spot")
    name = f"beside-{uuid.uuid4().hex[:8]}"
    of_parents = {"work_pool_name": "parents", "work_queue_name": "default"}
    client.create_deployment(flow_id=spot.flow_id, name=name, entrypoint=spot.entrypoint, **of_parents)
    spec = make_spec(pools={"spot": f"segment/{name}"})
    queue = client.read_work_queue_by_name("default", work_pool_name="parents")
    client.update_work_queue(queue.id, concurrency_limit=1)
    try:
        bad("pool.limits", outcomes(spec)["pool.limits"], "fail", "limit of the queue", "2 or more")
        with pytest.raises(OrchestratorError, match="the run's parent is one of them"):
            require_pools(spec, parent_pool="parents", parent_queue="default")
    finally:
        client.update_work_queue(queue.id, concurrency_limit=None)
    assert outcomes(spec)["pool.limits"].outcome == "ok"


@makes_fail("pool.nodes", "pool.shared-memory")
@pytest.mark.prefect
@pytest.mark.matrix
def test_what_a_pool_does_badly_is_said_before_the_first_segment(on_pods, make_spec, tmp_path, monkeypatch, caplog):
    pytest.importorskip("kubernetes_asyncio", reason="the extra `kubernetes` is not installed")
    pod = {"nodeSelector": {"gpu": "h100"}, "terminationGracePeriodSeconds": 60}
    spec = make_spec(pools={"spot": on_pods(variables={"command": ENGINE}, pod=pod)[0]})
    with running_cluster(tmp_path / "kube") as cluster:
        monkeypatch.setenv("KUBECONFIG", str(cluster.config_of_person))
        bad("pool.nodes", outcomes(spec)["pool.nodes"], "warn", "gpu=h100")
        require_pools(spec)
    said = [record.getMessage() for record in caplog.records if record.name == "segue.prefect.run_pools"]
    assert ["gpu=h100" in text and "Fix: correct nodeSelector" in text for text in said].count(True) == 1
    assert ["/dev/shm" in text for text in said].count(True) == 1


@pytest.mark.matrix
@pytest.mark.prefect
def test_a_cluster_that_cannot_be_asked_is_in_the_way_of_no_other_check(on_pods, make_spec, tmp_path, monkeypatch):
    (tmp_path / "config").write_bytes(b"\xff\xfe")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    pod = {"nodeSelector": {"gpu": "h100"}, "terminationGracePeriodSeconds": 60}
    spec = make_spec(pools={"spot": on_pods(variables={"command": ENGINE}, pod=pod)[0]})
    found = outcomes(spec)
    assert [name for name, check in found.items() if check.outcome == "fail"] == []
    assert "the nodes of the cluster are not known here" in found["pool.nodes"].reason
    require_pools(spec)


@pytest.mark.prefect
def test_job_variables_take_the_place_of_the_templates_defaults(client, on_pods):
    deployment, _ = on_pods(variables={"command": ENGINE, "env.B": "2", "imagee": "x"})
    state = read_pool(client, deployment)
    assert state.unknown_variables == ("imagee",)
    assert (state.job.command, state.job.retries) == (ENGINE, 0)
    assert dict(state.job.environment) == {"A": "1", "B": "2"}


@pytest.mark.prefect
def test_what_becomes_of_dead_parents_is_read(stack, client):
    assert recovery_of(client, now=datetime.now(UTC) + timedelta(days=1)) in set(Recovery)
    assert is_verification_limited(client) is False


@pytest.mark.prefect
def test_a_paused_deployment_starts_no_dead_parent(stack, client):
    recover = client.read_deployment_by_name("recover/recover").id
    assert recovery_of(client, now=datetime.now(UTC)) is Recovery.PAUSED
    client.resume_deployment(recover)
    try:
        until(lambda: recovery_of(client, now=datetime.now(UTC)) is Recovery.ALIVE, what="flow runs of the schedule")
    finally:
        client.pause_deployment(recover)


@pytest.mark.matrix
@makes_fail("pool.queue")
@pytest.mark.prefect
def test_a_queue_that_no_worker_asks_is_found_and_one_that_was_just_made_is_not(
    client, on_pods, make_spec, monkeypatch
):
    deployment, pool = on_pods(variables={"command": ENGINE}, queue="gpu")
    assert blocker(read_pool(client, deployment)) is None, "a worker may ask for it within the minute"
    monkeypatch.setattr("segue.prefect.run_pools._SEEN_WITHIN", timedelta(0))
    found = outcomes(make_spec(pools={"spot": deployment}))
    bad("pool.queue", found["pool.queue"], "warn", f"no worker of the pool {pool} takes flow runs from its queue gpu")
    client.get_scheduled_flow_runs_for_work_pool(work_pool_name=pool, work_queue_names=["gpu"])
    awaited(lambda: blocker(read_pool(client, deployment)) is None)


@makes_fail("prefect.server")
def test_a_server_that_does_not_answer_is_found(closed_port, make_spec):
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{closed_port}/api"}):
        found = outcomes(make_spec())
    bad("prefect.server", found["prefect.server"], "fail", "does not answer", "start the Prefect server")
    assert {check.outcome for name, check in found.items() if name.startswith("pool.")} == {"skipped"}


@makes_fail("prefect.server")
def test_a_server_that_is_healthy_and_gives_no_access_is_one_check_that_fails(answering, make_spec):
    with temporary_settings({PREFECT_API_URL: answering(401, healthy=True)}):
        found = outcomes(make_spec())
    bad("prefect.server", found["prefect.server"], "fail", "refuses access (HTTP 401)", "PREFECT_API_AUTH_STRING")
    assert [name for name, check in found.items() if check.outcome == "fail"] == ["prefect.server"]
