"""The exact least possible cost of a case that is known in advance, with a restart that ends within a tick.

A dynamic program goes backwards over the ticks, for every possible amount of remaining work. All progress is a multiple
of the greatest common divisor of tick and restart, so the amounts are exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from benchmarks.deadline.skynomad.cases import HOUR, Case
from segue.policy.rules.view import Floats

_NOTHING_SECONDS = 1e-3


@dataclass(frozen=True)
class _Grid:
    """The units of progress of a case."""

    unit_seconds: int
    units: int
    """Units of progress until the work is done."""
    progress: tuple[int, ...]
    """Units of progress in each tick of a machine since its launch. The last value is also the value of all later
    ticks."""

    @classmethod
    def of(cls, case: Case) -> _Grid:
        tick, restart = round(case.tick_seconds), round(case.restart_seconds)
        unit = math.gcd(tick, restart) or tick
        left, progress = restart, []
        while left > 0:
            progress.append(max(tick - left, 0) // unit)
            left = max(left - tick, 0)
        return cls(unit, math.ceil((case.work_seconds - _NOTHING_SECONDS) / unit), (*progress, tick // unit))


def least_cost(case: Case, *, charges_last_tick: bool = True) -> float:
    """The least cost with which the case meets its deadline.

    `charges_last_tick=False`: the tick in which the work ends costs nothing, as in the published tables.
    """
    if case.is_all_on_demand:
        return (case.work_seconds + case.restart_seconds) / HOUR * min(zone.on_demand_price for zone in case.zones)
    return _Table(case, charges_last_tick=charges_last_tick).solved()


class _Table:
    """The least cost from the beginning of one tick on, for each state, by the units of work left."""

    def __init__(self, case: Case, *, charges_last_tick: bool) -> None:
        self._case, self._grid, self._charges_last = case, _Grid.of(case), charges_last_tick
        zones, size = range(len(case.zones)), self._grid.units + 1
        self._kinds = [(zone, is_spot) for zone in zones for is_spot in (True, False)]
        over = np.full(size, np.inf)
        over[0] = 0.0
        self._idle: list[Floats] = [over for _ in (*zones, None)]
        """Costs without a machine, by the zone of the checkpoint. The last element is the cost before the first
        checkpoint."""
        self._held: dict[tuple[int, bool], list[Floats]] = {
            kind: [over for _ in self._grid.progress] for kind in self._kinds
        }
        """Costs with a machine, by the number of ticks since its launch."""

    def solved(self) -> float:
        for tick in reversed(range(self._case.ticks)):
            self._step_back(tick)
        return float(self._idle[-1][-1])

    def _step_back(self, tick: int) -> None:
        zones, last = self._case.zones, len(self._grid.progress) - 1
        launched: dict[tuple[int, bool], Floats] = {}
        kept: dict[tuple[int, bool], list[Floats]] = {}
        for zone, is_spot in self._kinds:
            if is_spot and not zones[zone].up[tick]:
                continue
            price = float(zones[zone].spot_price[tick]) if is_spot else zones[zone].on_demand_price
            cost, held = price * self._case.tick_seconds / HOUR, self._held[zone, is_spot]
            after = [
                self._after(held[min(age + 1, last)], progress, cost)
                for age, progress in enumerate(self._grid.progress)
            ]
            launched[zone, is_spot], kept[zone, is_spot] = after[0], after
        sources = (*range(len(zones)), None)
        idle = [
            np.minimum.reduce(
                [
                    self._idle[number],
                    *(after + self._case.transfer_cost(source, zone) for (zone, _), after in launched.items()),
                ]
            )
            for number, source in enumerate(sources)
        ]
        for each in idle:
            each[0] = 0.0
        self._held = {
            (zone, is_spot): [np.minimum(idle[zone], each) for each in kept[zone, is_spot]]
            if (zone, is_spot) in kept
            else [idle[zone]] * (last + 1)
            for zone, is_spot in self._kinds
        }
        self._idle = idle

    def _after(self, then: Floats, progress: int, cost: float) -> Floats:
        """The cost of a tick with this progress, and of all that follows it."""
        found = np.empty_like(then)
        found[progress:] = then[: len(then) - progress] + cost
        found[: progress + 1] = cost if self._charges_last else 0.0
        if not progress:
            found[0] = 0.0
        return found
