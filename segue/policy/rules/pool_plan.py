"""Chooses among several spot pools and on-demand, by the costs that PLAN expects for each choice.

The module is pure, but it keeps solved tables (`segue.policy.rules.pool_table`). On one pool, PLAN is
`segue.policy.rules.plan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from segue.policy.rules.pool_beliefs import UNKNOWN_AGE_SECONDS, age_bin
from segue.policy.rules.pool_table import NEVER, Costs, Pools, Table, solve
from segue.policy.rules.view import Floats

_USEFUL_SLACK_SECONDS, _USEFUL_STARTS = 12 * 3600.0, 20
"""Slack that a table covers at least, in seconds and in starts, even if little work is left."""
_COARSEST_SECONDS, _FEWEST_STEPS, _MOST_STEPS = 300.0, 200, 2000
"""The longest step of a table in seconds, and the least and the largest number of steps. The number counts more."""
_SLACK_PARTS, _SLACK_STEPS = 5, 120
"""Steps of slack: at most this number for each step of time, and about this number in all."""
_ROUNDED_STEPS = 32
"""A table begins at a multiple of this number of steps, so that it can be used again."""
_GRID = 1.2
"""The ratio of two neighbouring steps."""
_MOMENTS = 64
"""Number of moments of the coming wait that are looked at, and as many changeovers as a quarter of it."""
_NOTHING = 1e-6
"""A saving that is a smaller part of a cost than this is none."""


@dataclass(frozen=True)
class Waits:
    """How long a run without a machine waits for spot, and on which pools it waits."""

    longest_seconds: float
    """Seconds until on-demand is cheaper, if no spot machine comes. The value is 0 if on-demand is cheaper at once."""
    after_seconds: dict[int, float]
    """The pools on which the attempt is requested, in order, with the times of the requests."""


class PoolPlan:
    """The choices of one run at one moment.

    Costs are in the money of the prices, which should be near 1 per hour. `down_seconds` has one value for each pool:
    the seconds for which the pool is known to be down now. The value is not finite if the run does not know whether the
    pool is down. The choices look at most `ahead_seconds` ahead.
    """

    def __init__(
        self, pools: Pools, *, remaining_seconds: float, work_seconds: float, ahead_seconds: float = 0.0
    ) -> None:
        slack, boot = max(remaining_seconds - work_seconds, 0.0), pools.changeover_seconds
        # More slack than this is worth nothing: spot comes before it is used.
        useful = max(work_seconds, _USEFUL_SLACK_SECONDS, _USEFUL_STARTS * (pools.least_slack_seconds + boot))
        horizon = work_seconds + min(slack, useful)
        self._pools = pools
        self._beyond = max(remaining_seconds - horizon, 0.0)
        """Time beyond the horizon is not in the table. In this time, nothing has to be decided."""
        self._remaining, self._slack = horizon, horizon - work_seconds
        self._table = _table_for(pools, horizon, horizon - work_seconds, ahead_seconds)

    def waits(self, down_seconds: Floats, *, longest_seconds: float) -> Waits:
        """Return how a run waits that has no machine, for at most this number of seconds."""
        known, boot = np.isfinite(down_seconds), self._pools.changeover_seconds
        offsets = np.linspace(0.0, longest_seconds, _MOMENTS)
        soon = boot * np.arange(_MOMENTS // 4)
        first: dict[int, float] = {}
        longest = longest_seconds
        for offset in np.unique(np.concatenate([offsets, soon[soon < longest_seconds]])):
            least, starts, leaves = self._without_machine(down_seconds, float(offset))
            for pool in np.flatnonzero(starts < least * (1 - _NOTHING)):
                first.setdefault(int(pool), float(offset))
            if leaves:
                longest = float(offset)
                break
        if longest < boot and any(not known[pool] for pool in first):
            # A pool that was not asked for a while may have a machine at once.
            longest = min(max(boot, 1.0), longest_seconds)
            return Waits(longest, dict.fromkeys(first, 0.0))
        if not first and longest > 0:
            # To wait costs less than any machine now, and a run can wait only for a pool.
            _, starts, _ = self._without_machine(down_seconds, 0.0)
            best = int(np.argmin(starts))
            first = {best: 0.0} if starts[best] < NEVER / 2 else {}
        after = self._after_seconds(down_seconds, first)
        asked = {pool: at for pool, at in after.items() if at <= longest}
        return Waits(longest if asked else 0.0, asked)

    def savings(self, place: int | None, age_seconds: float, up_seconds: Floats) -> Floats:
        """Return the money that a move to each pool saves, if the pool has a machine now and has been up for so long.

        `place` is the pool of the machine that works now, whose up interval has this age. None means on-demand, and the
        age is the age of the down interval of spot.
        """
        costs, own = self._at(0.0), age_bin(max(age_seconds, 0.0))
        stay = costs.on_demand[own] if place is None else costs.stay[place, own]
        row = -1 if place is None else place
        old = np.clip(up_seconds / UNKNOWN_AGE_SECONDS, 0.0, 1.0)
        saved = np.asarray(float(stay) - ((1 - old) * costs.move[0, row] + old * costs.move[1, row]), float)
        if place is not None:
            saved[place] = -math.inf
        return saved

    def keeps(self, place: int, age_seconds: float) -> bool:
        """Whether a run on a spot machine keeps it, although it could change to on-demand."""
        costs, age = self._at(0.0), age_bin(max(age_seconds, 0.0))
        return bool(costs.stay[place, age] <= costs.start_on_demand[place, age])

    def _at(self, offset: float) -> Costs:
        waited = max(offset - self._beyond, 0.0)
        return self._table.at(self._remaining - waited, self._slack - waited)

    def _without_machine(self, down_seconds: Floats, offset: float) -> tuple[float, Floats, bool]:
        """Return the cost without a spot machine, the cost of a machine on each pool, and whether on-demand is cheaper
        than to wait on.
        """
        costs, known = self._at(offset), np.isfinite(down_seconds)
        # The first refusal of a pool shows that it is down, not since when.
        waited = age_bin(float(np.min(np.where(known, down_seconds, 0.0))) + offset)
        kinds = np.where(known | (offset > 0), 0, 1)
        idle, on_demand = float(costs.idle[-1, waited]), float(costs.start_on_demand[-1, waited])
        starts = np.asarray(costs.start[kinds, -1, np.arange(len(kinds))], float)
        return min(idle, on_demand), starts, on_demand <= idle

    def _after_seconds(self, down_seconds: Floats, first: dict[int, float]) -> dict[int, float]:
        """Return the times of the requests. A cheaper pool gets a head start if this is expected to save money.

        All pools are asked by requests that wait, and the first machine trains. Without a head start, a dear pool often
        comes first although a cheap pool also has a machine. The head start is the changeover: after that time, a pool
        that has a machine has started it. The head start costs slack if the cheaper pools have none.
        """
        now, seconds = self._without_machine(down_seconds, 0.0), self._pools.changeover_seconds
        later = self._without_machine(down_seconds, seconds)
        waits_on = np.minimum(later[1], later[0])
        found: dict[int, float] = {}
        at, none_has_one = 0.0, 1.0
        best = min((float(now[1][pool]) for pool in first), default=0.0)
        for pool in sorted(first, key=lambda pool: float(now[1][pool])):
            gain = (1 - none_has_one) * (float(now[1][pool]) - best)
            at += seconds if gain > none_has_one * max(float(waits_on[pool] - now[1][pool]), 0.0) + _NOTHING else 0.0
            found[pool] = max(at, first[pool]) if found else 0.0
            none_has_one *= 1 - self._chance(pool, float(down_seconds[pool]))
        return dict(sorted(found.items(), key=lambda each: each[1]))

    def _chance(self, pool: int, down_seconds: float) -> float:
        """The probability that a pool has a machine now or within a changeover."""
        if not math.isfinite(down_seconds):
            return self._pools.shares[pool]
        rate = self._pools.down_rates[pool][age_bin(down_seconds)]
        return -math.expm1(-rate * self._pools.changeover_seconds)


def _table_for(pools: Pools, remaining_seconds: float, slack_seconds: float, ahead_seconds: float) -> Table:
    wanted = max(min(_COARSEST_SECONDS, remaining_seconds / _FEWEST_STEPS), remaining_seconds / _MOST_STEPS, 1e-3)
    step = _rounded(wanted)
    slack_step = max(step / _SLACK_PARTS, _rounded(slack_seconds / _SLACK_STEPS))
    count = math.ceil(remaining_seconds / step / _ROUNDED_STEPS) * _ROUNDED_STEPS
    slacks = math.ceil(slack_seconds / slack_step / _ROUNDED_STEPS) * _ROUNDED_STEPS
    kept = _ROUNDED_STEPS * (2 + math.ceil(ahead_seconds / step / _ROUNDED_STEPS))
    return _solved(pools, (max(count, 1), step), (slacks, slack_step), kept)


@lru_cache(maxsize=2)
def _solved(pools: Pools, remaining: tuple[int, float], slack: tuple[int, float], kept: int) -> Table:
    """Return the table for this number and length of steps, of remaining time and of slack."""
    return solve(
        pools,
        remaining_seconds=remaining[0] * remaining[1],
        slack_seconds=slack[0] * slack[1],
        step_seconds=remaining[1],
        slack_step_seconds=slack[1],
        most_steps=kept,
    )


def _rounded(seconds: float) -> float:
    """The next value of a grid that is at least as large."""
    return float(_GRID ** math.ceil(math.log(max(seconds, 1e-3)) / math.log(_GRID) - 1e-9))


def in_tuples(rows: Sequence[Sequence[float]] | Floats) -> tuple[tuple[float, ...], ...]:
    """Return the values of a matrix as tuples, which can be hashed."""
    return tuple(tuple(float(value) for value in row) for row in rows)
