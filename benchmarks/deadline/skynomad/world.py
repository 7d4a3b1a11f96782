"""One case, tick by tick, with the charging of the artifact.

At the beginning of a tick, spot machines of zones that went down are lost; work until then is kept. Then the policy
acts for the whole tick, which is charged as a whole. Each launch makes no progress for the restart, and charges the
transfer of the checkpoint from the zone of the machine before. If the time that is left is only enough for on-demand
with a restart, on-demand takes over for good, as in the artifact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.deadline.skynomad.cases import HOUR, Case

_NOTHING_SECONDS = 1e-3


@dataclass(frozen=True)
class Machine:
    """The machine that a job holds."""

    zone: int
    is_spot: bool


@dataclass
class World:
    """The state of one run. A policy reads the state, and calls `try_spot`, `use_on_demand` and `stop`. A policy may
    read prices at the current tick, but not availability, which only its requests show.
    """

    case: Case
    tick: int = 0
    done_seconds: float = 0.0
    machine: Machine | None = None
    restart_left_seconds: float = 0.0
    last_zone: int | None = None
    """The zone of the newest machine that ran for a tick. The checkpoint is in this zone."""
    is_taken_over: bool = False
    """Whether the deadline has forced on-demand."""
    launches: int = 0
    _launched: bool = False
    _costs: list[float] = field(default_factory=list)
    _transfers: list[float] = field(default_factory=list)

    @property
    def work_left_seconds(self) -> float:
        return self.case.work_seconds - self.done_seconds

    @property
    def time_left_seconds(self) -> float:
        """Whole ticks until the deadline, in seconds."""
        left = self.case.deadline_seconds - self.tick * self.case.tick_seconds
        return math.floor(left / self.case.tick_seconds + 1e-9) * self.case.tick_seconds

    def spot_price(self, zone: int) -> float:
        """Current price per hour."""
        return float(self.case.zones[zone].spot_price[self.tick])

    def try_spot(self, zone: int) -> bool:
        """Request spot in a zone. A refusal is free and instant. A granted machine replaces the job's current
        machine."""
        if not self.case.zones[zone].up[self.tick]:
            return False
        self._launch(Machine(zone, is_spot=True))
        return True

    def use_on_demand(self, zone: int) -> None:
        """Start on-demand in a zone. If the job already runs on on-demand there, nothing changes."""
        if self.machine != Machine(zone, is_spot=False):
            self._launch(Machine(zone, is_spot=False))

    def stop(self) -> None:
        """Release the machine."""
        self.machine = None

    def _launch(self, machine: Machine) -> None:
        self.machine, self._launched = machine, True
        self.launches += 1

    def pass_tick(self) -> None:
        """Let the tick pass: charge it, make its progress, and lose the spot machine whose zone goes down."""
        case, machine = self.case, self.machine
        self._costs.append(0.0)
        self._transfers.append(0.0)
        if machine is not None:
            zone = case.zones[machine.zone]
            price = float(zone.spot_price[self.tick]) if machine.is_spot else zone.on_demand_price
            self._costs[-1] = price * case.tick_seconds / HOUR
            if self._launched:
                self.restart_left_seconds = case.restart_seconds
                self._transfers[-1] = case.transfer_cost(self.last_zone, machine.zone)
            worked = max(case.tick_seconds - self.restart_left_seconds, 0.0)
            self.restart_left_seconds = max(self.restart_left_seconds - case.tick_seconds, 0.0)
            self.done_seconds += min(worked, self.work_left_seconds)
            self.last_zone = machine.zone
        self._launched = False
        self.tick += 1
        is_over = self.tick >= len(case.zones[0].up)
        if machine is not None and machine.is_spot and (is_over or not case.zones[machine.zone].up[self.tick]):
            self.machine = None

    @property
    def is_done(self) -> bool:
        return self.work_left_seconds <= _NOTHING_SECONDS

    @property
    def cost(self) -> float:
        """All charges so far."""
        return sum(self._costs) + sum(self._transfers)

    @property
    def cost_as_published(self) -> float:
        """The cost without the last tick, as in the published tables."""
        return sum(self._costs[:-1]) + sum(self._transfers[:-1])


class Policy(Protocol):
    """A policy for one run: it acts once in each tick."""

    def act(self, world: World) -> None: ...


@dataclass(frozen=True)
class Outcome:
    """The result of one policy in one case."""

    cost: float
    cost_as_published: float
    is_late: bool
    was_taken_over: bool
    launches: int


def run(case: Case, policy: Policy) -> Outcome:
    """Run the case with this policy until the work is done, or the deadline has passed."""
    if case.is_all_on_demand:
        cost = (case.work_seconds + case.restart_seconds) / HOUR * min(zone.on_demand_price for zone in case.zones)
        return Outcome(cost, cost, is_late=False, was_taken_over=True, launches=1)
    world = World(case)
    while not world.is_done and world.tick < case.ticks:
        world.is_taken_over = world.is_taken_over or _must_take_over(world)
        if world.is_taken_over:
            _take_over(world)
        else:
            policy.act(world)
        world.pass_tick()
    return Outcome(world.cost, world.cost_as_published, not world.is_done, world.is_taken_over, world.launches)


def _must_take_over(world: World) -> bool:
    case = world.case
    needed = math.ceil((world.work_left_seconds + case.restart_seconds) / case.tick_seconds) * case.tick_seconds
    return needed >= world.time_left_seconds


def _take_over(world: World) -> None:
    """Use on-demand in the zone of the machine. Without a machine, use the zone in which the remaining work costs
    least."""
    machine = world.machine
    if machine is not None:
        world.use_on_demand(machine.zone)
        return
    case = world.case

    def cost(zone: int) -> float:
        rest = case.zones[zone].on_demand_price * world.work_left_seconds / HOUR
        return rest + case.transfer_cost(world.last_zone, zone)

    world.use_on_demand(min(range(len(case.zones)), key=cost))
