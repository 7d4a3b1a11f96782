"""PLAN over several pools, for one case of the yardstick: the choice from the table, with the observations of the
run."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.deadline.skynomad.cases import HOUR, Case
from benchmarks.deadline.skynomad.world import World
from segue.policy.rules.pool_beliefs import UNKNOWN_AGE_SECONDS, Beliefs, Weights, age_bin
from segue.policy.rules.pool_table import Costs, Moves, Pools, Table, solve

_LEAST_STEP_SECONDS, _SHORT_STEPS = 400.0, 3
_SLACK_STEPS, _SLACK_PARTS = 150, 5
_UNSEEN_SECONDS = 3600.0
"""Time without an observation after which a request to a pool shows how often the pool is up."""
_RECENT_TICKS = 1.5
_STILL_DOWN_SECONDS = 2 * HOUR
_PRICE_STEP = 0.03
"""Relative change of a price after which a table is solved again."""

WEIGHTS = Weights()


@dataclass
class _Seen:
    """Time and state of the last observation of a pool."""

    at_seconds: float = -math.inf
    down_since: float | None = None
    last_down: float = -math.inf


class PlanOverPools:
    """The policy of one run. It sees list prices, its own machine, and the answers to its requests."""

    def __init__(self, case: Case, *, moves: Moves = "by_restart") -> None:
        zones = range(len(case.zones))
        self._case, self._beliefs = case, Beliefs(len(case.zones), WEIGHTS)
        self._moves = moves
        tick = case.tick_seconds
        self._step = tick if tick >= _LEAST_STEP_SECONDS else _SHORT_STEPS * tick
        self._transfer = np.array([[case.transfer_cost(source, zone) for zone in zones] for source in (*zones, None)])
        self._on_demand = min(zones, key=lambda zone: case.zones[zone].on_demand_price)
        self._seen = [_Seen() for _ in zones]
        self._held: tuple[int, float, float] | None = None
        """The pool of the spot machine, the time at which the machine was granted, and the age of the interval at this
        time."""
        self._solved: tuple[object, Table] | None = None

    def act(self, world: World) -> None:
        now = world.tick * self._case.tick_seconds
        self._look(world, now)
        costs = self._table(world).at(world.time_left_seconds, world.time_left_seconds - world.work_left_seconds)
        present, choice = self._present(world, costs, now)
        for cost, zone in self._offers(world, costs, now):
            if cost >= present - 1e-9:
                break
            if self._ask(world, zone, now):
                return
        if choice == "on-demand":
            self._release(now)
            world.use_on_demand(self._on_demand)

    def _look(self, world: World, now: float) -> None:
        """Record whether the machine still runs or was lost."""
        if self._held is None:
            return
        zone, since, age = self._held
        self._seen[zone].at_seconds = now
        if world.machine is None:
            self._beliefs.up.add(zone, age, now - since, has_ended=True)
            self._seen[zone].down_since = self._seen[zone].last_down = now
            self._held = None

    def _table(self, world: World) -> Table:
        prices = np.array([world.spot_price(zone) for zone in range(len(self._seen))])
        key = (self._beliefs.version, tuple(np.rint(np.log(prices) / _PRICE_STEP)))
        if self._solved is None or self._solved[0] != key:
            slack = world.time_left_seconds - world.work_left_seconds
            slack_step = max(self._step / _SLACK_PARTS, slack / _SLACK_STEPS)
            table = solve(
                self._pools(prices),
                remaining_seconds=world.time_left_seconds + self._step,
                slack_seconds=slack + slack_step,
                step_seconds=self._step,
                slack_step_seconds=slack_step,
            )
            self._solved = (key, table)
        return self._solved[1]

    def _pools(self, prices: np.ndarray) -> Pools:
        case = self._case
        return Pools(
            prices=tuple(prices / HOUR),
            on_demand_price=case.zones[self._on_demand].on_demand_price / HOUR,
            transfer=_tuples(self._transfer),
            transfer_to_on_demand=tuple(self._transfer[:, self._on_demand]),
            on_demand_source=self._on_demand,
            changeover_seconds=case.restart_seconds,
            least_slack_seconds=case.restart_seconds + (case.tick_seconds if self._moves == "by_restart" else 0.0),
            moves=self._moves,
            up_rates=_tuples(self._beliefs.up.rates()),
            down_rates=_tuples(self._beliefs.down.rates()),
            shares=tuple(self._beliefs.shares()),
        )

    def _present(self, world: World, costs: Costs, now: float) -> tuple[float, str]:
        """The cost and the name of the best choice without a request to a pool."""
        source = world.last_zone if world.last_zone is not None else len(self._seen)
        waited = age_bin(self._down_seconds(now))
        if self._held is not None:
            zone, since, age = self._held
            begin = float(costs.start_on_demand[source, waited])
            stay = float(costs.stay[zone, age_bin(age + now - since)])
            return (stay, "stay") if stay <= begin else (begin, "on-demand")
        if world.machine is not None:
            return float(costs.on_demand[waited]), "kept"
        idle, begin = float(costs.idle[source, waited]), float(costs.start_on_demand[source, waited])
        others = [zone for zone in range(len(self._seen)) if zone != source]
        if world.last_zone is not None and not all(self._was_down(zone, now) for zone in others):
            idle = min(idle, float(costs.wait[source, waited]))
        return (idle, "idle") if idle <= begin else (begin, "on-demand")

    def _offers(self, world: World, costs: Costs, now: float) -> list[tuple[float, int]]:
        """The other pools by the cost of a start there."""
        source = world.last_zone if world.last_zone is not None else len(self._seen)
        held = self._held[0] if self._held is not None else None
        has_machine = world.machine is not None
        asked, row = (costs.move, -1 if held is None else held) if has_machine else (costs.start, source)
        return sorted(
            (float(asked[0 if self._is_down(zone, now) else 1, row, zone]), zone)
            for zone in range(len(self._seen))
            if zone != held
        )

    def _ask(self, world: World, zone: int, now: float) -> bool:
        seen, was_down = self._seen[zone], self._is_down(zone, now)
        is_granted = world.try_spot(zone)
        if now - seen.at_seconds > _UNSEEN_SECONDS:
            self._beliefs.asked(zone, is_granted=is_granted)
        seen.at_seconds = now
        if not is_granted:
            if seen.down_since is None or not was_down:
                seen.down_since = now
            seen.last_down = now
            return False
        self._release(now)
        if seen.down_since is not None:
            self._beliefs.down.add(zone, 0.0, now - seen.down_since, has_ended=True)
            seen.down_since = None
        self._held = (zone, now, 0.0 if was_down else UNKNOWN_AGE_SECONDS)
        return True

    def _down_seconds(self, now: float) -> float:
        """Duration of the current down interval of the pool that went down last, among the pools that were down at the
        last tick."""
        down = [now - (seen.down_since or 0.0) for zone, seen in enumerate(self._seen) if self._is_down(zone, now)]
        return min(down, default=0.0)

    def _is_down(self, zone: int, now: float) -> bool:
        """Whether the pool was down at the last tick. If the pool is up now, its up interval is then young."""
        return now - self._seen[zone].last_down <= _RECENT_TICKS * self._case.tick_seconds

    def _was_down(self, zone: int, now: float) -> bool:
        """Whether the pool was down a short time ago, and is therefore probably still down."""
        return now - self._seen[zone].last_down <= _STILL_DOWN_SECONDS

    def _release(self, now: float) -> None:
        if self._held is not None:
            zone, since, age = self._held
            self._beliefs.up.add(zone, age, now - since, has_ended=False)
            self._held = None


def _tuples(rows: np.ndarray) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in rows.tolist())
