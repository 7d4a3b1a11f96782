"""Solves PLAN's dynamic programme for several spot pools, backwards from the deadline.

The module is pure and computes the expected cost of every choice. A state consists of the remaining time R, the slack S
= R - C, and one of

    spot i, age a        on the spot machine of pool i, whose up interval has lasted for a
    waiting i, age b     without a machine: pool i went down b ago, and the other pools were not asked since
    idle i, age b        without a machine: all pools are down, one of them for b, and pool i has the checkpoint
    on-demand, age b     on on-demand: the pools are down, one of them for b

A refused request costs nothing. PLAN therefore requests a machine on one pool after the other, in the order of expected
cost, while the expected cost is lower than the cost of the present choice. If the run observes that a pool comes up,
the up interval of the pool is young. The age of the interval is unknown for a pool without a recent request. Between
two points of the grid, costs are linear in S. If the slack is less than the least slack, on-demand does the rest of the
work.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast

import numpy as np

from segue.policy.rules.plan_table import shifted
from segue.policy.rules.pool_beliefs import AGE_EDGES_SECONDS, BINS, UNKNOWN_AGE_SECONDS, age_bin, survival
from segue.policy.rules.view import Flags, Floats

Moves = Literal["overlapping", "by_restart", "none"]
"""How a run moves from a working machine to a spot machine on another pool.

