"""Chooses among several spot pools and on-demand by PLAN's expected cost of each choice.

The module is pure, except that it stores solved tables (`segue.policy.rules.pool_table`). `segue.policy.rules.plan`
implements PLAN for one pool.
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
"""Minimum slack that a table covers even if little work is left: a number of seconds, and a number of starts."""
_COARSEST_SECONDS, _FEWEST_STEPS, _MOST_STEPS = 300.0, 200, 2000
"""The longest step of a table in seconds, and the minimum and maximum number of steps. The numbers of steps take
precedence."""
_SLACK_PARTS, _SLACK_STEPS = 5, 120
"""Maximum number of steps of slack for each step of time, and approximate number of steps of slack in total."""
_ROUNDED_STEPS = 32
"""A table begins at a multiple of this number of steps, so that later decisions can use the table again."""
_GRID = 1.2
"""The ratio of two neighbouring step lengths."""
_MOMENTS = 64
"""Number of moments of the coming wait that `waits` evaluates. The first changeovers add a quarter as many moments."""
_NOTHING = 1e-6
"""Least saving that counts, as a share of a cost."""


@dataclass(frozen=True)
class Waits:
    """How long a run without a machine waits for spot, and on which pools it waits."""

    longest_seconds: float
    """Seconds until on-demand is cheaper if no spot machine comes. The value is 0 if on-demand is cheaper now."""
    after_seconds: dict[int, float]
    """The seconds until the request on each pool, in the order of the requests."""


class PoolPlan:
    """Computes the choices of one run at one moment.

    Costs have the unit of the prices. Prices should be near 1 per hour. `down_seconds` contains, for each pool, the
    seconds for which the pool is known to be down. The value for a pool is infinite if the run does not know whether
    the pool is down. The choices look at most `ahead_seconds` ahead.
    """

    def __init__(
        self, pools: Pools, *, remaining_seconds: float, work_seconds: float, ahead_seconds: float = 0.0
    ) -> None:
        slack, boot = max(remaining_seconds - work_seconds, 0.0), pools.changeover_seconds
        # More slack has no value, because spot comes before the run uses it.
        useful = max(work_seconds, _USEFUL_SLACK_SECONDS, _USEFUL_STARTS * (pools.least_slack_seconds + boot))
        horizon = work_seconds + min(slack, useful)
        self._pools = pools
        self._beyond = max(remaining_seconds - horizon, 0.0)
        """Seconds beyond the horizon of the table, in which the run has nothing to decide."""
        self._remaining, self._slack = horizon, horizon - work_seconds
        self._table = _table_for(pools, horizon, horizon - work_seconds, ahead_seconds)

    def waits(self, down_seconds: Floats, *, longest_seconds: float) -> Waits:
        """Return the waits of at most `longest_seconds` for a run without a machine."""
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
            # A pool without a recent request may have a machine at once.
            longest = min(max(boot, 1.0), longest_seconds)
            return Waits(longest, dict.fromkeys(first, 0.0))
        if not first and longest > 0:
            # Waiting costs less than any machine now, and a run can wait only for a pool.
            _, starts, _ = self._without_machine(down_seconds, 0.0)
            best = int(np.argmin(starts))
            first = {best: 0.0} if starts[best] < NEVER / 2 else {}
        after = self._after_seconds(down_seconds, first)
        asked = {pool: at for pool, at in after.items() if at <= longest}
        return Waits(longest if asked else 0.0, asked)

    def savings(self, place: int | None, age_seconds: float, up_seconds: Floats) -> Floats:
        """Return the money that a move to each pool saves, if the pool has a machine and has been up for `up_seconds`.

        `place` is the pool of the current machine, and `age_seconds` is the age of its up interval. If `place` is None,
        the run is on on-demand, and `age_seconds` is the age of the down interval of spot.
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
        """Whether a run on a spot machine keeps the machine instead of moving to on-demand."""
        costs, age = self._at(0.0), age_bin(max(age_seconds, 0.0))
        return bool(costs.stay[place, age] <= costs.start_on_demand[place, age])

    def _at(self, offset: float) -> Costs:
        waited = max(offset - self._beyond, 0.0)
        return self._table.at(self._remaining - waited, self._slack - waited)

    def _without_machine(self, down_seconds: Floats, offset: float) -> tuple[float, Floats, bool]:
        """Return the cost without a spot machine, the cost of a machine on each pool, and whether on-demand is cheaper.

        The last value compares on-demand with a longer wait for spot.
        """
        costs, known = self._at(offset), np.isfinite(down_seconds)
        # The first refusal of a pool shows that the pool is down, but not since when.
        waited = age_bin(float(np.min(np.where(known, down_seconds, 0.0))) + offset)
        kinds = np.where(known | (offset > 0), 0, 1)
        idle, on_demand = float(costs.idle[-1, waited]), float(costs.start_on_demand[-1, waited])
        starts = np.asarray(costs.start[kinds, -1, np.arange(len(kinds))], float)
        return min(idle, on_demand), starts, on_demand <= idle

    def _after_seconds(self, down_seconds: Floats, first: dict[int, float]) -> dict[int, float]:
        """Return the times of the requests. A cheaper pool gets a head start if the expected saving is positive.

        The requests wait on all pools, and the first machine trains. Without a head start, a dear pool often comes
        first although a cheap pool also has a machine. The head start is one changeover, in which a pool with a machine
        starts the machine. The head start costs slack if the cheaper pools have no machine.
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
        """Return the probability that a pool has a machine now or within a changeover."""
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
    """Return the table for these numbers and lengths of the steps of remaining time and of the steps of slack."""
    return solve(
        pools,
        remaining_seconds=remaining[0] * remaining[1],
        slack_seconds=slack[0] * slack[1],
        step_seconds=remaining[1],
        slack_step_seconds=slack[1],
        most_steps=kept,
    )


def _rounded(seconds: float) -> float:
    """Return the smallest value of the grid of step lengths that is at least `seconds`."""
    return float(_GRID ** math.ceil(math.log(max(seconds, 1e-3)) / math.log(_GRID) - 1e-9))


def in_tuples(rows: Sequence[Sequence[float]] | Floats) -> tuple[tuple[float, ...], ...]:
    """Return the values of a matrix as tuples, which can be hashed."""
    return tuple(tuple(float(value) for value in row) for row in rows)
