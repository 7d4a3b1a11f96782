"""The machine kept at a planned end: how long it waits for the next plan, and the parent for its claim."""

from __future__ import annotations

import pytest

from segue.controller.continuation import NextTrainer, await_claim, await_plan
from segue.controller.steps import decide_next, open_run, request_stop
from segue.launch.assignment import Assignment
from segue.records import Capacity, StopReason
from segue.runlog.entries import DecisionEntry
from segue.trainer.claim import claim_run
from tests.controller.test_standby_agent import ScriptedTrainer
from tests.controller.test_steps import ENVIRONMENT, Run
from tests.controller.test_wait import ScriptedClock

BOUND, NOTICE = StopReason.BOUND, StopReason.NOTICE


class Kept(Run):
    """A run whose first segment ended at step 30, as planned, on scripted time."""

    def __init__(self, spec, *, reason: StopReason = BOUND) -> None:
        self.clock: ScriptedClock = ScriptedClock()
        super().__init__(spec, self.clock)
        self.first = self.decide()
        claim = self.claim_by("flow-1", self.first)
        self.commit(claim, 30)
        self.report(self.first, claim, reason)
        self.is_called_off = self.has_left = False

    def claim_by(self, flow_run_id: str, plan):
        assignment = Assignment(spec=self.spec, plan=plan, flow_run_id=flow_run_id)
        return claim_run(self.another_log(), assignment, environment=ENVIRONMENT)

    def plan_with(self, **changes):
        """The next decision, with what the test changes of its plan."""
        made = decide_next(self.log, self.spec, clock=self.clock)
        if changes:
            facts = {"plan": made.plan.model_copy(update=changes), "action": "run", "reason": "chosen by the test"}
            self.log.append(lambda stamp: DecisionEntry(**stamp(epoch=0), **facts))
            return facts["plan"]
        return made.plan

    def await_plan(self):
        log = self.another_log().reload()
        return await_plan(log, self.spec, self.first, is_called_off=lambda: self.is_called_off, clock=self.clock)

    def await_claim(self, plan):
        log = self.another_log().reload()
        return await_claim(log, plan, has_left=lambda flow_run_id: self.has_left, clock=self.clock)


@pytest.fixture
def kept(make_spec) -> Kept:
    return Kept(make_spec(steps=100, segment={"steps": 30}))


def test_the_next_plan_is_taken_as_soon_as_it_is_in_the_log(kept):
    kept.clock.at(2.0, kept.plan_with)
    plan = kept.await_plan()
    assert (plan.segment, plan.parent.step, plan.keeps_machine) == (1, 30, True)
    assert kept.clock.monotonic() < 2.5


@pytest.mark.parametrize(
    "changes",
    [
        {"capacity": Capacity.ON_DEMAND, "deployment": "segment/on-demand"},
        {"deployment": "segment/other"},
        {"standby": "spare0"},
        {"delay_seconds": 5.0},
    ],
)
def test_a_machine_leaves_at_once_when_the_next_plan_is_not_for_it(kept, changes):
    kept.clock.at(2.0, lambda: kept.plan_with(**changes))
    assert kept.await_plan() is None
    assert kept.clock.monotonic() < 2.5


def test_a_machine_without_a_plan_is_given_back_after_half_a_minute(kept):
    assert kept.await_plan() is None
    assert 30 <= kept.clock.monotonic() < 31


def test_a_machine_that_is_taken_back_takes_no_plan(kept):
    kept.is_called_off = True
    kept.plan_with()
    assert kept.await_plan() is None


def test_a_machine_leaves_when_the_run_was_stopped(kept):
    def stop():
        request_stop(kept.log, reason="a person stopped it")
        decide_next(kept.log, kept.spec, clock=kept.clock)

    kept.clock.at(2.0, stop)
    assert kept.await_plan() is None
    assert kept.clock.monotonic() < 2.5


def test_a_run_whose_spec_changed_goes_on_elsewhere(kept, make_spec):
    kept.plan_with()
    other = make_spec(steps=120, segment={"steps": 30})
    log = kept.another_log().reload()
    assert await_plan(log, other, kept.first, is_called_off=lambda: False, clock=kept.clock) is None


def test_the_parent_finds_the_claim_of_the_kept_machine(kept):
    plan = kept.plan_with()
    kept.clock.at(3.0, lambda: kept.claim_by("flow-1", plan))
    assert kept.await_claim(plan) == "flow-1"
    assert kept.await_claim(plan) == "flow-1", "also a parent that was started again"


def test_the_parent_submits_the_plan_when_the_kept_machine_does_not_answer(kept):
    plan = kept.plan_with()
    assert kept.await_claim(plan) is None
    assert 30 <= kept.clock.monotonic() < 31


def test_the_parent_does_not_wait_for_a_machine_that_has_left(kept):
    plan = kept.plan_with()
    kept.clock.at(1.0, lambda: setattr(kept, "has_left", True))
    assert kept.await_claim(plan) is None
    assert kept.clock.monotonic() < 1.5


def test_the_parent_submits_a_plan_that_another_machine_claimed(kept):
    plan = kept.plan_with()
    kept.claim_by("flow-2", plan)
    assert kept.await_claim(plan) is None


@pytest.mark.parametrize(("segment", "reason"), [({"steps": 30}, NOTICE), ({"count": 1}, BOUND)])
def test_only_a_planned_end_keeps_the_machine(make_spec, segment, reason):
    kept = Kept(make_spec(steps=100, segment=segment), reason=reason)
    plan = kept.plan_with()
    assert kept.await_claim(plan) is None
    assert kept.clock.monotonic() == 0


def booted(*trainers: ScriptedTrainer) -> NextTrainer:
    left = list(trainers)
    return NextTrainer(lambda: left.pop(0))


def test_the_next_trainer_boots_once_and_gets_its_assignment(kept):
    first = ScriptedTrainer()
    made = booted(first)
    made.prepare()
    made.prepare()
    assert made.start(Assignment(spec=kept.spec, plan=kept.first, flow_run_id="flow-1")) is first
    made.close()
    assert first.given == ["0.1 by flow-1"]


def test_a_next_trainer_that_died_while_it_waited_is_replaced(kept):
    dead, second = ScriptedTrainer(), ScriptedTrainer()
    made = booted(dead, second)
    made.prepare()
    dead.code = -9
    assert made.start(Assignment(spec=kept.spec, plan=kept.first, flow_run_id="flow-1")) is second


def test_a_next_trainer_that_is_not_used_is_ended(kept):
    unused = ScriptedTrainer()
    made = booted(unused)
    made.prepare()
    made.close()
    assert unused.given == ["killed"]


def test_a_run_that_was_stopped_and_is_started_again_gets_a_machine_of_its_own(kept):
    request_stop(kept.log, reason="by a person")
    open_run(kept.spec, clock=kept.clock)
    kept.log.reload()
    plan = kept.plan_with()
    began = kept.clock.monotonic()
    assert kept.await_claim(plan) is None
    assert kept.clock.monotonic() == began  # The machine of before was given back, so nothing is waited for.
