"""The return to spot through a real Prefect: on-demand trains while the standby boots, and no step is lost."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolUpdate
from prefect.client.schemas.objects import StateType

from segue.clock import SystemClock
from segue.controller.standbys.messages import status_of
from segue.controller.steps import open_run
from segue.policy.handover import SPOT_AGAIN
from segue.records import Capacity, SegmentPlan, StopReason, VerdictKind
from segue.runlog.entries import DecisionEntry, HandoverEntry
from segue.runlog.history import read_history
from tests.flows.test_runs import ended_segments, final_state, live_attempt, segment_runs, start, until

pytestmark = pytest.mark.prefect

STEPS = 2000
POLICY = {"name": "eager_progress", "step_seconds": 0.05, "changeover_seconds": 1, "detection_seconds": 1}


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def spot(client):
    """Makes the spot pool available again, and leaves it available for the next test."""
    client.update_work_pool("spot", WorkPoolUpdate(is_paused=True))
    come_back = lambda: client.update_work_pool("spot", WorkPoolUpdate(is_paused=False))  # noqa: E731
    yield come_back
    come_back()


def on_demand_first(spec):
    """A run whose first decision is on-demand, as when spot is not available."""
    log = open_run(spec, clock=SystemClock())
    plan = SegmentPlan(segment=0, attempt=1, capacity=Capacity.ON_DEMAND, deployment=spec.pools.on_demand)
    log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), plan=plan, action="run", reason="spot is not available"))


def state_of(history):
    """Digests of all components except the setup, which holds the config."""
    digests = history.newest.manifest.components
    return {name: digest for name, digest in digests.items() if not name.startswith("setup")}


def handover_of(runlog):
    return next((slot.entry for slot in runlog.reload().slots if isinstance(slot.entry, HandoverEntry)), None)


@pytest.mark.matrix
@pytest.mark.soak
def test_on_demand_trains_while_the_standby_boots_and_hands_the_run_over(
    client, spot, make_spec, fork_server, tmp_path
):
    brake = tmp_path / "brake"
    common = {"recipe": "tests.recipes.paced:build", "config": {"brake": str(brake)}, "steps": STEPS}
    undisturbed = make_spec(run_id="never-moved", checkpoints={"every_steps": 1000}, **common)
    reference = open_run(undisturbed, clock=SystemClock())
    fork_server.run_to_the_end(reference, undisturbed)

    brake.touch()  # On-demand still trains, however long the standby takes to boot.
    deadline = datetime.now(UTC) + timedelta(seconds=600)
    spec = make_spec(run_id="moved", deadline=deadline, policy=POLICY, checkpoints={"every_steps": 20}, **common)
    on_demand_first(spec)
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=20), what="on-demand")
    until(lambda: "moved-standby0" in {run.name for run in segment_runs(client, "moved")}, what="the standby")
    assert status_of(runlog.store, "moved", "spare0") is None  # It waits on the pool and costs nothing.
    spot()
    handover = until(lambda: handover_of(runlog), what="the hand-over")
    brake.unlink()
    state = final_state(client, parent)

    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    first, second = history.last_reports()
    assert [(r.capacity, r.stop_reason) for r in (first, second)] == [
        (Capacity.ON_DEMAND, StopReason.BOUND),
        (Capacity.SPOT, StopReason.FINISHED),
    ]
    assert first.lost_steps == second.lost_steps == 0
    assert 0 < first.to_step == first.checkpoint.step == second.from_step < second.to_step == STEPS
    assert history.attempts[1].verdict.kind is VerdictKind.EXACT
    assert state_of(history) == state_of(read_history(reference))
    assert [entry.reason for entry in history.decisions][1:] == [SPOT_AGAIN, f"step {STEPS} is committed"]
    assert history.decisions[-1].written_at < deadline
    runs = {run.name: run for run in ended_segments(client, "moved")}
    assert {name: run.state.name for name, run in runs.items()} == {
        "moved-seg0-a1-on-demand": "Completed",
        "moved-standby0": "Completed",
    }
    assert history.attempts[1].claim.flow_run_id == str(runs["moved-standby0"].id)
    # The standby had booted before on-demand was recalled, and held its machine for the boot.
    assert (handover.segment, handover.attempt, handover.standby) == (0, 1, "spare0")
    assert handover.numbers["held_seconds"] > 1


@pytest.mark.matrix
def test_a_run_without_a_deadline_uses_on_demand_after_its_longest_wait_and_returns_to_spot(
    client, spot, make_spec, tmp_path
):
    brake = tmp_path / "brake"
    brake.touch()  # On-demand still trains, however long the standby takes to boot.
    spec = make_spec(
        run_id="waited",
        recipe="tests.recipes.paced:build",
        steps=STEPS,
        config={"brake": str(brake)},
        policy=POLICY | {"name": "plan", "max_wait_seconds": 4},
        checkpoints={"every_steps": 20},
    )
    runlog, parent = start(client, spec)
    until(lambda: live_attempt(runlog, past_step=20), what="on-demand")
    until(lambda: "waited-standby0" in {run.name for run in segment_runs(client, "waited")}, what="the standby")
    spot()
    handover = until(lambda: handover_of(runlog), what="the hand-over")
    brake.unlink()
    state = final_state(client, parent)

    assert state.type is StateType.COMPLETED, state.message
    history = read_history(runlog.reload())
    assert [(report.capacity, report.stop_reason) for report in history.last_reports()] == [
        (Capacity.SPOT, StopReason.NO_CAPACITY),
        (Capacity.ON_DEMAND, StopReason.BOUND),
        (Capacity.SPOT, StopReason.FINISHED),
    ]
    asked, waited = history.decisions[:2]
    assert asked.plan.start_within_seconds == 4 + 1  # The wait, and the boot.
    assert "policy.max_wait_seconds" in waited.reason
    assert history.decisions[2].reason == SPOT_AGAIN
    assert history.attempts[-1].verdict.kind is VerdictKind.EXACT
    assert handover.standby == "spare0"
