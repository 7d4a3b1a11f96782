"""Pods that do not start, a cluster that does not answer, and cancellations in the UI."""

from __future__ import annotations

import json

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, LogFilter, LogFilterFlowRunId
from prefect.client.schemas.objects import StateType
from prefect.states import Cancelling

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.prefect.prefect_orchestrator import PrefectOrchestrator
from segue.records import Machine, StopReason
from segue.runlog.history import read_history
from tests.flows.kubernetes.conftest import API_SECRETS, ON_KUBERNETES
from tests.flows.test_runs import (
    LONG,
    ended_segments,
    final_state,
    live_attempt,
    segment_runs,
    start,
    until,
)
from tests.launch.slurm.conftest import record_unfit

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]


@pytest.fixture
def client(kube):
    with get_client(sync_client=True) as client:
        yield client
    kube.cluster.set(has_nodes=True, has_image=True, is_api_away=False)


def reports_of(runlog):
    return read_history(runlog).last_reports()


@pytest.mark.soak
def test_a_cluster_that_refuses_jobs_costs_nothing_and_is_asked_again_later(kube, client, make_spec):
    kube.cluster.set(is_api_away=True)
    spec = make_spec(run_id="kube-away", **LONG | ON_KUBERNETES)
    runlog, parent = start(client, spec)
    (refused,) = until(lambda: reports_of(runlog), what="the first refusal")
    kube.cluster.set(is_api_away=False)
    assert (refused.stop_reason, refused.was_refused, refused.got_capacity) == (StopReason.NO_CAPACITY, True, False)
    assert "the pool kube-spot could not start it: " in refused.note
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert history.last_reports()[-1].stop_reason is StopReason.FINISHED
    delays = [entry.plan.delay_seconds for entry in history.decisions if entry.plan is not None]
    assert delays[0] == 0
    assert delays[1] == 5


@pytest.mark.soak
def test_a_pod_that_is_preempted_before_it_runs_is_replaced_and_why_one_waits_is_known(kube, client, make_spec):
    kube.cluster.set(has_nodes=False)
    spec = make_spec(run_id="kube-pending", **LONG | ON_KUBERNETES)
    runlog, parent = start(client, spec)

    def pending_job():
        runs = segment_runs(client, "kube-pending")
        jobs = kube.cluster.jobs_of(runs[-1].id) if runs else []
        return jobs[0]["metadata"]["name"] if jobs and kube.cluster.pods_of(jobs[0]["metadata"]["name"]) else None

    job = until(pending_job, what="the pending pod")
    assert "nodes are available" in until(why_waiting(client, runlog, spec), what="the cluster's reason")
    kube.cluster.evict(job, grace_seconds=30)
    (lost,) = until(lambda: reports_of(runlog), what="the report of the preempted pod")
    assert lost.stop_reason is StopReason.LOST
    kube.cluster.set(has_nodes=True, has_image=False)
    until(lambda: pending_job() not in (None, job), what="the second pod")
    kube.cluster.set(has_image=True)
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    assert [run.run_count for run in ended_segments(client, "kube-pending")] == [0, 1]


@pytest.mark.soak
def test_an_on_demand_attempt_whose_image_cannot_be_pulled_says_so_on_the_page_and_in_the_log(kube, client, make_spec):
    """It stays in its queue: nothing gives it up."""
    kube.cluster.set(has_image=False)
    spec = make_spec(run_id="kube-image", policy={"name": "on_demand_only"}, **LONG | ON_KUBERNETES)
    runlog, parent = start(client, spec)
    assert until(lambda: read_history(runlog).open_plan, what="the decision").start_within_seconds is None
    said = "waiting for on-demand capacity (segment/kube-on-demand): Image pull failed for container"
    key = ArtifactFilter(key=ArtifactFilterKey(any_=["segue-kube-image"]))

    def page():
        pages = [found.data for found in client.read_artifacts(artifact_filter=key)]
        return next((text for text in pages if said in text), None)

    assert "Fix: Verify the image name and tag" in until(page, what="the page that names the image")
    of_parent = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[parent]))
    until(lambda: any(said in line.message for line in client.read_logs(log_filter=of_parent)), what="the log line")
    kube.cluster.set(has_image=True)
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    assert len(segment_runs(client, "kube-image")) == 1


def why_waiting(client, runlog, spec):
    """What the page of a run asks for: why its newest attempt does not start."""
    orchestrator, (run,) = PrefectOrchestrator(log_id=runlog.log_id), segment_runs(client, spec.run_id)
    handle = orchestrator.adopt(spec, read_history(runlog).open_plan, str(run.id))
    return lambda: orchestrator.why_waiting(handle)


