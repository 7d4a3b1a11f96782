"""Simulated runs per second on one core: 60 hours at ten-minute ticks."""

from __future__ import annotations

import time

import numpy as np

from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Flags, Job
from segue.simulation.simulator import simulate

HOUR = 3600.0
_JOB = Job(60 * HOUR, 42 * HOUR, 0.1 * HOUR, knowledge="free", handover=False)
_RUNS = {"uniform_progress": 4000, "plan": 2000}


def runs_per_second() -> dict[str, float]:
    """Runs per second of uniform_progress and of plan, including the time in which plan solves its tables."""
    found = {}
    for name, runs in _RUNS.items():
        up = _flips(runs, 361)
        begun = time.perf_counter()
        simulate(named_policy(name), _JOB, up, tick_seconds=600.0)
        found[f"runs_per_second_{name}"] = round(runs / (time.perf_counter() - begun), 1)
    return found


def _flips(runs: int, ticks: int) -> Flags:
    random = np.random.default_rng(0)
    flips = np.cumsum(random.random((runs, ticks)) < 0.06, axis=1)
    return np.asarray((flips + random.integers(0, 2, (runs, 1))) % 2 == 0)
