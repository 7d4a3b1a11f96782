"""Uniform Progress over several zones, as the artifact runs it ("UP(S)"): the cross-check of the simulation.

The rules are those of "Can't Be Late" (NSDI '24) with the cheapest zone first; after a preemption, the zones of the
region that was lost come last.
"""

from __future__ import annotations

import math

from benchmarks.deadline.skynomad.world import World


class UniformProgress:
    """One run's policy."""

    def __init__(self) -> None:
        self._last_zone: int | None = None

    def act(self, world: World) -> None:
        machine = world.machine
        if machine is not None:
            self._last_zone = machine.zone
        is_spot, is_on_demand = machine is not None and machine.is_spot, machine is not None and not machine.is_spot
        wish = self._wish(world, is_spot=is_spot, is_on_demand=is_on_demand, has_spot=True)
        if machine is not None:
            if wish == ("spot" if machine.is_spot else "on-demand"):
                return
            world.stop()
        if wish == "spot":
            if any(world.try_spot(zone) for zone in self._order(world)):
                return
            if is_on_demand and self._may_leave(world) and self._is_kept(world):
                return
            wish = self._wish(world, is_spot=False, is_on_demand=False, has_spot=False)
        if wish == "on-demand":
            zone = machine.zone if machine is not None else world.last_zone
            world.use_on_demand(zone or 0)

    def _order(self, world: World) -> list[int]:
        zones = world.case.zones
        lost = None if self._last_zone is None else zones[self._last_zone].region
        return sorted(range(len(zones)), key=lambda zone: (zones[zone].region == lost, world.spot_price(zone)))

    def _wish(self, world: World, *, is_spot: bool, is_on_demand: bool, has_spot: bool) -> str:
        case, left = world.case, world.time_left_seconds
        wish = "spot" if has_spot else "none"
        if self._ahead(world) < 0:
            wish = "spot" if has_spot else "on-demand"
        if is_on_demand and (not has_spot or not self._may_leave(world)):
            wish = "on-demand"
        if self._needed(world, 2) > left and not is_spot:
            wish = "on-demand"
        if self._needed(world, 1) >= left:
            wish = "spot" if is_spot and world.restart_left_seconds < 1e-3 else "on-demand"
            if not case.restart_seconds and has_spot:
                wish = "spot"
        if is_on_demand and has_spot and wish == "on-demand" and self._may_leave(world):
            wish = "spot"
        return wish

    def _is_kept(self, world: World) -> bool:
        """Whether only the last rule requests spot, so that the job waits if there is no spot."""
        case, left = world.case, world.time_left_seconds
        return self._needed(world, 2) > left or self._needed(world, 1) >= left or case.restart_seconds < 0

    def _ahead(self, world: World) -> float:
        """Seconds of work by which the job is ahead of uniform progress."""
        case = world.case
        return world.done_seconds - world.tick * case.tick_seconds * case.work_seconds / case.deadline_seconds

    def _may_leave(self, world: World) -> bool:
        """Whether a job on on-demand may return to spot, because it is ahead by two restarts."""
        case = world.case
        after = world.tick * case.tick_seconds + 2 * case.restart_seconds
        return after * case.work_seconds / case.deadline_seconds - world.done_seconds < 0

    def _needed(self, world: World, restarts: int) -> float:
        case = world.case
        work = world.work_left_seconds + restarts * case.restart_seconds
        return math.ceil(work / case.tick_seconds) * case.tick_seconds
