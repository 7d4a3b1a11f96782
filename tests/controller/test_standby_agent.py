"""A standby on its machine: what it says, what it heeds, and that it leaves when nobody needs it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from segue.controller.standby_agent import Left, StandbyAgent, Taken
from segue.controller.standby_messages import StandbyCommand, held_by_standbys, put_command, status_of
from segue.controller.steps import decide_next, declare_lost
from segue.records import Capacity, StopReason
from segue.runlog.entries import DecisionEntry, HandoverEntry, OpenEntry
from segue.runlog.history import read_history
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from tests.controller.test_steps import START, Run
from tests.controller.test_wait import ScriptedClock


class ScriptedTrainer:
    """A trainer that boots when the test says so."""

    def __init__(self) -> None:
        self.code: int | None = None
        self.booted = False
        self.given: list[str] = []

    def poll(self) -> int | None:
        return self.code

    def is_booted(self) -> bool:
        return self.booted

    def take(self, assignment) -> None:
        self.given.append(f"{assignment.plan.segment}.{assignment.plan.attempt} by {assignment.flow_run_id}")

    def kill(self) -> None:
        self.given.append("killed")

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        return self.code


class Waiting(Run):
    """A run on on-demand and a standby beside it, on scripted time."""

    def __init__(self, spec) -> None:
        self.clock: ScriptedClock = ScriptedClock()
        super().__init__(spec, self.clock)
        self.trainers: list[ScriptedTrainer] = []
        self.called_off: str | None = None
        self.counter = 0
        self.is_store_away: Callable[[], bool] = lambda: False
        plan = self.decide().model_copy(update={"capacity": Capacity.ON_DEMAND})
        facts = {"plan": plan, "action": "run", "reason": "the test says so"}
        self.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))
        self.plan, self.at_work = plan, self.claim(plan)

    def serve(self) -> Taken | Left:
        log = self.another_log()
        log.store = FaultyStore(open_store(self.spec.store), fails=lambda operation, key: self.is_store_away())
        servant = StandbyAgent(log, self.spec, "spare0", boot=self._boot, clock=self.clock, flow_run_id="flow")
        return servant.serve(lambda: self.called_off)

    def _boot(self) -> ScriptedTrainer:
        self.trainers.append(ScriptedTrainer())
        return self.trainers[-1]

    def order(self, order: str, why: str = "the test says so") -> None:
        self.counter += 1
        made = StandbyCommand(
            standby="spare0",
            counter=self.counter,
            action=order,
            why=why,
            deployment="segment/spot",
            segment=0,
            attempt=1,
        )
        put_command(self.log.store, self.spec.run_id, made)

    def order_at(self, seconds: float, order: str, why: str = "the test says so") -> None:
        self.clock.at(seconds, lambda: self.order(order, why))

    def call_off_at(self, seconds: float) -> None:
        self.clock.at(seconds, lambda: setattr(self, "called_off", "the standby was taken back"))

    def hand_over(self, *, standby: str = "spare0", reason: StopReason | None = StopReason.BOUND) -> None:
        facts = {"standby": standby, "deployment": "segment/spot", "reason": "ready"}
        facts |= {"segment": self.plan.segment, "attempt": self.plan.attempt}
        self.log.append(lambda stamp: HandoverEntry(**stamp(epoch=0), **facts))
        if reason is not None:
            self.report(self.plan, self.at_work, reason)

    def phase(self) -> str | None:
        word = status_of(self.log.store, self.spec.run_id, "spare0")
        return word.phase if word is not None else None

    def note(self) -> str | None:
        return status_of(self.log.store, self.spec.run_id, "spare0").note


@pytest.fixture
def waiting(make_spec) -> Waiting:
    policy = {"name": "uniform_progress", "step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15}
    deadline = START + timedelta(seconds=20_000)
    return Waiting(make_spec(steps=100, deadline=deadline, policy=policy, liveness={"heartbeat_seconds": 2}))


def test_a_standby_says_that_it_is_here_boots_and_takes_the_plan_that_names_it(waiting):
    phases: dict[float, str | None] = {}
    for seconds in (5, 15, 25):
        waiting.clock.at(seconds, lambda at=seconds: phases.update({at: waiting.phase()}))
    waiting.order("wait")
    waiting.order_at(10, "boot")
    waiting.clock.at(20, lambda: setattr(waiting.trainers[0], "booted", True))
    waiting.clock.at(30, waiting.hand_over)
    waiting.clock.at(32, waiting.decide)
    taken = waiting.serve()
    assert phases == {5: "here", 15: "booting", 25: "ready"}
    assert isinstance(taken, Taken)
    assert (taken.plan.standby, taken.plan.capacity, waiting.clock.monotonic()) == ("spare0", Capacity.SPOT, 32)
    assert waiting.trainers[0].given == [f"{taken.plan.segment}.{taken.plan.attempt} by flow"]


def test_its_heart_beats_while_it_waits(waiting):
    waiting.order("wait")
    seen: list[int] = []
    for seconds in (10, 20, 30):
        waiting.clock.at(seconds, lambda: seen.append(status_of(waiting.log.store, "tiny", "spare0").counter))
    waiting.order_at(40, "leave")
    waiting.serve()
    assert seen[0] + 4 <= seen[1] <= seen[2] - 4


def test_how_long_it_held_a_machine_is_known_afterwards(waiting):
    assert held_by_standbys(waiting.log.store, "tiny") == {}
    waiting.order("wait")
    waiting.order_at(40, "leave")
    waiting.serve()
    assert held_by_standbys(waiting.log.store, "tiny") == {"segment/spot": pytest.approx(40, abs=0.5)}


def test_a_standby_that_is_not_needed_leaves_without_having_booted(waiting):
    waiting.order("wait")
    waiting.order_at(10, "leave", "not needed: on-demand goes on")
    assert waiting.serve() == Left("not needed: on-demand goes on")
    assert (waiting.trainers, waiting.phase(), waiting.note()) == ([], "gone", "not needed: on-demand goes on")


def test_a_standby_that_is_released_while_it_boots_leaves_no_trainer(waiting):
    waiting.order("boot")
    waiting.order_at(10, "leave")
    waiting.serve()
    assert waiting.trainers[0].given == ["killed"]


def test_a_standby_that_is_taken_back_says_so_and_goes(waiting):
    waiting.order("boot")
    waiting.call_off_at(10)
    assert waiting.serve() == Left("the standby was taken back", how="taken back")
    assert (waiting.phase(), waiting.trainers[0].given) == ("gone", ["killed"])


def test_a_trainer_that_ends_while_it_boots_ends_the_standby(waiting):
    waiting.order("boot")
    waiting.clock.at(10, lambda: setattr(waiting.trainers[0], "code", 2))
    assert waiting.serve() == Left("its trainer ended while it booted, with code 2", how="broken")


def test_a_standby_whose_parent_says_nothing_any_more_leaves_by_itself(waiting):
    waiting.order("wait")
    waiting.order_at(100, "wait")
    assert waiting.serve() == Left("no command from the parent for 300 s")
    assert 400 <= waiting.clock.monotonic() < 410


@pytest.mark.parametrize("order", ["wait", "boot"])
def test_a_run_that_is_over_needs_no_standby(waiting, order):
    waiting.order(order)

    def finish() -> None:
        waiting.commit(waiting.at_work, 100)
        waiting.report(waiting.plan, waiting.at_work, StopReason.FINISHED)
        assert read_history(waiting.log).handover is None
        facts = {"plan": None, "action": "finished", "reason": "step 100 is committed"}
        waiting.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))

    waiting.clock.at(10, finish)
    assert waiting.serve() == Left("not needed: the run is over")


def test_a_run_that_was_to_be_handed_over_and_went_on_otherwise_needs_no_standby(waiting):
    waiting.order("boot")
    waiting.clock.at(10, lambda: waiting.hand_over(reason=StopReason.FAILED))
    waiting.clock.at(15, waiting.decide)
    assert waiting.serve() == Left("not needed: the run went on without it")


def test_a_standby_that_starts_after_its_attempt_was_given_up_leaves(waiting):
    waiting.order("boot")
    waiting.hand_over()
    declare_lost(waiting.log, waiting.decide(), why="no capacity", got_capacity=False)
    assert waiting.serve() == Left("not needed: the run went on without it")


def test_a_standby_that_comes_after_the_decision_boots_for_it_without_an_order(waiting):
    waiting.hand_over()
    waiting.decide()
    waiting.clock.at(10, lambda: setattr(waiting.trainers[0], "booted", True))
    assert isinstance(waiting.serve(), Taken)


@pytest.mark.parametrize("order", ["wait", "boot"])
def test_a_standby_that_was_sent_with_an_older_spec_leaves_and_does_not_take_the_plan(waiting, order):
    waiting.order(order)
    changed = waiting.spec.model_copy(update={"config": {"lr": 0.5}})

    def change() -> None:
        waiting.log.append(lambda stamp: OpenEntry(**stamp(epoch=0), spec=changed))
        waiting.hand_over()
        assert decide_next(waiting.log, changed, clock=waiting.clock).plan.standby == "spare0"

    waiting.clock.at(10, lambda: [setattr(trainer, "booted", True) for trainer in waiting.trainers])
    waiting.clock.at(20, change)
    assert waiting.serve() == Left("the run spec has changed")
    assert [trainer.given for trainer in waiting.trainers] == ([["killed"]] if order == "boot" else [])


def test_a_standby_that_starts_when_the_spec_has_changed_boots_nothing(waiting):
    changed = waiting.spec.model_copy(update={"config": {"lr": 0.5}})
    waiting.log.append(lambda stamp: OpenEntry(**stamp(epoch=0), spec=changed))
    waiting.order("boot")
    assert waiting.serve() == Left("the run spec has changed")
    assert (waiting.trainers, waiting.note()) == ([], "the run spec has changed")


def test_another_standbys_plan_is_not_taken(waiting):
    waiting.order("boot")
    waiting.clock.at(5, lambda: setattr(waiting.trainers[0], "booted", True))
    waiting.clock.at(10, lambda: waiting.hand_over(standby="spare1"))
    waiting.clock.at(12, waiting.decide)
    waiting.order_at(20, "leave")
    assert isinstance(waiting.serve(), Left)


def test_a_store_that_is_away_is_waited_out(waiting):
    waiting.order("wait")
    waiting.is_store_away = lambda: 10 <= waiting.clock.monotonic() < 1000
    waiting.order_at(1010, "leave", "not needed")
    assert waiting.serve() == Left("not needed")


def test_a_notice_is_heeded_while_the_store_is_away(waiting):
    waiting.is_store_away = lambda: True
    waiting.call_off_at(10)
    assert waiting.serve() == Left("the standby was taken back", how="taken back")
    assert waiting.clock.monotonic() == 10
