"""How long an attempt would wait for a slot, by the flow runs that share it on a Prefect server."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Cancelling, Completed, Running, Scheduled, to_state_create

from segue.flows.segment import segment
from segue.policy.queueing import Queues, queue_seconds
from segue.prefect import queues
from segue.prefect.queues import (
    held_seconds,
    queues_of_attempt,
    queues_of_run,
    read_limit,
    seconds_between_starts,
)

pytestmark = pytest.mark.prefect
HOUR = 3600.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def hour_later(monkeypatch):
    """In an hour, which is now for the server's clock as it is read: slots that are held have been held so long."""
    later = datetime.now(UTC) + timedelta(hours=1)
    monkeypatch.setattr(queues, "time_at", lambda client: later)
    monkeypatch.setattr(queues, "parent_clock", lambda: SimpleNamespace(now=lambda: later))
    return later


def pool_with(client, name, **limits):
    client.create_work_pool(WorkPoolCreate(name=name, type="process", **limits))
    return name


def deployed(client, pool, name, **facts):
    """A deployment `segment/<name>` on a pool without worker."""
    return client.create_deployment(flow_id=client.create_flow(segment), name=name, work_pool_name=pool, **facts)


def begun(client, deployment):
    run = client.create_flow_run_from_deployment(deployment)
    client.set_flow_run_state(run.id, Running(), force=True)
    return run


def created(client, deployment, states):
    """Many flow runs, by few requests. SQLite refuses some of them while another request writes."""
    left = [{"state": to_state_create(state).model_dump(mode="json")} for state in states]
    path = "/deployments/{id}/create_flow_run/bulk"
    while left:
        some, rest = left[:100], left[100:]
        answer = client.request("POST", path, path_params={"id": deployment}, json=some)
        results = answer.raise_for_status().json()["results"]
        left = [one for one, found in zip(some, results, strict=True) if found["status"] != "CREATED"] + rest


def wait_of(client, name, *, after_hours=1):
    """The wait, as it is read some time from now: slots that are held now have been held so long then."""
    later = datetime.now(UTC) + timedelta(hours=after_hours)
    return queue_seconds(read_limit(client, f"segment/{name}", now=later).slots)


def test_the_wait_for_a_slot_follows_from_the_flow_runs_of_the_pool(client):
    pool = pool_with(client, "few-slots", concurrency_limit=1)
    deployment = deployed(client, pool, pool)
    assert wait_of(client, pool) == 0
    done = begun(client, deployment)
    client.set_flow_run_state(done.id, Completed(), force=True)
    assert wait_of(client, pool) == 0, "its slot is free again"
    begun(client, deployment)
    one_before = wait_of(client, pool)
    assert HOUR / 2 <= one_before < HOUR  # Half of the two slots known was held for an hour, the other not for long.
    client.create_flow_run_from_deployment(deployment)
    assert wait_of(client, pool) >= 2 * one_before
    client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=100))
    assert wait_of(client, pool) == 0


@pytest.mark.matrix
def test_more_flow_runs_that_wait_than_an_answer_holds_do_not_hide_those_that_run(client):
    pool = pool_with(client, "crowded", concurrency_limit=2)
    deployment = deployed(client, pool, pool)
    for _ in range(2):
        begun(client, deployment)
    later = Scheduled(scheduled_time=datetime.now(UTC) + timedelta(hours=9))
    created(client, deployment, [Scheduled()] * 110 + [later] * 3 + [Cancelled()] * 80)
    # 111 slots must become free, and one does each half hour.
    assert wait_of(client, pool) == pytest.approx(111 * HOUR / 2, rel=0.01)


@pytest.mark.matrix
def test_only_flow_runs_that_share_a_limit_are_waited_for(client):
    pool = pool_with(client, "shared")
    queue = client.create_work_queue("short", work_pool_name=pool, concurrency_limit=1)
    others = deployed(client, pool, "others", work_queue_name="default")
    deployed(client, pool, "alone", work_queue_name="default", concurrency_limit=1)
    queued = deployed(client, pool, "queued", work_queue_name="short")
    for _ in range(3):
        begun(client, others)
    assert queue.concurrency_limit == 1
    assert [wait_of(client, name) for name in ("others", "alone", "queued")] == [0, 0, 0]
    begun(client, client.read_deployment_by_name("segment/alone").id)
    assert wait_of(client, "alone") == pytest.approx(HOUR, rel=0.01)
    assert wait_of(client, "queued") == 0
    begun(client, queued)
    assert wait_of(client, "queued") == pytest.approx(HOUR, rel=0.01)
    client.update_work_pool(pool, WorkPoolUpdate(concurrency_limit=5))
    # Five slots of the pool are held, so one becomes free each fifth of an hour: the queue's single slot binds.
    assert wait_of(client, "others") == pytest.approx(HOUR / 5, rel=0.01)
    assert wait_of(client, "queued") == pytest.approx(HOUR, rel=0.01)


