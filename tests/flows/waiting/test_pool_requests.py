"""One attempt on three spot pools of a real Prefect: one answers late, one never, and one comes after all."""

from __future__ import annotations

import sys
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import DeploymentUpdate
from prefect.client.schemas.objects import StateType
from prefect.exceptions import ObjectAlreadyExists

from segue.clock import SystemClock
from segue.controller.steps import open_run, request_stop
from segue.policy.availability import intervals
from segue.policy.handover import CHEAPER_SPOT
from segue.policy.pool_outlook import handover_seconds
from segue.policy.spending import charges_of
from segue.prefect.state_words import in_words
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from tests.flows.test_handover import state_of
from tests.flows.test_runs import LONG, ended_segments, final_state, live_attempt, segment_runs, start, until

pytestmark = [pytest.mark.prefect, pytest.mark.matrix]

ENGINE = f"{sys.executable} -m segue.flows.prefect_engine"
NEVER, LATE, AFTER = "segment/spot-never", "segment/spot-late", "segment/spot-after"


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


class Queues:
    """Deployments of the flow `segment`, each on a queue of its own. A paused queue has no capacity."""

    def __init__(self, client) -> None:
        self._client = client

    def make(self, deployment: str, *, has_capacity: bool, command: str | None = None) -> None:
        name = deployment.partition("/")[2]
        spot = self._client.read_deployment_by_name("segment/spot")
        with suppress(ObjectAlreadyExists):
            self._client.create_work_queue(name=name, work_pool_name="spot")
        facts = {"entrypoint": spot.entrypoint, "work_pool_name": "spot", "work_queue_name": name}
        made = self._client.create_deployment(flow_id=spot.flow_id, name=name, **facts)
        variables = {"command": command} if command is not None else {}
        self._client.update_deployment(made, DeploymentUpdate(job_variables=spot.job_variables | variables))
        self.set(deployment, has_capacity=has_capacity)

    def set(self, deployment: str, *, has_capacity: bool) -> None:
        queue = self._client.read_work_queue_by_name(deployment.partition("/")[2], work_pool_name="spot")
        self._client.update_work_queue(queue.id, is_paused=not has_capacity)


@pytest.fixture
def queues(client):
    return Queues(client)


def spec_of(make_spec, run_id, *deployments, **fields):
    pools = {"spot": [{"deployment": name, "price": 1.0} for name in deployments], "on_demand_price": 9.0}
    return make_spec(run_id=run_id, pools=pools, **LONG | {"steps": 200} | fields)


def has_been_pending(run, *, seconds: float) -> bool:
    """Whether a flow run has been Pending for this time, by the clock of the server, which is this machine's."""
    return run.state.type is StateType.PENDING and (
        datetime.now(UTC) - run.state.timestamp > timedelta(seconds=seconds)
    )


def pool_of(run) -> str:
    return "segment/" + run.name.partition("-a1-")[2]


def test_the_first_of_three_pools_that_gives_a_machine_trains_and_the_others_leave_no_trace(
    client, queues, make_spec, tmp_path
):
    ended = tmp_path / "ended"
    # The worker can end what waits there, and not the engine, which comes when another pool has the attempt.
    late_engine = tmp_path / "late.sh"
    late_engine.write_text(
        f"(trap '' TERM; sleep 45; {ENGINE}; touch {ended}) </dev/null >/dev/null 2>&1 &\nexec sleep 900\n"
    )
    queues.make(NEVER, has_capacity=False)
    queues.make(LATE, has_capacity=False)
    queues.make(AFTER, has_capacity=True, command=f"setsid sh {late_engine}")
    spec = spec_of(make_spec, "three-pools", NEVER, LATE, AFTER)
    runlog, parent = start(client, spec)
    until(
        lambda: (
            # For so long that the parent has seen it too.
            any(has_been_pending(run, seconds=15) for run in segment_runs(client, spec.run_id))
            and len(segment_runs(client, spec.run_id)) == 3
        ),
        what="three requests, one with a machine",
    )
    queues.set(LATE, has_capacity=True)
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    until(ended.exists, what="the late engine")
    history = read_history(runlog.reload())
    assert [report.stop_reason for report in history.last_reports()] == [StopReason.FINISHED]
    assert [attempt.claim.deployment for attempt in history.attempts] == [LATE]
    assert history.decisions[0].plan.deployment == LATE
    runs = {pool_of(run): run for run in ended_segments(client, spec.run_id)}
    assert {name: in_words(run.state) for name, run in runs.items()} == {
        NEVER: "Withdrawn",
        LATE: "Completed",
        AFTER: "Fenced",  # Its engine came after all, and changed nothing.
    }
    assert f"the start on {LATE} of this attempt came first" in runs[NEVER].state.message
    assert {(each.deployment, each.is_up, each.has_ended) for each in intervals(history)} == {
        (NEVER, False, False),
        (LATE, False, True),
        (LATE, True, False),
        (AFTER, False, True),
        (AFTER, True, False),
    }
    withdrawn = next(e for e in history.starts if (e.deployment, e.outcome) == (AFTER, "withdrawn"))
    paid = charges_of(spec, history)
    assert [charge.seconds for charge in paid] == [history.last_reports()[0].seconds, withdrawn.seconds]
    assert withdrawn.seconds > 0


