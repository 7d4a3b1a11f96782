"""PLAN over several pools: the expected cost of every choice, solved backwards from the deadline. Pure.

State: remaining time R, slack S = R - work, and one of

    spot i, age a        on the spot machine of pool i, whose interval has lasted a
    waiting i, age b     without a machine: pool i, where the checkpoint is, is down for b; the others were not asked
    idle i, age b        without a machine: all pools are down, pool i has the checkpoint
    on-demand, age b     on on-demand; the pools are down for b

A request that is refused is free, so the pools are asked in the order of what a start there costs, as long as that is
less than the present choice. A pool that comes up while it is watched is young; the age of one that was not asked for
a while is not known. Between two points of the grid values are linear in S. Below the least slack, on-demand does the
rest.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.deadline.skynomad.beliefs import (
    AGE_EDGES_SECONDS,
    BINS,
    UNKNOWN_AGE_SECONDS,
    age_bin,
    survival,
)
from segue.policy.rules.plan_table import shifted
from segue.policy.rules.view import Flags, Floats

_NEVER = 1e9
"""Stands for a cost of a choice that there is not."""
_MOST_ASKED = 4
"""How many pools, at most, are asked one after the other in the calculation."""
_WASTED_SHARE = 0.6
"""Share of a restart that is paid, on the mean, if the machine is lost in it."""


@dataclass(frozen=True)
class Pools:
    """The pools of a job at one moment. Money per second, seconds."""

    prices: Floats
    on_demand_price: float
    on_demand_zone: int
    transfer: Floats
    """Cost of the checkpoint's way, (from, to); the last row: there is no checkpoint yet."""
    restart_seconds: float
    least_slack_seconds: float
    """With less slack, on-demand has to do the rest."""
    up_rates: Floats
    down_rates: Floats
    """Hazards by pool and age."""
    shares: Floats
    """The probability that a pool that was not asked for a while is up."""


class Costs(NamedTuple):
    """Expected costs from one moment on, by choice."""

    stay: Floats
    """(pool, age): keep the spot machine."""
    idle: Floats
    """(source, age): wait, all pools being down; the last source: no checkpoint yet."""
    wait: Floats
    """(pool, age): wait for the pool with the checkpoint, the others not being asked."""
    on_demand: Floats
    """(age,): be on on-demand already."""
    start_on_demand: Floats
    """(source, age): start on-demand when the pools are down for so long."""
    start: Floats
    """(young or of unknown age, source, pool): a spot machine that was granted."""


class Table:
    """The costs at each step of remaining time, for each step of slack."""

    def __init__(self, steps: list[Costs], *, step_seconds: float, slack_step_seconds: float) -> None:
        self._steps, self._step, self._slack_step = steps, step_seconds, slack_step_seconds

    def at(self, remaining_seconds: float, slack_seconds: float) -> Costs:
        """The costs at one moment, linear in the slack."""
        found = self._steps[min(max(round(remaining_seconds / self._step), 1), len(self._steps)) - 1]
        size = found.on_demand.shape[-1]
        at = min(max(slack_seconds / self._slack_step, 0.0), size - 1.001)
        whole, part = int(at), at - int(at)
        return Costs(*((1 - part) * each[..., whole] + part * each[..., whole + 1] for each in found))


def solve(
    pools: Pools, *, remaining_seconds: float, slack_seconds: float, step_seconds: float, slack_step_seconds: float
) -> Table:
    """The table for a job with so much time, and at most so much slack."""
    slack: Floats = np.arange(math.ceil(slack_seconds / slack_step_seconds) + 2, dtype=float) * slack_step_seconds
    solving = _Solving(pools, slack, step_seconds, slack_step_seconds)
    count = math.ceil(remaining_seconds / step_seconds - 1e-9)
    steps = [solving.back(number * step_seconds) for number in range(1, count + 1)]
    return Table(steps, step_seconds=step_seconds, slack_step_seconds=slack_step_seconds)


class _Later(NamedTuple):
    """The least costs at a later moment, by state."""

    spot: Floats
    idle: Floats
    waiting: Floats
    on_demand: Floats


