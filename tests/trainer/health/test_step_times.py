"""A slow machine is named within 50 steps, and noise is no reason to name one."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random

import pytest

from segue.records import Machine, StopReason
from segue.runlog.history import read_history
from segue.trainer.health.step_times import StepTimes
from tests.support.forked_trainers import next_plan

USUAL = 0.02


def noisy(rng: Random) -> Iterator[float]:
    """Durations of the steps of one machine, without end: noise of 2 to 30 %, a slow drift, and single long steps. At
    most once in 50 steps, another program takes half of the machine for up to 15 steps. The machine is up to 3 %
    slower."""
    sigma, own, drift = rng.uniform(0.02, 0.3), USUAL * rng.uniform(0.97, 1.03), 0.0
    burst_left = 0
    while True:
        drift = 0.95 * drift + rng.gauss(0.0, 0.005)
        if burst_left > -50 or rng.random() < 0.01:
            burst_left = burst_left - 1 if burst_left > -50 else rng.randint(5, 15)
        spike = rng.uniform(3, 20) if rng.random() < 0.03 else 1.0
        yield own * math.exp(rng.gauss(0.0, sigma) + drift) * spike * (2.0 if burst_left > 0 else 1.0)


@pytest.mark.matrix
def test_no_machine_is_named_in_1000_noisy_runs():
    for seed in range(1000):
        times, durations = StepTimes(USUAL), noisy(Random(seed))
        for step in range(1000):
            times.add(next(durations))
            assert times.slowness is None, f"seed {seed}, step {step}"


@pytest.mark.parametrize("sigma", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("begin", [0, 200, 203])
def test_a_machine_that_becomes_slower_by_30_percent_is_named_within_50_steps_and_once(sigma, begin, caplog):
    for seed in range(20):
        rng, times = Random(seed), StepTimes(USUAL)
        with caplog.at_level(logging.WARNING):
            for step in range(begin + 50):
                times.add(USUAL * (1.3 if step >= begin else 1.0) * math.exp(rng.gauss(0.0, sigma)))
        assert sum("this machine is slow" in line for line in caplog.messages) == seed + 1, f"seed {seed}"


def test_a_machine_that_recovers_is_not_slow_any_more():
    times = StepTimes(USUAL)
    for seconds in (*(USUAL * 2 for _ in range(96)), *(USUAL for _ in range(50))):
        times.add(seconds)
    assert times.slowness is None
    assert times.median_seconds == pytest.approx(2 * USUAL)


def test_without_enough_attempts_to_compare_with_no_machine_is_slow():
    times = StepTimes(None)
    for _ in range(100):
        times.add(5.0)
    assert times.slowness is None
    assert times.median_seconds == 5.0


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("variables", "avoided"), [({"SEGUE_KUBERNETES_NODE": "slow"}, ("slow",)), ({}, ())], ids=["node", "host"]
)
def test_a_run_leaves_a_slow_node_at_the_planned_end_and_stays_on_a_machine_that_it_cannot_avoid(
    variables, avoided, fork_server, make_spec, open_log, tmp_path
):
    brake = tmp_path / "brake"
    config = {"brake": str(brake), "brake_seconds": 0.06, "pause_seconds": 0.02}
    spec = make_spec(recipe="tests.recipes.paced:build", config=config, steps=400, segment={"steps": 60})
    runlog = open_log(spec)
    for _ in range(2):
        report = fork_server.run_attempt(runlog, spec, environment={"SEGUE_KUBERNETES_NODE": "usual"})
        assert (report.stop_reason, report.slowness) == (StopReason.BOUND, None)
    brake.touch()
    slow = fork_server.run_attempt(runlog, spec, environment=variables)
    assert (slow.stop_reason, slow.leaves_machine) == (StopReason.BOUND, bool(variables))
    assert slow.slowness > 1.5
    assert next_plan(runlog, spec).avoided_nodes == avoided
    assert ("took" in read_history(runlog).decisions[-1].reason) is True


@pytest.mark.matrix
def test_a_run_leaves_a_slow_node_at_once_if_it_would_miss_its_deadline_there(
    fork_server, make_spec, open_log, tmp_path
):
    brake = tmp_path / "brake"
    config = {"brake": str(brake), "brake_seconds": 0.06, "pause_seconds": 0.02}
    facts = {"recipe": "tests.recipes.paced:build", "config": config, "steps": 3000}
    spec = make_spec(**facts, segment={"steps": 60})
    runlog = open_log(spec)
    for _ in range(2):
        fork_server.run_attempt(runlog, spec, environment={"SEGUE_KUBERNETES_NODE": "usual"})
    brake.touch()
    usual = read_history(runlog.reload()).attempts[0].report.median_step_seconds
    left = 2880 * (usual + 0.03)
    policy = {"name": "on_demand_only", "changeover_seconds": 1.0}
    late = make_spec(**facts, deadline=datetime.now(UTC) + timedelta(seconds=left), policy=policy)
    slow = fork_server.run_attempt(open_log(late), late, environment={"SEGUE_KUBERNETES_NODE": "slow"})
    assert (slow.stop_reason, slow.leaves_machine) == (StopReason.BOUND, True)
    assert slow.to_step - slow.from_step < 150
    assert read_history(runlog.reload()).attempts[-1].claim.machines == (Machine(kind="kubernetes", name="slow"),)
