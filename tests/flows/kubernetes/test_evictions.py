"""Pods are evicted, nodes vanish, jobs are deleted: the run goes on where segue decides, and nowhere else."""

from __future__ import annotations

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType

from segue.prefect.state_words import in_words
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.flows.kubernetes.conftest import ON_KUBERNETES
from tests.flows.test_runs import LONG, ended_segments, final_state, live_attempt, segment_runs, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]


@pytest.fixture
def client(kube):
    with get_client(sync_client=True) as client:
        yield client


def job_of(kube, client, run_id):
    """The name of the job of a run's newest segment."""
    newest = segment_runs(client, run_id)[-1]
    (job,) = kube.cluster.jobs_of(newest.id)
    return job["metadata"]["name"]


def test_a_run_outlives_evictions_a_lost_node_and_a_deleted_job(kube, client, make_spec):
    longer = LONG | {"steps": 1500}
    spec = make_spec(run_id="kube-evicted", policy={"max_preemptions": 9}, **longer | ON_KUBERNETES)
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog), what="the first segment")
    kube.stop_worker("kube-spot")  # Its job runs on.
    kube.start_worker("kube-spot")
    faults = {
        "evicted, 30 s": lambda job: kube.cluster.evict(job, grace_seconds=30),
        "evicted, 15 s": lambda job: kube.cluster.evict(job, grace_seconds=15),
        "node lost": lambda job: kube.cluster.lose_node(job, reported_after_seconds=2),
        "deleted with its pods": lambda job: kube.cluster.delete(job, cascade="foreground"),
        "deleted before its pods": lambda job: kube.cluster.delete(job, cascade="background"),
    }
    for number, (name, fault) in enumerate(faults.items()):
        until(lambda number=number: live_attempt(runlog, past_step=200 * (number + 1)), what=f"before {name}")
        fault(job_of(kube, client, "kube-evicted"))
        until(lambda number=number: len(read_history(runlog).last_reports()) > number, what=f"the report of {name}")
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    reports = history.last_reports()
    assert [(report.stop_reason, report.lost_steps == 0) for report in reports] == [
        (StopReason.NOTICE, True),
        (StopReason.NOTICE, True),
        (StopReason.LOST, False),
        (StopReason.NOTICE, True),
        (StopReason.NOTICE, True),
        (StopReason.FINISHED, True),
    ]
    kinds = {attempt.verdict.kind for attempt in history.attempts[1:]}
    assert kinds <= {VerdictKind.EXACT, VerdictKind.UNVERIFIED}
    runs = ended_segments(client, "kube-evicted")
    assert [run.run_count for run in runs] == [1] * 6, "Prefect started none again"
    assert [run.state.type for run in runs] == [*[StateType.CRASHED] * 5, StateType.COMPLETED]
    assert [in_words(run.state) for run in runs].count("Preempted") >= 3, (
        "and where the job is gone first, the worker may be faster"
    )
