"""Disturbances come at random moments, spread over the run, after its first commit and before its end."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from segue.notices.disturbance import DisturbanceKind
from segue.records import StopReason
from segue.verification.disturber import Pace, moments
from tests.support.histories import Logbook, make_spec

KILL, NOTICE = DisturbanceKind.KILL, DisturbanceKind.NOTICE
PACE = Pace(first_commit_step=100, last_step=10_000, step_seconds=0.1, save_interval_seconds=10.0)


@given(kills=st.integers(0, 4), notices=st.integers(0, 4), seed=st.integers(), latency=st.floats(0, 100))
def test_each_disturbance_has_a_part_of_the_run_to_itself(kills, notices, seed, latency):
    kinds = [KILL] * kills + [NOTICE] * notices
    found = moments(kinds, PACE, latency_seconds=latency, chance=random.Random(seed))
    assert sorted(moment.kind for moment in found) == sorted(kinds)
    assert [moment.step for moment in found] == sorted(moment.step for moment in found)
    for moment in found:
        assert PACE.first_commit_step <= moment.step
        assert (moment.step * PACE.step_seconds + moment.delay_seconds + latency) <= PACE.last_step * PACE.step_seconds
        assert 0 <= moment.delay_seconds <= PACE.save_interval_seconds


def test_the_same_time_of_the_schedule_has_the_same_moments_and_another_time_has_others():
    def drawn(seed: str):
        return moments([KILL, NOTICE], PACE, latency_seconds=2.0, chance=random.Random(seed))

    assert drawn("a") == drawn("a")
    assert drawn("a") != drawn("b")


def test_over_many_verifications_every_moment_between_two_saves_is_hit():
    between = PACE.save_interval_seconds
    phases = set()
    for seed in range(300):
        for moment in moments([KILL], PACE, latency_seconds=2.0, chance=random.Random(seed)):
            phases.add(int((moment.step * PACE.step_seconds + moment.delay_seconds) % between))
    assert phases == set(range(10))


def test_a_run_that_is_too_short_is_disturbed_at_its_first_commit():
    short = Pace(first_commit_step=10, last_step=20, step_seconds=0.001, save_interval_seconds=0.01)
    found = moments([KILL, NOTICE], short, latency_seconds=2.0, chance=random.Random(0))
    assert {moment.step for moment in found} == {10}
    assert moments([], short, latency_seconds=2.0, chance=random.Random(0)) == ()


def test_the_pace_is_that_of_the_undisturbed_run():
    log = Logbook(make_spec())
    plan = log.plan()
    name = log.claim(plan)
    for step in (20, 60, 100):
        log.commit(name, step)
    log.report(plan, StopReason.FINISHED, attempt_id=name, train_seconds=30.0, train_steps=100)
    assert Pace.of(log.history) == Pace(20, 100, 0.3, 10.0)
