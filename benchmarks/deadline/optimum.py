"""The least cost of a job on a spot trace that is known in advance. Pure.

An exact dynamic programme over (tick, mode, cost so far) finds the most work that can be done for a cost. A start's
changeover counts as negative work. A start that is lost before its changeover is compensated is never part of the
optimum. All ticks but the last are bought whole, as in the simulator.

If the job may hand over, on-demand does the work while the spot machine boots. Its cost for the boot is rounded down to
the grid of costs, and the spot machine may be lost in the boot without a loss of work. The result is then a lower bound
of the least cost.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from segue.policy.rules.view import Flags, Floats, Job


def cheapest(job: Job, up: Flags, *, tick_seconds: float) -> Floats:
    """The least cost for each row of `up` (runs, ticks), in spot seconds; infinite if the deadline cannot be met.

    The price ratio is rounded to the nearest fraction with a denominator of at most 20, so that costs form a grid.
    """
    ratio = Fraction(job.price_ratio).limit_denominator(20)
    unit, k = ratio.denominator, ratio.numerator
    runs = len(up)
    ticks = int(job.total_seconds // tick_seconds)
    highest = (int(np.ceil((job.work_seconds + job.changeover_seconds) / tick_seconds)) + 1) * k
    never = -1e18
    idle = np.full((runs, highest + 1), never)
    idle[:, 0] = 0.0
    spot, on_demand = np.full_like(idle, never), np.full_like(idle, never)
    spent = np.arange(highest + 1) * tick_seconds / unit
    best = np.full(runs, np.inf)
    d, goal = job.changeover_seconds, job.work_seconds
    overlap = int(d / tick_seconds * k)
    for at in range(ticks + 1):
        length = min(tick_seconds, job.total_seconds - at * tick_seconds)
        if length <= 0:
            break
        anywhere = np.maximum(np.maximum(spot, on_demand), idle)
        begun = anywhere - d
        before_spot = np.maximum(spot, begun)
        if job.handover:
            handed = np.full_like(on_demand, never)
            handed[:, overlap:] = on_demand[:, : highest + 1 - overlap]
            before_spot = np.maximum(before_spot, handed)
        before_spot = np.where(up[:, at, None], before_spot, never)
        before_on_demand = np.maximum(on_demand, begun)
        for before, price in ((before_spot, 1.0), (before_on_demand, job.price_ratio)):
            needs = np.maximum(goal - before, 0.0)
            total = np.where(needs <= length + 1e-9, spent + price * needs, np.inf)
            best = np.minimum(best, total.min(axis=1))
        idle = anywhere
        spot, on_demand = np.full_like(idle, never), np.full_like(idle, never)
        spot[:, unit:] = before_spot[:, :-unit] + tick_seconds
        on_demand[:, k:] = before_on_demand[:, :-k] + tick_seconds
    return best
