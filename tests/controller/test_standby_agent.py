"""A standby on its machine: its status, the commands that it follows, and the reasons for which it leaves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest

from segue.controller.attempt_ends import declare_lost
from segue.controller.standbys.agent import Left, StandbyAgent, Taken
from segue.controller.standbys.messages import StandbyCommand, held_by_standbys, put_command, status_of
from segue.controller.steps import decide_next
from segue.records import Capacity, StopReason
from segue.runlog.entries import DecisionEntry, HandoverEntry, OpenEntry
from segue.runlog.history import read_history
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from tests.controller.test_steps import START, Run
from tests.controller.test_wait import ScriptedClock


class ScriptedTrainer:
    """A trainer that boots when the test sets it."""

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
    """A run on on-demand with a standby, on scripted time."""

    def __init__(self, spec) -> None:
        self.clock: ScriptedClock = ScriptedClock()
        super().__init__(spec, self.clock)
        self.trainers: list[ScriptedTrainer] = []
        self.called_off: str | None = None
        self.counter = 0
        self.is_store_down: Callable[[], bool] = lambda: False
        plan = self.decide().model_copy(update={"capacity": Capacity.ON_DEMAND})
        facts = {"plan": plan, "action": "run", "reason": "chosen by the test"}
        self.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))
        self.plan, self.training = plan, self.claim(plan)

    def serve(self) -> Taken | Left:
        log = self.another_log()
        log.store = FaultyStore(open_store(self.spec.store), fails=lambda operation, key: self.is_store_down())
        agent = StandbyAgent(log, self.spec, "spare0", boot=self._boot, clock=self.clock, flow_run_id="flow")
        return agent.serve(lambda: self.called_off)

    def _boot(self) -> ScriptedTrainer:
        self.trainers.append(ScriptedTrainer())
        return self.trainers[-1]

    def command(self, command: str, why: str = "chosen by the test") -> None:
        self.counter += 1
        made = StandbyCommand(
            standby="spare0",
            counter=self.counter,
            action=command,
            why=why,
            deployment="segment/spot",
            segment=0,
            attempt=1,
        )
        put_command(self.log.store, self.spec.run_id, made)

    def command_at(self, seconds: float, command: str, why: str = "chosen by the test") -> None:
        self.clock.at(seconds, lambda: self.command(command, why))

    def call_off_at(self, seconds: float) -> None:
        self.clock.at(seconds, lambda: setattr(self, "called_off", "the standby was taken back"))

    def hand_over(self, *, standby: str = "spare0", reason: StopReason | None = StopReason.BOUND) -> None:
        facts = {"standby": standby, "deployment": "segment/spot", "reason": "ready"}
        facts |= {"segment": self.plan.segment, "attempt": self.plan.attempt}
        self.log.append(lambda stamp: HandoverEntry(**stamp(epoch=0), **facts))
        if reason is not None:
            self.report(self.plan, self.training, reason)

    def phase(self) -> str | None:
        status = status_of(self.log.store, self.spec.run_id, "spare0")
        return status.phase if status is not None else None

    def note(self) -> str | None:
        return status_of(self.log.store, self.spec.run_id, "spare0").note


@pytest.fixture
def waiting(make_spec) -> Waiting:
    policy = {"name": "eager_progress", "step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15}
    deadline = START + timedelta(seconds=20_000)
    return Waiting(make_spec(steps=100, deadline=deadline, policy=policy, liveness={"heartbeat_seconds": 2}))


def test_a_standby_reports_its_machine_boots_and_takes_the_plan_that_names_it(waiting):
    phases: dict[float, str | None] = {}
    for seconds in (5, 15, 25):
        waiting.clock.at(seconds, lambda at=seconds: phases.update({at: waiting.phase()}))
    waiting.command("wait")
    waiting.command_at(10, "boot")
    waiting.clock.at(20, lambda: setattr(waiting.trainers[0], "booted", True))
    waiting.clock.at(30, waiting.hand_over)
    waiting.clock.at(32, waiting.decide)
    taken = waiting.serve()
    assert phases == {5: "here", 15: "booting", 25: "ready"}
    assert isinstance(taken, Taken)
    assert (taken.plan.standby, taken.plan.capacity, waiting.clock.monotonic()) == ("spare0", Capacity.SPOT, 32)
    assert waiting.trainers[0].given == [f"{taken.plan.segment}.{taken.plan.attempt} by flow"]


def test_a_waiting_standby_writes_heartbeats(waiting):
    waiting.command("wait")
    seen: list[int] = []
    for seconds in (10, 20, 30):
        waiting.clock.at(seconds, lambda: seen.append(status_of(waiting.log.store, "tiny", "spare0").counter))
    waiting.command_at(40, "leave")
    waiting.serve()
    assert seen[0] + 4 <= seen[1] <= seen[2] - 4


def test_the_seconds_for_which_a_standby_held_a_machine_are_recorded(waiting):
    assert held_by_standbys(waiting.log.store, "tiny") == {}
    waiting.command("wait")
    waiting.command_at(40, "leave")
    waiting.serve()
    assert held_by_standbys(waiting.log.store, "tiny") == {"segment/spot": pytest.approx(40, abs=0.5)}


def test_a_standby_that_is_not_needed_leaves_without_booting(waiting):
    waiting.command("wait")
    waiting.command_at(10, "leave", "not needed: on-demand continues")
    assert waiting.serve() == Left("not needed: on-demand continues")
    assert (waiting.trainers, waiting.phase(), waiting.note()) == ([], "gone", "not needed: on-demand continues")


def test_a_standby_that_is_released_while_it_boots_leaves_no_trainer(waiting):
    waiting.command("boot")
    waiting.command_at(10, "leave")
    waiting.serve()
    assert waiting.trainers[0].given == ["killed"]


def test_a_standby_that_is_preempted_reports_it_and_leaves(waiting):
    waiting.command("boot")
    waiting.call_off_at(10)
    assert waiting.serve() == Left("the standby was taken back", how="taken back")
    assert (waiting.phase(), waiting.trainers[0].given) == ("gone", ["killed"])


def test_a_trainer_that_ends_while_it_boots_ends_the_standby(waiting):
    waiting.command("boot")
    waiting.clock.at(10, lambda: setattr(waiting.trainers[0], "code", 2))
    assert waiting.serve() == Left("its trainer ended while it booted, with exit code 2", how="broken")


@pytest.mark.matrix
def test_a_standby_without_commands_from_its_parent_leaves_by_itself(waiting):
    waiting.command("wait")
    waiting.command_at(100, "wait")
    assert waiting.serve() == Left("no command from the parent for 300 s")
    assert 400 <= waiting.clock.monotonic() < 410


@pytest.mark.parametrize("command", ["wait", "boot"])
def test_a_standby_leaves_when_the_run_is_over(waiting, command):
    waiting.command(command)

    def finish() -> None:
        waiting.commit(waiting.training, 100)
        waiting.report(waiting.plan, waiting.training, StopReason.FINISHED)
        assert read_history(waiting.log).handover is None
        facts = {"plan": None, "action": "finished", "reason": "step 100 is committed"}
        waiting.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))

    waiting.clock.at(10, finish)
    assert waiting.serve() == Left("not needed: the run is over")


def test_a_standby_leaves_when_the_run_continues_without_it_after_a_hand_over(waiting):
    waiting.command("boot")
    waiting.clock.at(10, lambda: waiting.hand_over(reason=StopReason.FAILED))
    waiting.clock.at(15, waiting.decide)
    assert waiting.serve() == Left("not needed: the run continued without it")


def test_a_standby_that_starts_after_its_attempt_was_declared_lost_leaves(waiting):
    waiting.command("boot")
    waiting.hand_over()
    declare_lost(waiting.log, waiting.decide(), why="no capacity", got_capacity=False)
    assert waiting.serve() == Left("not needed: the run continued without it")


def test_a_standby_that_starts_after_its_plan_was_decided_boots_without_a_command(waiting):
    waiting.hand_over()
    waiting.decide()
    waiting.clock.at(10, lambda: setattr(waiting.trainers[0], "booted", True))
    assert isinstance(waiting.serve(), Taken)


@pytest.mark.parametrize("command", ["wait", "boot"])
def test_a_standby_with_an_older_spec_leaves_and_does_not_take_the_plan(waiting, command):
    waiting.command(command)
    changed = waiting.spec.model_copy(update={"config": {"lr": 0.5}})

    def change() -> None:
        waiting.log.append(lambda stamp: OpenEntry(**stamp(epoch=0), spec=changed))
        waiting.hand_over()
        assert decide_next(waiting.log, changed, clock=waiting.clock).plan.standby == "spare0"

    waiting.clock.at(10, lambda: [setattr(trainer, "booted", True) for trainer in waiting.trainers])
    waiting.clock.at(20, change)
    assert waiting.serve() == Left("the run spec has changed")
    assert [trainer.given for trainer in waiting.trainers] == ([["killed"]] if command == "boot" else [])


def test_a_standby_that_starts_after_the_spec_has_changed_does_not_boot(waiting):
    changed = waiting.spec.model_copy(update={"config": {"lr": 0.5}})
    waiting.log.append(lambda stamp: OpenEntry(**stamp(epoch=0), spec=changed))
    waiting.command("boot")
    assert waiting.serve() == Left("the run spec has changed")
    assert (waiting.trainers, waiting.note()) == ([], "the run spec has changed")


def test_a_standby_does_not_take_the_plan_of_another_one(waiting):
    waiting.command("boot")
    waiting.clock.at(5, lambda: setattr(waiting.trainers[0], "booted", True))
    waiting.clock.at(10, lambda: waiting.hand_over(standby="spare1"))
    waiting.clock.at(12, waiting.decide)
    waiting.command_at(20, "leave")
    assert isinstance(waiting.serve(), Left)


@pytest.mark.matrix
def test_a_standby_waits_while_the_store_is_unreachable(waiting):
    waiting.command("wait")
    waiting.is_store_down = lambda: 10 <= waiting.clock.monotonic() < 1000
    waiting.command_at(1010, "leave", "not needed")
    assert waiting.serve() == Left("not needed")


def test_a_standby_follows_a_notice_while_the_store_is_unreachable(waiting):
    waiting.is_store_down = lambda: True
    waiting.call_off_at(10)
    assert waiting.serve() == Left("the standby was taken back", how="taken back")
    assert waiting.clock.monotonic() == 10
