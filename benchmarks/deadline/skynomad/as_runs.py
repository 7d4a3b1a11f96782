"""The rules by which a run chooses among its spot pools today, for one case of the yardstick.

The choice of the pool, the times of the requests and the moves to cheaper pools are those of
`segue.policy.pool_choice`; times are rounded to ticks. Between spot and on-demand, PLAN decides as on one pool, with
the price of the pool that is asked first. As in a run, the price of transfers is not known.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from benchmarks.deadline.skynomad.cases import Case
from benchmarks.deadline.skynomad.world import World
from segue.policy.availability import Interval
from segue.policy.estimates import Situation
from segue.policy.pool_choice import Pool, cheapest, gain_of_a_move, pool_of, requests_of
from segue.policy.rules.hazards import DOWN_RATES, UNKNOWN_AGE_SECONDS, UP_RATES, expected_ends
from segue.policy.rules.plan import Plan
from segue.policy.rules.view import IDLE, ON_DEMAND, SPOT, Intervals, Job, View

_BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
_PRICE_STEP = 0.05
"""PLAN solves a new table when the ratio of the prices has changed by about this share."""


class AsRuns:
    """The policy of one run. It sees list prices, its own machine, and the answers to its requests."""

    def __init__(self, case: Case) -> None:
        self._case, self._plan = case, Plan()
        self._names = [str(number) for number in range(len(case.zones))]
        self._on_demand = min(range(len(case.zones)), key=lambda zone: case.zones[zone].on_demand_price)
        self._seen: tuple[Interval, ...] = ()
        self._held: tuple[int, float] | None = None
        """The zone of the spot machine, and when it was granted."""
        self._waits: dict[int, float] = {}
        """When the zones that were asked in vain were asked first, since the last machine."""
        self._down_at: dict[int, float] = {}
        """When each zone was last seen down."""
        self._idle_since: float | None = None

    def act(self, world: World) -> None:
        now = world.tick * self._case.tick_seconds
        self._note_end(world, now)
        here = self._here(world)
        pools = [self._pool(world, zone, here, now) for zone in range(len(self._names))]
        if world.machine is not None and world.machine.is_spot:
            self._move(world, pools, here, now)
            return
        is_idle = world.machine is None
        self._idle_since = now if self._idle_since is None else self._idle_since
        price = self._case.zones[self._on_demand].on_demand_price
        chosen = cheapest(pools, here=here, on_demand_price=price, now=_at(now)).deployment
        requests = requests_of(pools, chosen, here=here, on_demand_price=price, may_move=True)
        after = {int(each.deployment): each.after_seconds for each in requests} or {int(chosen): 0.0}
        for zone, seconds in after.items():
            is_due = not is_idle or seconds <= now - self._idle_since + self._case.tick_seconds / 2
            age = min(now - self._down_at.get(zone, -math.inf), UNKNOWN_AGE_SECONDS)
            is_wanted = is_idle or self._choose(world, zone, is_up=True, age=age, mode=ON_DEMAND) == SPOT
            if is_due and is_wanted and self._ask(world, zone, now):
                return
        waited = max(now - min(self._waits.values(), default=now), 0.0)
        if is_idle and self._choose(world, int(chosen), is_up=False, age=waited, mode=IDLE) == ON_DEMAND:
            world.use_on_demand(self._on_demand)

    def _move(self, world: World, pools: list[Pool], here: Situation, now: float) -> None:
        assert self._held is not None
        own, since = self._held
        kept = replace(pools[own], life_seconds=max(pools[own].life_seconds, now - since))
        gains = {zone: gain_of_a_move(kept, pool, here=here) for zone, pool in enumerate(pools) if zone != own}
        slack = world.time_left_seconds - world.work_left_seconds
        if slack < 2 * self._case.restart_seconds + self._case.tick_seconds:
            return
        for zone in sorted(gains, key=lambda zone: -gains[zone]):
            if gains[zone] <= 0:
                return
            if self._ask(world, zone, now):
                return

    def _ask(self, world: World, zone: int, now: float) -> bool:
        held = self._held
        if not world.try_spot(zone):
            self._down_at[zone] = now
            self._waits.setdefault(zone, now)
            return False
        if held is not None:
            self._add(held[0], held[1], now, is_up=True, has_ended=False)
        for other, since in self._waits.items():
            self._add(other, since, now, is_up=False, has_ended=other == zone)
        self._held, self._waits, self._idle_since = (zone, now), {}, None
        return True

    def _note_end(self, world: World, now: float) -> None:
        if self._held is not None and world.machine is None:
            self._add(self._held[0], self._held[1], now, is_up=True, has_ended=True)
            self._down_at[self._held[0]] = now
            self._held, self._idle_since = None, now

    def _add(self, zone: int, since: float, now: float, *, is_up: bool, has_ended: bool) -> None:
        found = Interval(is_up, _at(since), now - since, has_ended=has_ended, deployment=self._names[zone])
        self._seen = (*self._seen, found)

    def _here(self, world: World) -> Situation:
        return Situation(
            remaining_seconds=world.time_left_seconds,
            work_seconds=world.work_left_seconds,
            changeover_seconds=self._case.restart_seconds,
            at_risk_seconds=0.0,
            detection_seconds=0.0,
        )

    def _pool(self, world: World, zone: int, here: Situation, now: float) -> Pool:
        pool = pool_of(self._seen, self._names[zone], price=world.spot_price(zone), here=here, now=_at(now))
        # A request that was refused within this wait does not put the pool last: it is asked in each tick.
        return replace(pool, no_capacity_at=None)

    def _choose(self, world: World, zone: int, *, is_up: bool, age: float, mode: np.int8) -> np.int8:
        case, one = self._case, np.ones(1)
        ratio = case.zones[self._on_demand].on_demand_price / world.spot_price(zone)
        if ratio <= 1:
            return ON_DEMAND
        job = Job(
            total_seconds=case.deadline_seconds,
            work_seconds=case.work_seconds,
            changeover_seconds=case.restart_seconds,
            price_ratio=math.exp(round(math.log(ratio) / _PRICE_STEP) * _PRICE_STEP),
            knowledge="free",
            handover=False,
            decides_every_seconds=case.tick_seconds,
        )
        view = View(
            job=job,
            remaining_seconds=one * world.time_left_seconds,
            work_seconds=one * world.work_left_seconds,
            mode=np.full(1, mode, np.int8),
            is_up=np.full(1, is_up),
            age_seconds=one * (age if is_up or self._seen else UNKNOWN_AGE_SECONDS),
            preemptions=np.zeros(1),
            observed=self._observed(),
        )
        return np.int8(self._plan.choose(view)[0])

    def _observed(self) -> Intervals:
        ups, downs = [each for each in self._seen if each.is_up], [each for each in self._seen if not each.is_up]
        sums = (
            sum(each.has_ended for each in ups),
            sum(expected_ends(UP_RATES, each.seconds) for each in ups),
            sum(each.has_ended for each in downs),
            sum(expected_ends(DOWN_RATES, each.seconds) for each in downs),
        )
        return Intervals(*(np.full(1, float(value)) for value in sums))


def _at(seconds: float) -> datetime:
    return _BEGIN + timedelta(seconds=seconds)
