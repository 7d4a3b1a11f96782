"""PLAN over several zones of one instance type, divided by the least cost on one zone alone that was possible.

The zones are availability traces of one kind that cover the same time. As in the published setting of "Can't Be Late"
(NSDI 2024), spot costs the same in all zones, on-demand costs three times as much, seconds are charged, and a death
loses no work. As in a run, the job leaves a working machine when the next machine has booted, and both machines are
paid. The least cost, in hindsight, does not include such overlaps.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common.workers import workers
from benchmarks.deadline.optimum import cheapest
from benchmarks.deadline.policies import HOUR, PRICE_RATIO
from benchmarks.deadline.skynomad.cases import Case, Zone
from benchmarks.deadline.skynomad.plan import PlanOverPools
from benchmarks.deadline.skynomad.world import Machine, World
from segue.errors import TraceError
from segue.policy.rules.view import Job
from segue.simulation.traces import Trace, read_traces

SHARES, CHANGEOVER_HOURS = (0.6, 0.8, 0.95), 0.05
_WORK_SHARE = 0.5
"""The longest deadline covers this part of the traces, so that random starts differ; at most 48 h are work."""
_REGION = re.compile(r"(?:us|eu|ap|europe|asia)-[a-z]+-?\d[a-z]?")


@dataclass(frozen=True)
class Group:
    """Zones of one instance type over the same time."""

    name: str
    traces: tuple[Trace, ...]


class Row(NamedTuple):
    """The costs of one setting of a group, in hours of spot, summed over the starts."""

    group: str
    zones: int
    ours: float
    of_each: tuple[float, ...]
    """The least possible cost on each zone alone."""
    late: int
    runs: int


class Overlapping(World):
    """A world in which a machine works until the next machine has booted, and in which seconds are charged."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self._next: Machine | None = None

    def _launch(self, machine: Machine) -> None:
        self.launches += 1
        if self.machine is None or self.restart_left_seconds > 0:
            self.machine, self.restart_left_seconds = machine, self.case.restart_seconds
        else:
            self._next = machine

    def pass_tick(self) -> None:
        case, boot, tick = self.case, self.case.restart_seconds, self.case.tick_seconds
        if self.machine is not None:
            booting = min(self.restart_left_seconds, tick)
            used = min(booting + self.work_left_seconds, tick)
            old = used if self._next is None else min(used, boot)
            self._costs.append(old / HOUR * self._price(self.machine))
            if self._next is not None:
                self._costs.append(used / HOUR * self._price(self._next))
                self.machine, self._next = self._next, None
            self.done_seconds += used - booting
            self.restart_left_seconds -= booting
            self.last_zone = self.machine.zone
        self.tick += 1
        is_over = self.tick >= len(case.zones[0].up)
        machine = self.machine
        if machine is not None and machine.is_spot and (is_over or not case.zones[machine.zone].up[self.tick]):
            self.machine, self.restart_left_seconds = None, 0.0

    def _price(self, machine: Machine) -> float:
        return 1.0 if machine.is_spot else PRICE_RATIO

    @property
    def must_take_over(self) -> bool:
        """Whether only on-demand is safe: a start that dies, or a tick without a machine, takes too much slack."""
        slack = self.time_left_seconds - self.work_left_seconds
        works = self.machine is not None and not self.restart_left_seconds
        return slack < self.case.restart_seconds + (0.0 if works else self.case.tick_seconds)


def measure(folder: Path, *, starts: int, jobs: int, say: Callable[[str], None], seed: int = 0) -> dict[str, Any]:
    """Run every group and setting; one row per group, and one for all groups of two and of three zones.

    Raises:
        TraceError: the traces cannot be read, or no two of them are zones of one type.
    """
    groups = list(groups_of(read_traces(folder)))
    if not groups:
        why = "has no two traces that differ only in their zone and cover the same time"
        raise TraceError(source=str(folder), why=why, fix="give a folder with the traces of several zones of one type.")
    asked = [(group, share) for group in groups for share in SHARES]
    rows = []
    with workers(jobs) as pool:
        for row in pool.map(partial(_run, starts=starts, seed=seed), asked):
            rows.append(row)
            say(f"{len(rows)} of {len(asked)} settings")
    names = {row.group: [each for each in rows if each.group == row.group] for row in rows}
    names |= {f"all of {count}": [each for each in rows if each.zones == count] for count in (2, 3)}
    found: dict[str, Any] = {name: _pooled(each) for name, each in names.items() if each}
    return found | {"late": sum(row.late for row in rows), "runs": sum(row.runs for row in rows)}


def groups_of(traces: Sequence[Trace]) -> Iterator[Group]:
    """Every two and every three traces that differ only in their zone, and cover the same time."""
    kinds: dict[tuple[str, int, float], list[Trace]] = {}
    for trace in traces:
        kind = (_REGION.sub("ZONE", trace.name), len(trace.up), trace.tick_seconds)
        kinds.setdefault(kind, []).append(trace)
    for (name, _, _), found in kinds.items():
        for count in (2, 3):
            for some in combinations(found, count):
                zones = "+".join(_REGION.findall(trace.name)[0] for trace in some)
                yield Group(name.replace("ZONE", zones), some)


def _run(asked: tuple[Group, float], *, starts: int, seed: int) -> Row:
    group, share = asked
    first = group.traces[0]
    work = min(48 * HOUR, _WORK_SHARE * first.seconds * share)
    job = Job(work / share, work, CHANGEOVER_HOURS * HOUR, PRICE_RATIO, knowledge="free", handover=True)
    ticks = int(np.ceil(job.total_seconds / first.tick_seconds)) + 1
    random = np.random.default_rng(zlib.crc32(f"{seed} {group.name} {share}".encode()))
    begins = random.integers(0, len(first.up) - ticks + 1, starts)
    windows = [np.array([trace.up[begin : begin + ticks] for begin in begins]) for trace in group.traces]
    of_each = [float(cheapest(job, up, tick_seconds=first.tick_seconds).sum()) / HOUR for up in windows]
    ended = [_one([up[number] for up in windows], job, first.tick_seconds) for number in range(starts)]
    late = sum(not is_done for _, is_done in ended)
    return Row(group.name, len(windows), sum(cost for cost, _ in ended), tuple(of_each), late, starts)


def _one(up: Sequence[np.ndarray], job: Job, tick_seconds: float) -> tuple[float, bool]:
    """The cost of one run in hours of spot, and whether it met its deadline."""
    prices = np.full(len(up[0]), 1.0)
    zones = tuple(Zone(str(number), tick_seconds, each, prices, PRICE_RATIO) for number, each in enumerate(up))
    case = Case("", "", zones, job.work_seconds, job.total_seconds, job.changeover_seconds, 0.0, 0, {})
    world, policy = Overlapping(case), PlanOverPools(case, moves="overlapping")
    while not world.is_done and world.tick < case.ticks + 1:
        if world.must_take_over:
            world.use_on_demand(0)
        else:
            policy.act(world)
        world.pass_tick()
    return world.cost, world.is_done


def _pooled(rows: Sequence[Row]) -> dict[str, float]:
    ours = sum(row.ours for row in rows)
    best = sum(min(row.of_each) for row in rows)
    mean = sum(sum(row.of_each) / row.zones for row in rows)
    return {
        "runs": sum(row.runs for row in rows),
        "ours_vs_best_zone": round(ours / best, 4),
        "ours_vs_mean_zone": round(ours / mean, 4),
    }