def test_a_job_refers_to_the_secret_with_the_key_of_the_prefect_api_and_does_not_hold_it(kube, client, make_spec):
    spec = make_spec(run_id="kube-secrets", **LONG | ON_KUBERNETES)
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog), what="the segment")
    (run,) = segment_runs(client, "kube-secrets")
    (job,) = kube.cluster.jobs_of(run.id)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    held = {one["name"]: one for one in container["env"] if one["name"] in API_SECRETS}
    assert held == {name: reference(name) for name in API_SECRETS}
    assert not any(secret in json.dumps(job) for secret in API_SECRETS.values())
    client.set_flow_run_state(parent, Cancelling())
    assert final_state(client, parent).type is StateType.CANCELLED


def reference(name):
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "segue-prefect-api", "key": name}}}


def test_a_cancelled_segment_commits_and_ends_the_run(kube, client, make_spec):
    spec = make_spec(run_id="kube-cancelled", **LONG | ON_KUBERNETES)
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=100), what="the segment")
    (run,) = segment_runs(client, "kube-cancelled")
    client.set_flow_run_state(run.id, Cancelling())
    state = final_state(client, parent)
    assert state.type is StateType.CANCELLED, state.message
    (report,) = reports_of(runlog)
    assert (report.stop_reason, report.lost_steps) == (StopReason.CANCELLED, 0)
    (ended,) = ended_segments(client, "kube-cancelled")
    assert ended.state.type is StateType.CANCELLED
    until(lambda: is_over(kube, run.id), what="the end of its pod")


@pytest.mark.parametrize(
    "is_waiting",
    [
        pytest.param(True, id="while it waits for a machine"),
        pytest.param(False, id="while its segment trains", marks=pytest.mark.soak),
    ],
)
def test_a_parent_in_a_pod_ends_when_it_is_cancelled(kube, client, make_spec, is_waiting):
    run_id = f"kube-parent-{'waits' if is_waiting else 'trains'}"
    spec = make_spec(run_id=run_id, **LONG | ON_KUBERNETES)
    runlog = open_run(spec, clock=SystemClock())
    if is_waiting:
        client.update_work_pool("kube-spot", work_pool=paused(True))
    try:
        deployment = client.read_deployment_by_name("train/kube-parents")
        parent = client.create_flow_run_from_deployment(
            deployment.id, parameters={"spec": spec.model_dump(mode="json")}, name=run_id
        )
        until(lambda: segment_runs(client, run_id) if is_waiting else live_attempt(runlog), what="the segment")
        client.set_flow_run_state(parent.id, Cancelling())
        state = final_state(client, parent.id)
    finally:
        client.update_work_pool("kube-spot", work_pool=paused(False))
    assert state.type is StateType.CANCELLED, state.message
    until(lambda: read_history(runlog).stop or cancelled(reports_of(runlog)), what="the stop of the run")
    if not is_waiting:
        # The attempt is recalled, or sees the cancellation itself, whichever comes first: it commits either way.
        (report,) = until(lambda: reports_of(runlog), what="the end of the attempt")
        assert report.stop_reason in (StopReason.BOUND, StopReason.NOTICE, StopReason.CANCELLED)
        assert report.lost_steps == 0
    until(lambda: is_over(kube, parent.id), what="the end of its pod")


def cancelled(reports):
    return [report for report in reports if report.stop_reason is StopReason.CANCELLED]


def paused(is_paused):
    from prefect.client.schemas.actions import WorkPoolUpdate

    return WorkPoolUpdate(is_paused=is_paused)


def is_over(kube, flow_run_id):
    jobs = kube.cluster.jobs_of(flow_run_id)
    return all(not job["status"].get("active") for job in jobs)


def test_a_pod_runs_on_another_node_than_the_one_that_failed_the_check_and_its_claim_names_the_node(
    kube, client, make_spec
):
    spec = make_spec(run_id="kube-avoids", **LONG | ON_KUBERNETES)
    record_unfit(open_run(spec, clock=SystemClock()), Machine(kind="kubernetes", name="node-1"))
    runlog, parent = start(client, spec)
    claim, _ = until(lambda: live_attempt(runlog), what="the segment")
    assert [(each.kind, each.name) for each in claim.machines] == [("kubernetes", "node-2")]
    client.set_flow_run_state(parent, Cancelling())
    final_state(client, parent)