class _Solving:
    """One step back in time after the other."""

    def __init__(self, pools: Pools, slack: Floats, step_seconds: float, slack_step_seconds: float) -> None:
        self._pools, self._slack, self._step, self._slack_step = pools, slack, step_seconds, slack_step_seconds
        count, size = len(pools.prices), len(slack)
        self._own = np.arange(count)
        widths = np.diff(np.concatenate([[0.0], AGE_EDGES_SECONDS]))
        self._older = np.append(np.minimum(step_seconds / widths, 1.0), 0.0)[:, None]
        """The share that is in the next bin of ages after a step."""
        self._ends = -np.expm1(-pools.up_rates * step_seconds)
        self._comes = -np.expm1(-pools.down_rates * step_seconds)
        ages = (0.0, UNKNOWN_AGE_SECONDS)
        self._survives = [survival(pools.up_rates, age, pools.restart_seconds)[:, None] for age in ages]
        self._bin_after = [age_bin(age + pools.restart_seconds) for age in ages]
        self._is_forced: Flags = slack < pools.least_slack_seconds - 1e-6
        self._has_no_time: Flags = slack - step_seconds < pools.least_slack_seconds
        over = _Later(
            spot=np.zeros((count, BINS, size)),
            idle=np.zeros((count + 1, BINS, size)),
            waiting=np.zeros((count, BINS, size)),
            on_demand=np.zeros((BINS, size)),
        )
        whole, self._restart_part = divmod(pools.restart_seconds / step_seconds, 1.0)
        self._restart_steps = int(whole)
        self._later: deque[_Later] = deque([over], maxlen=self._restart_steps + 1)
        self._start: Floats | None = None

    def back(self, remaining: float) -> Costs:
        """The costs one step earlier than those before."""
        pools, later, slack = self._pools, self._later[0], self._slack
        work, zone = np.maximum(remaining - slack, 0.0), pools.on_demand_zone
        paid, is_done = np.minimum(work, self._step), slack >= remaining
        all_on_demand = pools.transfer[:, zone][:, None] + pools.on_demand_price * (work + pools.restart_seconds)[None]
        start = self._starts()
        begin = self._begin_on_demand(all_on_demand)
        spot, idle, waiting, on_demand = self._with_offers(later)

        idle = self._lasting(idle)
        idle = self._less_slack(idle, self._step)
        wait = self._less_slack(waiting, self._step)
        idle[..., self._has_no_time] = wait[..., self._has_no_time] = _NEVER
        stay = pools.prices[:, None, None] * paid + self._survived(spot) + self._ends[:, :, None] * later.waiting[:, :1]
        remains = np.minimum(pools.on_demand_price * paid + self._lasting(on_demand), pools.on_demand_price * work)
        remains[:, self._is_forced] = (pools.on_demand_price * work)[self._is_forced]

        least_idle = np.minimum(idle, begin)
        asked = self._asked(least_idle[:-1], start[1, :-1], _MOST_ASKED + 2, self._pools.shares)
        found = _Later(
            spot=np.minimum(stay, begin[:-1]),
            idle=least_idle,
            waiting=np.minimum(asked, np.minimum(wait, begin[:-1])),
            on_demand=np.minimum(remains, idle[zone]),
        )
        forced = all_on_demand[:, None, self._is_forced]
        found.spot[..., self._is_forced] = found.waiting[..., self._is_forced] = forced[:-1]
        found.idle[..., self._is_forced] = forced
        for each in (*found, start):
            each[..., is_done] = 0.0
        self._later.appendleft(found)
        self._start = start
        return Costs(stay, idle, wait, found.on_demand, begin, start)

    def _starts(self) -> Floats:
        """The cost of a spot machine that was granted, which may be lost in its restart."""
        pools, spot, lost = self._pools, self._after_restart("spot"), self._after_restart("waiting")[:, 0]
        found = []
        for survives, after in zip(self._survives, self._bin_after, strict=True):
            share = survives + (1 - survives) * _WASTED_SHARE
            then = self._less_slack(survives * spot[:, after] + (1 - survives) * lost, pools.restart_seconds)
            cost = pools.prices[:, None] * pools.restart_seconds * share + then
            found.append(pools.transfer[:, :, None] + cost[None])
        start = np.array(found)
        start[..., self._is_forced] = _NEVER
        return start

    def _begin_on_demand(self, all_on_demand: Floats) -> Floats:
        pools = self._pools
        then = self._less_slack(self._after_restart("on_demand"), pools.restart_seconds)
        way = pools.transfer[:, pools.on_demand_zone][:, None, None]
        begin = way + pools.on_demand_price * pools.restart_seconds + then[None]
        return np.where(self._is_forced, all_on_demand[:, None], np.minimum(begin, all_on_demand[:, None]))

    def _with_offers(self, later: _Later) -> _Later:
        """The costs at the end of a step, in which pools that were down may have come up."""
        if self._start is None:
            return later
        young, zone = self._start[0], self._pools.on_demand_zone
        by_age = self._comes.T[None]
        # The others have been down for about as long as this machine runs.
        others = np.repeat(by_age, len(self._own), axis=0)
        others[self._own, :, self._own] = 0.0
        spot = self._offered(later.spot, young[:-1], others)
        idle = self._offered(later.idle, young, by_age)
        on_demand = self._offered(later.on_demand[None], young[zone : zone + 1], by_age)[0]
        own, chance = young[self._own, self._own][:, None], self._comes[:, :, None]
        rest = self._lasting(later.waiting)
        return _Later(spot, idle, chance * np.minimum(own, rest) + (1 - chance) * rest, on_demand)

    def _offered(self, otherwise: Floats, start: Floats, chances: Floats) -> Floats:
        """The least of staying `otherwise` and the pools that come up.

        Shapes: `otherwise` (source, age, slack), `start` (source, pool, slack), `chances` (source or 1, age or 1,
        pool).
        """
        count = min(_MOST_ASKED, start.shape[1])
        order = np.argsort(start, axis=1)[:, :count]
        costs = np.take_along_axis(start, order, 1)
        rest: Floats | float = 1.0
        found = np.zeros_like(otherwise)
        sources = np.arange(len(order))[:, None, None] if len(chances) > 1 else np.zeros((1, 1, 1), int)
        for at in range(count):
            # (source, age, slack): the chance of the pool that is asked as number `at` there.
            chance = np.moveaxis(chances[sources[..., 0], :, order[:, at]], -1, 1)
            found = found + rest * chance * np.minimum(otherwise, costs[:, None, at])
            rest = rest * (1 - chance)
        return np.asarray(found + rest * otherwise)

    def _asked(self, otherwise: Floats, start: Floats, most: int, shares: Floats) -> Floats:
        """The pools other than the source's are asked in turn; `otherwise`, if all refuse."""
        count = min(most, start.shape[1])
        order = np.argsort(start, axis=1)[:, :count]
        costs = np.take_along_axis(start, order, 1)
        chances = np.where(order == self._own[:, None, None], 0.0, shares[order])
        rest: Floats | float = 1.0
        found = np.zeros_like(otherwise)
        for at in range(count):
            chance = chances[:, None, at]
            found = found + rest * chance * np.minimum(otherwise, costs[:, None, at])
            rest = rest * (1 - chance)
        return np.asarray(found + rest * otherwise)

    def _survived(self, spot: Floats) -> Floats:
        """The expected cost after a step in which the machine was kept."""
        lives = (1 - self._ends)[:, :, None]
        return np.asarray(lives * self._lasting(spot))

    def _lasting(self, value: Floats) -> Floats:
        """The expected cost after a step in which the interval goes on; the last but one axis is its age."""
        older = np.concatenate([value[..., 1:, :], value[..., -1:, :]], axis=-2)
        return np.asarray((1 - self._older) * value + self._older * older)

    def _after_restart(self, name: str) -> Floats:
        """The costs of states after a restart, which may end between two steps."""
        last = getattr(self._later[min(self._restart_steps, len(self._later) - 1)], name)
        if not self._restart_steps or self._restart_part < 1e-9:
            return np.asarray(last if not self._restart_steps else self._before(name))
        return np.asarray((1 - self._restart_part) * self._before(name) + self._restart_part * last)

    def _before(self, name: str) -> Floats:
        return np.asarray(getattr(self._later[min(self._restart_steps - 1, len(self._later) - 1)], name))

    def _less_slack(self, value: Floats, seconds: float) -> Floats:
        """The values of states from which a choice leads to so much less slack."""
        whole, part = divmod(seconds / self._slack_step, 1.0)
        near = shifted(value, int(whole), otherwise=_NEVER)
        if part < 1e-9:
            return near
        far = shifted(value, int(whole) + 1, otherwise=_NEVER)
        return np.where(far < _NEVER / 2, (1 - part) * near + part * far, near)
