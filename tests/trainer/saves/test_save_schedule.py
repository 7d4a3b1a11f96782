"""When a save is due, on a clock that the test moves."""

from __future__ import annotations

import math

import pytest

from segue.policy.save_interval import Life, SaveCost
from segue.records import Capacity
from segue.runlog.history import History
from segue.spec import CheckpointSpec
from segue.testing.clock import FakeClock
from segue.trainer.save_schedule import SaveSchedule, life_on


def schedule(clock: FakeClock | None = None, *, step: int = 0, life: Life | None = None, **spec) -> SaveSchedule:
    return SaveSchedule(CheckpointSpec(**spec), step=step, life=life, clock=clock or FakeClock())


def test_by_steps_a_save_is_due_at_each_multiple_that_was_passed_since_the_last_one():
    made = schedule(every_steps=10, step=3)
    assert [step for step in range(3, 31) if made.is_due(step)] == list(range(10, 31))
    assert (made.next_step, made.seconds_to_next) == (10, math.inf)
    made.submitted(12)
    assert [step for step in range(12, 31) if made.is_due(step)] == list(range(20, 31))
    assert made.next_step == 20


def test_by_seconds_a_save_is_due_once_they_have_passed_since_the_last_one_or_its_metric():
    clock = FakeClock()
    made = schedule(clock, every_seconds=60.0)
    clock.advance(59)
    assert (made.is_due(5), made.seconds_to_next, made.next_step) == (False, pytest.approx(1), math.inf)
    clock.advance(1)
    assert made.is_due(5)
    made.submitted(5)
    clock.advance(40)
    made.evaluated()
    clock.advance(40)
    assert (made.is_due(6), made.seconds_to_next) == (False, pytest.approx(20))


def test_a_step_that_was_submitted_is_not_due_again_unless_its_save_was_torn():
    made = schedule(every_steps=10)
    made.submitted(10)
    made.request(10)
    assert not made.is_due(10)
    assert not made.is_due(11)
    made.torn()
    assert not made.is_due(10), "its bytes are gone; the next step has new ones"
    assert made.is_due(11)
    made.submitted(11)
    assert not made.is_due(12)
    made.request(12)
    assert made.is_due(12)


def test_a_save_that_is_put_off_several_times_is_counted_once():
    made = schedule(every_steps=10)
    made.delay()
    made.delay()
    assert made.delayed == 1
    made.submitted(12)
    made.delay()
    assert made.delayed == 2


def test_the_interval_follows_what_a_save_costs():
    made = schedule(life=Life())
    first = made.cadence
    made.adapt(SaveCost(20.0, 0.0, 20.0))
    assert made.cadence.reason != first.reason
    assert "for a save cost of 20 s" in made.cadence.reason
    assert made.seconds_to_next == pytest.approx(made.cadence.interval_seconds)


def test_on_demand_has_no_life_that_would_bound_the_interval():
    assert life_on(Capacity.ON_DEMAND, History()) is None
    assert life_on(Capacity.SPOT, History()) == Life(up_seconds=0.0, preemptions=0)
