"""How long each activity of a trainer may take: one row for each rule."""

from __future__ import annotations

import pytest

from segue.testing.clock import FakeClock
from segue.trainer.health.activity import Activity


@pytest.fixture
def clock():
    return FakeClock()


def limit(activity, make_spec, *, ranks=1, **liveness):
    spec = make_spec(liveness={"hang_seconds": 100, "hang_factor": 30, "first_step_seconds": 1000} | liveness)
    return activity.limit_seconds(spec, ranks=ranks)


def trained(clock, *, steps, seconds):
    activity = Activity(clock)
    for step in range(1, steps + 1):
        clock.advance(seconds)
        activity.step_done(step, at=clock.monotonic())
    return activity


@pytest.mark.parametrize(
    ("steps", "seconds", "expected"),
    [
        (0, 1, 1000),  # Still starting.
        (3, 1, 1000),  # Two steps after the first one: not enough to know the usual time.
        (4, 1, 100),  # 30 s are less than the least.
        (4, 10, 300),
    ],
)
def test_a_step_may_take_a_multiple_of_the_usual_time(clock, make_spec, steps, seconds, expected):
    assert limit(trained(clock, steps=steps, seconds=seconds), make_spec) == expected


def test_ranks_that_wait_for_another_one_end_by_themselves_first(clock, make_spec):
    activity = trained(clock, steps=9, seconds=1)
    assert limit(activity, make_spec, ranks=2, rank_seconds=300) == 400


def test_the_first_evaluation_has_the_limit_of_the_first_step_and_later_ones_a_multiple_of_the_longest(
    clock, make_spec
):
    activity = trained(clock, steps=9, seconds=1)
    with activity.evaluating():
        assert limit(activity, make_spec) == 1000
        clock.advance(50)
    with activity.evaluating():
        assert limit(activity, make_spec) == 1500
    assert activity.usual_step_seconds == 1  # An evaluation is no slow step.


def test_an_attempt_that_ends_may_wait_for_a_slow_store_also_after_its_witness_steps(clock, make_spec):
    activity = trained(clock, steps=9, seconds=1)
    activity.ending()
    with activity.evaluating():
        clock.advance(1)
    activity.step_done(10, at=clock.monotonic())
    assert activity.mark.kind == "ending"
    assert limit(activity, make_spec) == 1000 + make_spec().checkpoints.max_work_at_risk_seconds


def test_every_second_belongs_to_a_phase():
    clock = FakeClock()
    activity = Activity(clock, begun_at=clock.monotonic() - 2.0)
    clock.advance(1.0)
    activity.phase = "restore"
    clock.advance(5.0)
    activity.phase = "step"
    clock.advance(10.0)
    with activity.saving():
        clock.advance(0.5)
        with activity.evaluating():
            clock.advance(0.25)
    clock.advance(1.0)
    assert activity.phase_seconds() == {"build": 3.0, "restore": 5.0, "step": 11.0, "save": 0.5, "evaluate": 0.25}
    assert activity.phase == "step"
