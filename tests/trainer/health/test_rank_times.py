"""A rank that is slower than the others is named within 50 steps, and noise is no reason to name one."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from segue.records import Machine
from segue.trainer.health.rank_times import RankTimes

RANKS, SLOW, USUAL = 8, 3, 0.02
MACHINES = tuple(Machine(kind="slurm", name=f"n{rank // 4}", devices=(f"GPU-{rank}",)) for rank in range(RANKS))
NOISES = {
    "normal, 5 %": lambda rng, shape: rng.normal(1.0, 0.05, shape),
    "normal, 10 %": lambda rng, shape: rng.normal(1.0, 0.1, shape),
    "normal, 15 %": lambda rng, shape: rng.normal(1.0, 0.15, shape).clip(0.1),
    "heavy tails": lambda rng, shape: np.exp(0.05 * rng.standard_t(2, shape)).clip(0.2, 50.0),
    "lengths of batches": lambda rng, shape: rng.uniform(0.5, 1.5, shape) * rng.normal(1.0, 0.05, shape),
}
"""Own times of ranks on one machine, relative to the usual one. The lengths of the batches differ by rank and step."""


def steps(noise: str, *, seed: int, count: int) -> np.ndarray:
    """The own time of each rank in each step. Each rank is up to 2 % slower or faster than the others."""
    rng = np.random.default_rng(seed)
    return USUAL * rng.uniform(0.98, 1.02, RANKS) * NOISES[noise](rng, (count, RANKS))


def named_after(noise: str, *, seed: int, begin: int) -> int | None:
    """Steps until the only slow rank is named, if it takes 1.3 times as long from step `begin` on; None: not within
    50 steps."""
    times, own = RankTimes(MACHINES), steps(noise, seed=seed, count=begin + 50)
    own[begin:, SLOW] *= 1.3
    for step, row in enumerate(own.tolist()):
        times.add(row)
        if times.slow:
            assert [each.rank for each in times.slow] == [SLOW]
            return step + 1 - begin
    return None


@pytest.mark.matrix
@pytest.mark.parametrize("noise", NOISES)
def test_no_rank_is_named_in_1000_noisy_runs(noise):
    for seed in range(1000 // len(NOISES)):
        times = RankTimes(MACHINES)
        for step, row in enumerate(steps(noise, seed=seed, count=1000).tolist()):
            times.add(row)
            assert times.slow == (), f"seed {seed}, step {step}"


@pytest.mark.parametrize("begin", [0, 203])
@pytest.mark.parametrize(("noise", "share"), [("normal, 5 %", 1.0), ("normal, 10 %", 0.9), ("heavy tails", 1.0)])
def test_a_rank_that_takes_1_3_times_as_long_is_named_within_50_steps(noise, share, begin):
    named = [named_after(noise, seed=seed, begin=begin) is not None for seed in range(100)]
    assert sum(named) >= share * len(named)


def test_a_slow_rank_is_named_once_with_its_machine_until_it_recovers(caplog):
    times = RankTimes(MACHINES)
    with caplog.at_level(logging.WARNING):
        for factor in (*([2.0] * 100), *([1.0] * 50)):
            times.add([USUAL * (factor if rank == SLOW else 1.0) for rank in range(RANKS)])
            if factor == 2.0 and times.slow:
                assert [(each.machine, each.slowness) for each in times.slow] == [(MACHINES[SLOW], 2.0)]
                assert times.excess_seconds == pytest.approx(USUAL)
    assert (times.slow, times.excess_seconds) == ((), 0.0)
    assert caplog.messages == [
        "a rank is slow: rank 3 took 2.00 times as long as the other ranks on the slurm node n0 (GPU-3)"
    ]


@pytest.mark.parametrize(
    ("count", "slow", "named"), [(2, (1,), (1,)), (8, (4, 5, 6, 7), (4, 5, 6, 7)), (8, range(8), ())]
)
def test_ranks_are_compared_with_the_other_ranks(count, slow, named):
    times = RankTimes(MACHINES[:count])
    for _ in range(50):
        times.add([USUAL * (1.3 if rank in slow else 1.0) for rank in range(count)])
    assert tuple(each.rank for each in times.slow) == named


def test_a_step_that_a_rank_did_not_measure_does_not_count():
    times = RankTimes(MACHINES)
    for _ in range(100):
        times.add([USUAL] * (RANKS - 1))
    assert times.slow == ()