def test_where_no_pool_gives_a_machine_each_was_asked_and_each_request_is_withdrawn(client, queues, make_spec):
    for name in (NEVER, LATE):
        queues.make(name, has_capacity=False)
    liveness = {"heartbeat_seconds": 0.5, "start_seconds": 3}
    spec = spec_of(make_spec, "no-pool", NEVER, LATE, policy={"changeover_seconds": 1}, liveness=liveness)
    runlog, parent = start(client, spec)
    until(lambda: read_history(runlog).last_reports(), what="the end of the first wait")
    request_stop(runlog, reason="the test has seen enough")
    assert final_state(client, parent).type is StateType.CANCELLED
    runs = until(
        lambda: (
            all(run.state.is_final() for run in segment_runs(client, spec.run_id))
            and [run for run in segment_runs(client, spec.run_id) if "-a1-" in run.name]
        ),
        what="the end of all requests",
    )
    assert {pool_of(run): run.state.type for run in runs} == {NEVER: StateType.CANCELLED, LATE: StateType.CANCELLED}
    first = read_history(runlog.reload()).last_reports()[0]
    assert (first.stop_reason, first.got_capacity) == (StopReason.NO_CAPACITY, False)


@pytest.mark.parametrize("deadline_hours", [None, 3], ids=["without a deadline", "with a deadline"])
def test_a_run_on_a_dear_pool_moves_to_the_cheaper_one_when_that_gives_a_machine(
    client, queues, make_spec, fork_server, tmp_path, deadline_hours
):
    brake = tmp_path / "brake"
    # Two minutes for the boot of a standby, also on a busy machine.
    config = {"brake": str(brake), "brake_seconds": 0.4}
    common = {"recipe": "tests.recipes.paced:build", "config": config, "steps": 300}
    run_id = f"to-cheap-{deadline_hours or 0}"
    undisturbed = make_spec(run_id=f"{run_id}-undisturbed", checkpoints={"every_steps": 1000}, **common)
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)

    brake.touch()  # The dear machine still trains, however long the standby takes to boot.
    queues.make(LATE, has_capacity=False)
    pools = {
        "spot": [{"deployment": LATE, "price": 0.1}, {"deployment": "segment/spot", "price": 5.0}],
        "on_demand_price": 9.0,
    }
    policy = {"step_seconds": 30, "changeover_seconds": 1}
    liveness = {"heartbeat_seconds": 0.5, "start_seconds": 10}  # The dear pool is asked after five seconds.
    if deadline_hours is not None:
        # PLAN plans the two pools together, and asks the dear one a boot later.
        common["deadline"] = (datetime.now(UTC) + timedelta(hours=deadline_hours)).isoformat()
    spec = make_spec(
        run_id=run_id, liveness=liveness, pools=pools, policy=policy, checkpoints={"every_steps": 20}, **common
    )
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=20), what="the dear machine")
    until(lambda: f"{run_id}-standby0" in {run.name for run in segment_runs(client, spec.run_id)}, what="the standby")
    queues.set(LATE, has_capacity=True)
    until(lambda: read_history(runlog).last_reports(), what="the end of the dear attempt")
    brake.unlink()
    state = final_state(client, parent)
    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    first, second = history.last_reports()
    assert [first.stop_reason, second.stop_reason] == [StopReason.BOUND, StopReason.FINISHED]
    assert [entry.plan.deployment for entry in history.decisions if entry.plan] == ["segment/spot", LATE]
    assert [entry.reason for entry in history.decisions][1] == CHEAPER_SPOT
    assert ("PLAN over 2 pools" in history.decisions[0].reason) == (deadline_hours is not None)
    assert 0.0 < handover_seconds(history) < 240.0
    assert first.lost_steps == second.lost_steps == 0
    assert first.to_step == second.from_step > 20
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT
    assert state_of(history) == state_of(read_history(reference))
    names = {run.name: in_words(run.state) for run in ended_segments(client, spec.run_id)}
    assert names == {
        f"{run_id}-seg0-a1-spot": "Completed",
        f"{run_id}-seg0-a1-spot-late": "Withdrawn",
        f"{run_id}-standby0": "Completed",
    }
