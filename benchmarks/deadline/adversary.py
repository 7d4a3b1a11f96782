"""Spot as an adversary, which knows the mode of each run, and goes up and down to make the run late."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, get_args

import numpy as np

from segue.policies import POLICIES
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Flags, Job, Knowledge, Wishes
from segue.simulation.simulator import Harshness, simulate

_CHANCES = np.array([0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0])
_RUNS_AT_ONCE = 2500
_HARSH = (
    Harshness(),
    Harshness(dies_within_tick=True),
    Harshness(save_seconds=20.0, save_every_seconds=400.0, dies_within_tick=True),
    Harshness(save_seconds=5.0, save_every_seconds=900.0, dies_within_tick=True, detection_seconds=90.0),
)
_KNOWLEDGE: tuple[Knowledge, ...] = get_args(Knowledge)


class Adversary:
    """For each run, the probabilities that spot comes and that spot stays, by the mode of the run."""

    def __init__(self, runs: int, random: np.random.Generator) -> None:
        self._random, self.runs = random, runs
        self._comes, self._stays = random.choice(_CHANCES, (2, runs, 3))
        self._up = random.random(runs) < 0.5
        self._tick = 0

    def at(self, tick: int, modes: Wishes) -> Flags:
        while self._tick < tick:
            row = np.arange(self.runs)
            chance = np.where(self._up, self._stays[row, modes], self._comes[row, modes])
            self._up = self._random.random(self.runs) < chance
            self._tick += 1
        return self._up.copy()


def adversarial_runs(part: int, runs_each: int, *, seed: int, start_factor: float = 1.0) -> dict[str, Any]:
    """`runs_each` runs of every policy with random parameters, jobs and harshness.

    Each start takes `start_factor` times as long as the run expects; if this factor is not 1, the clamp has its margin
    on starts. `misses`: late runs whose deadline could be met at their start. `hopeless`: runs whose deadline could not
    be met. `unsaid`: hopeless runs that were not reported as hopeless at their start.
    """
    random = np.random.default_rng([seed, part])
    total: dict[str, Any] = {"runs": 0, "misses": 0, "hopeless": 0, "unsaid": 0}
    for name in POLICIES:
        left = runs_each
        while left > 0:
            runs = min(left, _RUNS_AT_ONCE)
            left -= runs
            job, harsh, tick = _job(random, start_factor)
            policy = named_policy(name, _parameters(name, random))
            made = simulate(
                policy,
                job,
                Adversary(runs, random),
                tick_seconds=tick,
                harshness=harsh,
                seed=int(random.integers(2**31)),
            )
            could = job.total_seconds >= start_factor * job.changeover_seconds + job.work_seconds / harsh.pace
            total["runs"] += runs
            total["misses"] += int(made.is_late.sum()) if could else 0
            total["hopeless"] += 0 if could else runs
            total["unsaid"] += 0 if could or made.was_hopeless else runs
    return total


def _job(random: np.random.Generator, start_factor: float) -> tuple[Job, Harshness, float]:
    tick = float(random.choice([60.0, 300.0, 600.0]))
    harsh = replace(_HARSH[random.integers(len(_HARSH))], start_factor=start_factor)
    work = tick * float(random.uniform(2, 30))
    changeover = float(random.choice([0.0, 0.1, 0.5, 1.0, 2.4])) * tick
    # From the time that on-demand needs to three times that; sometimes less.
    least = start_factor * changeover + work / harsh.pace
    room = float(random.choice([0.0, 1e-6, 0.3, 1.0, 3.0])) * tick + float(random.choice([0.0, 0.1, 0.5, 2.0])) * least
    total = 0.9 * least if random.random() < 0.02 else least + room
    knowledge = _KNOWLEDGE[random.integers(len(_KNOWLEDGE))]
    price_ratio, handover = float(random.choice([1.2, 3.0, 10.0])), bool(random.integers(2))
    return Job(total, work, changeover, price_ratio, knowledge, handover, start_factor != 1), harsh, tick


def _parameters(name: str, random: np.random.Generator) -> dict[str, float]:
    """A random value for each parameter of the policy, between an eighth of its default and eight times its default."""
    drawn = {}
    for parameter in fields(POLICIES[name]):
        value = parameter.default * 8.0 ** random.uniform(-1, 1)
        is_whole = isinstance(parameter.default, int)
        drawn[parameter.name] = max(round(value) if is_whole else value, parameter.metadata.get("least", is_whole))
    return drawn