def test_an_attempt_waits_for_those_that_came_before_it_and_a_new_one_for_all(client, make_spec, hour_later):
    spot, on_demand = (
        deployed(client, pool_with(client, name, concurrency_limit=limit), name)
        for name, limit in (("wide", 2), ("narrow", 1))
    )
    for _ in range(2):
        begun(client, spot)
    waiting = [client.create_flow_run_from_deployment(spot).id for _ in range(6)]

    def wait_behind(flow_run_id):
        found = queues_of_attempt(
            client, flow_run_id, run_id="r", deployment="segment/wide", on_demand="segment/narrow"
        )
        assert (found.on_demand_seconds, found.slots_ratio) == (0, 2)
        return found.spot_seconds(hour_later)

    # Two slots that are held for an hour: one becomes free each half hour.
    waits = [wait_behind(each) for each in waiting]
    assert waits == pytest.approx([HOUR / 2 * turn for turn in range(1, 7)], rel=0.01)
    pools = {"spot": "segment/wide", "on_demand": "segment/narrow"}
    spec = make_spec(pools=pools, deadline=hour_later + timedelta(days=1))
    begun(client, on_demand)
    now = queues_of_run(spec)
    assert now.spot_seconds(hour_later) == pytest.approx(HOUR / 2 * 7, rel=0.01)
    assert now.on_demand_seconds == pytest.approx(HOUR, rel=0.01)
    assert queues_of_run(make_spec(pools=pools)) == Queues()


def test_an_attempt_that_has_its_slot_is_in_no_queue(client, hour_later):
    deployment = deployed(client, pool_with(client, "taken", concurrency_limit=1), "taken")
    first, second = begun(client, deployment), client.create_flow_run_from_deployment(deployment)

    def free_at(run):
        pools = {"deployment": "segment/taken", "on_demand": "segment/taken"}
        return queues_of_attempt(client, run.id, run_id="r", **pools).spot_free_at

    assert free_at(first) is None
    assert (free_at(second) - hour_later).total_seconds() == pytest.approx(HOUR, rel=0.01)


@pytest.mark.matrix
def test_a_run_is_not_behind_its_own_flow_runs_nor_behind_one_that_is_being_cancelled(client, make_spec):
    deployment = deployed(client, pool_with(client, "single", concurrency_limit=1), "single")
    pools = {"spot": "segment/single", "on_demand": "segment/single"}
    spec = make_spec(run_id="mine", pools=pools, deadline=datetime.now(UTC) + timedelta(days=1))
    for state in (Running(), Scheduled()):
        run = client.create_flow_run_from_deployment(deployment, name="mine-seg0-a1-spot", tags=["segue", "mine"])
        client.set_flow_run_state(run.id, state, force=True)
    assert queues_of_run(spec) == Queues(slots_ratio=1)
    facts = {"run_id": "mine", "deployment": "segment/single", "on_demand": "segment/single"}
    assert queues_of_attempt(client, run.id, **facts).on_demand_seconds == 0, "what waits is the attempt itself"
    parent = client.create_flow_run_from_deployment(deployment, name="mine", tags=["segue", "mine"])
    client.set_flow_run_state(parent.id, Running(), force=True)
    assert queues_of_run(spec).on_demand_seconds > 0, "its parent keeps its slot"
    assert queues_of_run(spec.model_copy(update={"run_id": "another"})).on_demand_seconds > 0
    for run in client.read_flow_runs(deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=["single"]))):
        client.set_flow_run_state(run.id, Cancelling(), force=True)
    assert queues_of_run(spec.model_copy(update={"run_id": "another"})) == Queues(slots_ratio=1)


def test_a_pool_that_is_not_known_does_not_hide_the_queue_of_the_other(client, make_spec):
    deployment = deployed(client, pool_with(client, "known", concurrency_limit=1), "known")
    begun(client, deployment)
    for _ in range(2):
        client.create_flow_run_from_deployment(deployment)
    pools = {"spot": "segment/no-such-deployment", "on_demand": "segment/known"}
    found = queues_of_run(make_spec(pools=pools, deadline=datetime.now(UTC) + timedelta(days=1)))
    assert found.on_demand_seconds > 0
    assert found.spot_free_at is None


def test_a_deployment_that_does_not_exist_has_no_wait(client):
    with pytest.raises(ObjectNotFound):
        wait_of(client, "no-such-deployment")


def started(*runs):
    """Flow runs that were due and started at these seconds."""
    return [
        FlowRun.model_construct(
            expected_start_time=NOW + timedelta(seconds=due), start_time=NOW + timedelta(seconds=start)
        )
        for due, start in runs
    ]


@pytest.mark.parametrize(
    ("slots", "runs", "seconds"),
    [
        (1, [(0, 0), (0, 60), (0, 130)], 65),
        (2, [(0, 0), (0, 0), (0, 60), (0, 60), (0, 120)], 30),
        (1, [(0, 130), (0, 0), (0, 60)], 65),
        (1, [(0, 0), (0, 60)], 0),
        (1, [(0, 0), (500, 500), (900, 900)], 0),
        (1, [(0, 0), (0, 1000), (0, 1010), (0, 1020), (0, 1030), (0, 1040)], 10),
    ],
    ids=["one slot", "two slots", "any order", "too few", "nobody waited", "the newest count"],
)
def test_how_often_a_slot_becomes_free_is_measured_by_those_that_waited(slots, runs, seconds):
    assert seconds_between_starts(started(*runs), slots=slots) == seconds


def test_a_slot_is_never_held_for_less_than_nothing():
    def run(begun_at, seconds=0.0):
        facts = {"start_time": begun_at, "total_run_time": timedelta(seconds=seconds), "run_count": int(seconds > 0)}
        return FlowRun.model_construct(**facts)

    hour_ago, ahead = NOW - timedelta(hours=1), NOW + timedelta(seconds=100)
    ended = [run(hour_ago, 60.0), run(hour_ago)]  # The second was never started.
    assert held_seconds([run(hour_ago), run(ahead), run(None)], ended, now=NOW) == [HOUR, 0, 60]