`overlapping`: the old machine works until the new machine has booted, and the run pays for both machines. `by_restart`:
the run gives the old machine back before it gets the new machine, so the changeover uses slack. `none`: a run never
leaves a working machine.
"""

NEVER = 1e9
"""The cost that represents a forbidden choice."""
_SAME = 1e-6
_MOST_ASKED = 4
"""Maximum number of pools, in the calculation, that PLAN requests one after the other."""
_WASTED_SHARE = 0.6
"""Mean share of a changeover that the run pays if it loses the machine during the changeover."""


@dataclass(frozen=True)
class Pools:
    """The spot pools of a job at one moment. Prices are per second. All values are hashable."""

    prices: tuple[float, ...]
    on_demand_price: float
    transfer: tuple[tuple[float, ...], ...]
    """Cost of the transfer of the checkpoint, as (from, to). The last row is for a run without a checkpoint."""
    transfer_to_on_demand: tuple[float, ...]
    on_demand_source: int
    """The row of `transfer` for a job on on-demand."""
    changeover_seconds: float
    least_slack_seconds: float
    """Least slack in seconds at which the run need not use on-demand for the rest of the work."""
    up_rates: tuple[tuple[float, ...], ...]
    """Hazards of up intervals, as (pool, age)."""
    down_rates: tuple[tuple[float, ...], ...]
    shares: tuple[float, ...]
    """The probability that a pool without a recent request is up."""
    lost_by_a_death_seconds: float = 0.0
    handover_seconds: float = 0.0
    """Seconds of an overlapping move in which neither machine makes progress."""
    moves: Moves = "by_restart"


class Costs(NamedTuple):
    """The expected costs from one moment to the goal, by choice."""

    stay: Floats
    """Cost of keeping the spot machine, as (pool, age)."""
    idle: Floats
    """Cost of waiting while all pools are down, as (source, age)."""
    wait: Floats
    """Cost of waiting for the pool with the checkpoint if no other pool is requested, as (pool, age)."""
    on_demand: Floats
    """Cost of staying on on-demand, as (age,)."""
    start_on_demand: Floats
    """Cost of starting on-demand while the pools have been down for an age, as (source, age)."""
    start: Floats
    """Cost of starting on a spot machine without an earlier machine, as (young or unknown age, source, pool)."""
    move: Floats
    """Cost of moving from a working machine to a spot machine, as (young or unknown age, pool or on-demand, pool)."""


class Table:
    """The costs for each grid point of remaining time and slack."""

    def __init__(self, steps: list[Costs], *, first: int, step_seconds: float, slack_step_seconds: float) -> None:
        self._steps, self._first, self._step, self._slack_step = steps, first, step_seconds, slack_step_seconds

    def at(self, remaining_seconds: float, slack_seconds: float) -> Costs:
        """Return the costs at one moment, interpolated in the slack, and in the remaining time for equal work."""
        work = max(remaining_seconds - slack_seconds, 0.0)
        at = remaining_seconds / self._step - self._first
        at = min(max(at, 0.0), len(self._steps) - 1.0)
        before, part = int(at), at - int(at)
        found = self._in_step(before, work)
        if part < _SAME:
            return found
        later = self._in_step(before + 1, work)
        return Costs(*((1 - part) * one + part * other for one, other in zip(found, later, strict=True)))

    def _in_step(self, number: int, work_seconds: float) -> Costs:
        found = self._steps[number]
        slack = (number + self._first) * self._step - work_seconds
        at = min(max(slack / self._slack_step, 0.0), found.on_demand.shape[-1] - 1.001)
        whole, part = int(at), at - int(at)
        return Costs(*((1 - part) * each[..., whole] + part * each[..., whole + 1] for each in found))


def solve(
    pools: Pools,
    *,
    remaining_seconds: float,
    slack_seconds: float,
    step_seconds: float,
    slack_step_seconds: float,
    most_steps: int | None = None,
) -> Table:
    """Return the table for a job with a given remaining time and a maximum slack.

    If `most_steps` is given, the table contains only the `most_steps` steps with the longest remaining times.
    """
    slack: Floats = np.arange(math.ceil(slack_seconds / slack_step_seconds) + 2, dtype=float) * slack_step_seconds
    solving = _Solving(pools, slack, step_seconds, slack_step_seconds)
    count = max(math.ceil(remaining_seconds / step_seconds - 1e-9), 1)
    kept = count if most_steps is None else min(most_steps, count)
    steps: deque[Costs] = deque(maxlen=kept)
    for number in range(1, count + 1):
        steps.append(solving.back(number * step_seconds))
    first = count - kept + 1
    return Table(list(steps), first=first, step_seconds=step_seconds, slack_step_seconds=slack_step_seconds)


class _Later(NamedTuple):
    """The lowest costs at a later moment, by state."""

    spot: Floats
    idle: Floats
    waiting: Floats
    on_demand: Floats


class _Solving:
    """Computes the costs step by step, backwards in time."""

    def __init__(self, pools: Pools, slack: Floats, step_seconds: float, slack_step_seconds: float) -> None:
        self._pools, self._slack, self._step, self._slack_step = pools, slack, step_seconds, slack_step_seconds
        count, size = len(pools.prices), len(slack)
        self._own = np.arange(count)
        self._prices, self._transfer = np.array(pools.prices), np.array(pools.transfer)
        self._others = np.where(np.eye(count, dtype=bool), 0.0, np.array(pools.shares))
        """The probability that another pool is up when a machine dies, as (pool of the machine, other pool)."""
        self._to_on_demand = np.array(pools.transfer_to_on_demand)
        up_rates, down_rates = np.array(pools.up_rates), np.array(pools.down_rates)
        widths = np.diff(np.concatenate([[0.0], AGE_EDGES_SECONDS]))
        self._older = np.append(np.minimum(step_seconds / widths, 1.0), 0.0)[:, None]
        """The share of the intervals in each age bin that are in the next bin after a step."""
        self._ends, self._comes = -np.expm1(-up_rates * step_seconds), -np.expm1(-down_rates * step_seconds)
        ages = (0.0, UNKNOWN_AGE_SECONDS)
        self._survives = [survival(up_rates, age, pools.changeover_seconds)[:, None] for age in ages]
        self._bin_after = [age_bin(age + pools.changeover_seconds) for age in ages]
        self._is_forced: Flags = slack < pools.least_slack_seconds - 1e-6
        self._has_no_time: Flags = slack - step_seconds < pools.least_slack_seconds
        over = _Later(
            spot=np.zeros((count, BINS, size)),
            idle=np.zeros((count + 1, BINS, size)),
            waiting=np.zeros((count, BINS, size)),
            on_demand=np.zeros((BINS, size)),
        )
        whole, self._boot_part = divmod(pools.changeover_seconds / step_seconds, 1.0)
        self._boot_steps = int(whole)
        # If a boot is shorter than a step, the rest of the step is worked and paid.
        self._rest_of_step = step_seconds - pools.changeover_seconds if not self._boot_steps else 0.0
        self._later: deque[_Later] = deque([over], maxlen=self._boot_steps + 1)
        self._start: Floats | None = None
        self._move: Floats | None = None

    def back(self, remaining: float) -> Costs:
        """Return the costs one step earlier than the costs before."""
        pools, later, slack = self._pools, self._later[0], self._slack
        work, is_done = np.maximum(remaining - slack, 0.0), slack >= remaining
        paid, all_work = np.minimum(work, self._step), pools.on_demand_price * work
        all_on_demand = self._to_on_demand[:, None] + (pools.on_demand_price * (work + pools.changeover_seconds))[None]
        start = self._starts(work)
        move = self._moves(start, work)
        begin = self._begin_on_demand(all_on_demand, work)
        spot, idle, waiting, on_demand = self._with_offers(later)

        idle, wait = self._less_slack(self._lasting(idle), self._step), self._less_slack(waiting, self._step)
        idle[..., self._has_no_time] = wait[..., self._has_no_time] = NEVER
        dead = self._less_slack(later.waiting[:, :1], pools.lost_by_a_death_seconds, otherwise=begin[:-1, :1])
        stay = self._prices[:, None, None] * paid + self._survived(spot) + self._ends[:, :, None] * dead
        remains = np.minimum(pools.on_demand_price * paid + self._lasting(on_demand), all_work)
        remains[:, self._is_forced] = all_work[self._is_forced]
        if pools.moves == "by_restart":
            remains = np.minimum(remains, idle[pools.on_demand_source])

        least_idle = np.minimum(idle, begin)
        asked = self._offered(least_idle[:-1], start[1, :-1], self._others[:, None], most=_MOST_ASKED + 2)
        found = _Later(
            spot=np.minimum(stay, begin[:-1]),
            idle=least_idle,
            waiting=np.minimum(asked, np.minimum(wait, begin[:-1])),
            on_demand=remains,
        )
        forced = all_on_demand[:, None, self._is_forced]
        found.spot[..., self._is_forced] = found.waiting[..., self._is_forced] = forced[:-1]
        found.idle[..., self._is_forced] = forced
        for each in (*found, start, move):
            each[..., is_done] = 0.0
        self._later.appendleft(found)
        self._start, self._move = start, move
        costs = Costs(stay, idle, wait, found.on_demand, begin, start, move)
        # float32 needs half as much memory, and is exact enough to compare costs.
        return Costs(*(cast("Floats", each.astype(np.float32)) for each in costs))

    def _starts(self, work: Floats) -> Floats:
        """Return the cost of a granted spot machine, which the run may lose during the changeover."""
        pools, lost = self._pools, self._after_boot("waiting")[:, 0]
        found = []
        for kind, survives in enumerate(self._survives):
            share = survives + (1 - survives) * _WASTED_SHARE
            then = survives * self._less_slack(self._booted(kind, work), pools.changeover_seconds)
            # A machine that the run loses during the boot does no work in the step.
            boot = pools.changeover_seconds
            gone = self._less_slack(lost, boot + self._rest_of_step, otherwise=self._less_slack(lost, boot))
            then = then + (1 - survives) * gone
            cost = self._prices[:, None] * pools.changeover_seconds * share + then
            found.append(self._transfer[:, :, None] + cost[None])
        start = np.array(found)
        start[:, :, self._prices >= pools.on_demand_price] = NEVER
        start[..., self._is_forced] = NEVER
        return start

    def _moves(self, start: Floats, work: Floats) -> Floats:
        """Return the cost of a move from a working machine to a granted spot machine."""
        pools, on_demand = self._pools, self._pools.on_demand_source
        if pools.moves == "by_restart":
            return np.concatenate([start[:, :-1], start[:, on_demand : on_demand + 1]], axis=1)
        if pools.moves == "none":
            return np.full_like(start, NEVER)
        boot, unknown = pools.changeover_seconds, age_bin(UNKNOWN_AGE_SECONDS)
        own_prices = np.append(self._prices, pools.on_demand_price)
        way = np.concatenate([self._transfer[:-1], self._transfer[on_demand : on_demand + 1]])
        rest = own_prices[:, None] * np.minimum(work, self._rest_of_step)
        stays = np.concatenate([self._after_boot("spot")[:, unknown], self._after_boot("on_demand")[:1]]) + rest
        paid = own_prices[:, None, None] * np.minimum(work, boot)
        found = []
        for kind, survives in enumerate(self._survives):
            share = survives + (1 - survives) * _WASTED_SHARE
            boots = self._prices[:, None] * boot * share
            # The new machine pays the hand-over as work, because it has less slack at the same time.
            then = self._less_slack(self._booted(kind, work), pools.handover_seconds)
            handed = survives[None] * own_prices[:, None, None] * pools.handover_seconds
            moved = way[:, :, None] + paid + handed + (boots + survives * then)[None]
            found.append(moved + (1 - survives)[None] * stays[:, None])
        move = np.array(found)
        # A move loses the knowledge about the other pools, so a move to a dearer pool could seem to save money.
        move[:, self._prices[None] >= own_prices[:, None]] = NEVER
        move[..., self._is_forced] = NEVER
        return move

    def _booted(self, kind: int, work: Floats) -> Floats:
        """Return the cost of a spot machine after its boot."""
        rest = self._prices[:, None] * np.minimum(work, self._rest_of_step)
        return np.asarray(rest + self._after_boot("spot")[:, self._bin_after[kind]])

    def _begin_on_demand(self, all_on_demand: Floats, work: Floats) -> Floats:
        pools = self._pools
        rest = pools.on_demand_price * np.minimum(work, self._rest_of_step)
        then = self._less_slack(rest + self._after_boot("on_demand"), pools.changeover_seconds)
        begin = self._to_on_demand[:, None, None] + pools.on_demand_price * pools.changeover_seconds + then[None]
        return np.where(self._is_forced, all_on_demand[:, None], np.minimum(begin, all_on_demand[:, None]))

    def _with_offers(self, later: _Later) -> _Later:
        """Return the costs at the end of a step in which pools may have come up."""
        if self._start is None or self._move is None:
            return later
        young, by_age = self._start[0], self._comes.T[None]
        # The other pools have been down for about as long as this machine has worked.
        others = np.repeat(by_age, len(self._own), axis=0)
        others[self._own, :, self._own] = 0.0
        spot = self._offered(later.spot, self._move[0, :-1], others)
        idle = self._offered(later.idle, young, by_age)
        on_demand = self._offered(later.on_demand[None], self._move[0, -1:], by_age)[0]
        own, chance = young[self._own, self._own][:, None], self._comes[:, :, None]
        rest = self._lasting(later.waiting)
        return _Later(spot, idle, chance * np.minimum(own, rest) + (1 - chance) * rest, on_demand)

    def _offered(self, otherwise: Floats, start: Floats, chances: Floats, *, most: int = _MOST_ASKED) -> Floats:
        """Return `otherwise`, or the cost of the pools with a machine (asked in turn) if this cost is lower.

        Shapes: `otherwise` (source, age, slack), `start` (source, pool, slack), `chances` (source or 1, age or 1,
        pool).
        """
        count = min(most, start.shape[1])
        order = np.argsort(start, axis=1)[:, :count]
        costs = np.take_along_axis(start, order, 1)
        rest: Floats | float = 1.0
        found = np.zeros_like(otherwise)
        sources = np.arange(len(order))[:, None, None] if len(chances) > 1 else np.zeros((1, 1, 1), int)
        for at in range(count):
            # Shape (source, age, slack): the probability that the pool of request number `at` has a machine.
            chance = np.moveaxis(chances[sources[..., 0], :, order[:, at]], -1, 1)
            found = found + rest * chance * np.minimum(otherwise, costs[:, None, at])
            rest = rest * (1 - chance)
        return np.asarray(found + rest * otherwise)

    def _survived(self, spot: Floats) -> Floats:
        """Return the expected cost after a step in which the run kept its machine."""
        return np.asarray((1 - self._ends)[:, :, None] * self._lasting(spot))

    def _lasting(self, value: Floats) -> Floats:
        """Return the expected cost after a step in which the interval continues. The last axis but one is the age."""
        older = np.concatenate([value[..., 1:, :], value[..., -1:, :]], axis=-2)
        return np.asarray((1 - self._older) * value + self._older * older)

    def _after_boot(self, name: str) -> Floats:
        """Return the costs of states after a boot, interpolated if the boot ends between two time steps."""
        last = getattr(self._later[min(self._boot_steps, len(self._later) - 1)], name)
        if not self._boot_steps:
            return np.asarray(last)
        before = getattr(self._later[min(self._boot_steps - 1, len(self._later) - 1)], name)
        return np.asarray(before if self._boot_part < 1e-9 else (1 - self._boot_part) * before + self._boot_part * last)

    def _less_slack(self, value: Floats, seconds: float, *, otherwise: Floats | None = None) -> Floats:
        """Return, for each state, the value of the state with `seconds` less slack.

        The value is `otherwise` for a state with less slack than `seconds`. The default of `otherwise` forbids the
        choice.
        """
        if seconds <= 0.0:
            return value
        whole, part = divmod(seconds / self._slack_step, 1.0)
        near = shifted(value, int(whole), otherwise=NEVER)
        if part >= 1e-9:
            far = shifted(value, int(whole) + 1, otherwise=NEVER)
            near = np.where(far < NEVER / 2, (1 - part) * near + part * far, near)
        return near if otherwise is None else np.where(near < NEVER / 2, near, otherwise)
