"""Compares the published baselines with the hours in Table 3 of "Can't Be Late" (NSDI 2024), on the paper's own traces.

The eight traces of 2022 (`a22-...`) are public. C = 48 h; D = 60 h, d = .2 h and the first 13 days of all eight
reproduce the paper's hours. Hours are hours of work without starts, so that both numbers add up to C, as in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Floats, Job, Mode
from segue.simulation.simulator import simulate
from segue.simulation.traces import Trace, windows

HOUR = 3600.0
PAPER = {"greedy": (30.8, 17.2), "uniform_progress": (25.1, 22.9)}
"""Hours on on-demand and on spot."""
_DAYS = 13
_JOB = Job(60 * HOUR, 48 * HOUR, 0.2 * HOUR, knowledge="free", handover=False)


def hours_against_the_paper(traces: Sequence[Trace], *, starts: int = 60) -> dict[str, float]:
    """Hours of work on each capacity, and their deviation from the paper's hours; empty without the paper's traces."""
    own = [_first_days(trace) for trace in traces if trace.name.startswith("a22")]
    if not own:
        return {}
    found: dict[str, float] = {}
    for name, (paper_on_demand, paper_spot) in PAPER.items():
        on_demand = float(np.mean([_on_demand_hours(name, trace, starts).mean() for trace in own]))
        spot = _JOB.work_seconds / HOUR - on_demand
        found[f"paper_{name}_on_demand_hours"] = round(on_demand, 2)
        found[f"paper_{name}_spot_hours"] = round(spot, 2)
        found[f"paper_{name}_off_share"] = round(
            max(abs(on_demand / paper_on_demand - 1), abs(spot / paper_spot - 1)), 4
        )
    return found


def _first_days(trace: Trace) -> Trace:
    return replace(trace, up=trace.up[: int(_DAYS * 24 * HOUR / trace.tick_seconds)])


def _on_demand_hours(name: str, trace: Trace, starts: int) -> Floats:
    up = windows(trace, seconds=_JOB.total_seconds, count=starts, random=np.random.default_rng(1))
    made = simulate(named_policy(name), _JOB, up, tick_seconds=trace.tick_seconds, traced=True)
    assert made.modes is not None
    before = np.concatenate([np.full((len(up), 1), Mode.IDLE), made.modes[:, :-1]], axis=1)
    begun = ((made.modes == Mode.ON_DEMAND) & (before != Mode.ON_DEMAND)).sum(axis=1)
    return np.asarray((made.on_demand_seconds - begun * _JOB.changeover_seconds) / HOUR)
