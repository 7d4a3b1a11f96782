"""The flow runs that recovery and looks create for slots, on a real server. No worker takes them: states are set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterDeploymentId
from prefect.states import Cancelled, Crashed, Failed, Paused, Running, Scheduled, to_state_create

from segue.clock import SystemClock
from segue.errors import OrchestratorError
from segue.flows.retrain import retrain
from segue.prefect.api import create_flow_run
from segue.prefect.recovery.slot_parents import recover_slot
from segue.records import ParentRecord
from segue.retraining.model_record import SlotStart, Trigger
from segue.retraining.slots import heartbeat_of, run_of, stamp_of, store_of
from segue.retraining.spec import Window
from segue.runlog.parents import read_parent, remove_parent, write_parent
from segue.tasks.retraining import start_triggered
from tests.retraining.monthly import Monthly, slot_of_month
from tests.retraining.test_models import candidate
from tests.retraining.test_promotion import PASSED, begin

pytestmark = pytest.mark.prefect

A, B, C = (slot_of_month(month) for month in (4, 5, 6))


class Starts:
    """A retraining with a deployment on a pool without a worker."""

    def __init__(self, client, monthly: Monthly) -> None:
        self.client, self.spec, self.log = client, monthly.spec, monthly.log
        self.log.store.check()
        client.create_work_pool(WorkPoolCreate(name=self.spec.name, type="process"))
        flow = client.create_flow(retrain)
        self.deployment = client.create_deployment(flow_id=flow, name=self.spec.name, work_pool_name=self.spec.name)

    def flow_run(self, slot: datetime, state):
        """The flow run that the schedule gave a slot, in a state."""
        name, due = f"{self.spec.name}-{stamp_of(slot)}", to_state_create(Scheduled(scheduled_time=slot))
        made = create_flow_run(self.client, self.deployment, parameters={}, name=name, state=due)
        return self.set(made, state)

    def set(self, run_id, state):
        self.client.set_flow_run_state(run_id, state, force=True)
        return self.client.read_flow_run(run_id)

    def flow_runs(self):
        wanted = FlowRunFilter(deployment_id=FlowRunFilterDeploymentId(any_=[self.deployment]))
        return sorted(self.client.read_flow_runs(flow_run_filter=wanted), key=lambda run: run.created)

    def others(self, run):
        return [each for each in self.flow_runs() if each.id != run.id]

    def left(self, slot: datetime, run, *, adopted_by: datetime | None = None) -> ParentRecord:
        """The heartbeat of a slot whose process is gone."""
        name, adopter = self.spec.name, heartbeat_of(self.spec.name, adopted_by) if adopted_by else None
        facts = {"flow_run_id": str(run.id), "adopted_by": adopter, "has_left": True, "timeout_seconds": 10}
        left = ParentRecord(run_id=heartbeat_of(name, slot), parent_id=uuid4().hex, beat_at=slot, **facts)
        write_parent(self.log.store, left)
        return left

    def recover(self, dead: ParentRecord) -> str:
        return recover_slot(self.client, store_of(self.spec), dead)

    def begin(self, slot: datetime) -> None:
        run = run_of(self.spec, slot, None, now=SystemClock().now())
        self.log.open_slot(SlotStart(slot=slot, window=Window(files=()), gate=PASSED, run=run))

    def wait(self, slot: datetime) -> None:
        """A candidate of a slot waits for a person."""
        until = SystemClock().now() + timedelta(hours=1)
        made = candidate(1, compared_with=None, promoted=False)
        begin(self.log, made.model_copy(update={"slot": slot, "decide_by": until}))

    def look(self, *, after: timedelta = timedelta()) -> str:
        [line] = start_triggered.fn(self.spec, now=SystemClock().now() + after)
        return line


@pytest.fixture
def client(stack):
    with get_client(sync_client=True) as client:
        yield client


@pytest.fixture
def starts(client, tmp_path) -> Starts:
    return Starts(client, Monthly(tmp_path / "points", name=f"starts{uuid4().hex[:8]}", promotion="ask", missed="run"))


@pytest.mark.parametrize("state", [Running(), Paused(), Crashed()])
def test_a_slot_that_waits_after_a_later_one_ran_it_is_asked_about_by_a_flow_run_of_its_own(starts, state):
    starts.wait(A)
    later = starts.flow_run(C, state)
    dead = starts.left(A, later, adopted_by=C)
    starts.left(C, later)
    assert starts.recover(dead) == "a separate flow run continues it"
    [own] = starts.others(later)
    assert (own.name, own.parameters) == (f"{starts.spec.name}-20130401t0600", {"slot": A.isoformat()})
    assert starts.recover(dead) == "its flow run will be started"
    starts.set(own.id, Paused())
    assert "waits for a decision" in starts.recover(dead)
    # A person cancels the one that asks: its slot ends, and no other.
    starts.set(own.id, Cancelled())
    assert starts.recover(dead) == "its flow run was cancelled"
    assert starts.log.read().slots[A].end.outcome == "cancelled"
    assert starts.client.read_flow_run(later.id).state.id == later.state.id
    assert len(starts.others(later)) == 1


def test_a_slot_that_was_decided_before_it_had_a_flow_run_gets_one_that_tells_how_it_ended(starts):
    starts.wait(A)
    starts.log.choose(1, why="by hand")
    later = starts.flow_run(C, Running())
    dead = starts.left(A, later, adopted_by=C)
    assert starts.recover(dead) == "a separate flow run continues it"
    [own] = starts.others(later)
    assert own.parameters == {"slot": A.isoformat()}
    starts.set(own.id, Failed())
    assert starts.recover(dead) == "it had ended"
    assert read_parent(starts.log.store, dead.run_id) is None


def test_a_flow_run_that_died_in_an_earlier_slot_begins_again_with_what_it_missed(starts):
    starts.begin(A)
    later = starts.flow_run(C, Running())
    inside, own = starts.left(A, later, adopted_by=C), starts.left(C, later)
    assert starts.recover(inside) == f"the flow run of {own.run_id} continues it"
    assert starts.others(later) == []
    assert starts.recover(own) == "its flow run was started again"
    [again] = starts.others(later)
    # As the schedule made it: told its slot, it would not look for B, which has no record.
    assert (again.expected_start_time, again.parameters) == (C, {})
    starts.set(again.id, Crashed())
    assert starts.recover(own) == "its flow run was started again"
    assert [run.expected_start_time for run in starts.others(later)] == [C, C]
    remove_parent(starts.log.store, own)  # The later slot ends without this one.
    assert starts.recover(inside) == "its flow run was started again"
    assert starts.flow_runs()[-1].parameters == {"slot": A.isoformat()}


def test_recovery_leaves_a_flow_run_suspended_that_somebody_has_suspended(starts):
    starts.begin(C)
    run = starts.flow_run(C, Paused())
    assert "suspended" in starts.recover(starts.left(C, run))
    assert [each.state.id for each in starts.flow_runs()] == [run.state.id]


@pytest.fixture
def trigger(starts) -> Trigger:
    return starts.log.trigger("arrival", "key", why="new data", now=SystemClock().now())


@pytest.mark.parametrize("state", [Crashed(message="no image"), Failed(message="a wrong setting")])
def test_a_slot_whose_flow_run_ended_before_it_began_is_started_again_and_the_look_says_so(starts, trigger, state):
    name = f"{starts.spec.name}-{stamp_of(trigger.slot)}"
    assert starts.look() == f"started {name}"
    assert starts.look() == f"{name}: its flow run is scheduled"
    for number in range(1, 5):
        starts.set(starts.flow_runs()[-1].id, state)
        said = starts.look()
        assert state.message in said
        assert "next start in" in said
        assert len(starts.flow_runs()) == number
        assert starts.look(after=timedelta(hours=2)).startswith(f"started {name} again: before its slot began")
        assert len(starts.flow_runs()) == number + 1
    starts.set(starts.flow_runs()[-1].id, state)
    with pytest.raises(OrchestratorError, match=rf"{name} has failed: .*{state.message}.*the last of 5 starts"):
        starts.look(after=timedelta(hours=2))
    assert starts.log.read().slots[trigger.slot].end.outcome == "failed"
    assert start_triggered.fn(starts.spec, now=datetime.now(UTC)) == ()
    assert {run.parameters["slot"] for run in starts.flow_runs()} == {trigger.slot.isoformat()}


def test_a_slot_whose_flow_run_a_person_cancelled_is_not_started_again(starts, trigger):
    starts.look()
    starts.set(starts.flow_runs()[-1].id, Cancelled())
    assert "not started again: its flow run was cancelled" in starts.look(after=timedelta(hours=2))
    assert starts.log.read().slots[trigger.slot].end.outcome == "cancelled"
    assert len(starts.flow_runs()) == 1


def test_a_slot_with_a_heartbeat_is_left_to_recovery(starts, trigger):
    starts.look()
    run = starts.set(starts.flow_runs()[-1].id, Crashed())
    dead = starts.left(trigger.slot, run)
    assert "`recover` restarts its flow run" in starts.look(after=timedelta(hours=2))
    assert len(starts.flow_runs()) == 1
    assert read_parent(starts.log.store, dead.run_id) == dead
