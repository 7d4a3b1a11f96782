"""The zones and cases of the artifact: availability and prices in each tick, and the cost of each published policy."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from segue.errors import TraceError
from segue.policy.rules.view import Flags, Floats

HOUR = 3600.0
FILE = "pack.json.gz"

SKYNOMAD, UP_S, THEIR_OPTIMUM = (
    "unified_cost_model_risk",
    "multi_region_rc_cr_threshold_eager_failover",
    "multi_region_oracle_dp",
)
"""Names in the artifact of SkyNomad, of Uniform Progress between zones, and of the optimum."""


@dataclass(frozen=True)
class Zone:
    """One instance type in one zone, over the whole trace."""

    name: str
    tick_seconds: float
    up: Flags
    spot_price: Floats
    """Price per hour in each tick, even if spot is down."""
    on_demand_price: float

    @cached_property
    def region(self) -> str:
        """The region. A checkpoint transfer between zones of one region is free."""
        zone = self.name.partition("_")[0]
        return zone[:-1].removesuffix("-")


@dataclass(frozen=True)
class Case:
    """One job in one window of the traces, with the costs of the published policies."""

    sweep: str
    scenario: str
    zones: tuple[Zone, ...]
    """The zones, cut to the window. The first tick is the job's first tick."""
    work_seconds: float
    deadline_seconds: float
    restart_seconds: float
    checkpoint_gb: float
    window: int
    published: Mapping[str, float]

    @property
    def tick_seconds(self) -> float:
        return self.zones[0].tick_seconds

    @property
    def ticks(self) -> int:
        """Whole ticks until the deadline."""
        return math.floor(self.deadline_seconds / self.tick_seconds + 1e-9)

    @property
    def is_all_on_demand(self) -> bool:
        """Whether there is no time for a restart. The artifact then charges every policy for on-demand."""
        return self.work_seconds + self.restart_seconds > self.deadline_seconds

    @property
    def point(self) -> str:
        """The point of the sweep to which the case belongs."""
        ratio = self.deadline_seconds / self.work_seconds
        return f"{self.sweep} {self.scenario} {ratio:.2f} {self.checkpoint_gb:g}"

    def transfer_cost(self, source: int | None, target: int) -> float:
        """The price of the checkpoint's transfer between two zones, as the artifact charges it."""
        if source is None or self.zones[source].region == self.zones[target].region:
            return 0.0
        regions = {self.zones[source].region, self.zones[target].region}
        return self.checkpoint_gb * (0.01 if regions == {"us-east-1", "us-east-2"} else 0.02)


def read_cases(folder: Path) -> list[Case]:
    """Every case of the artifact.

    Raises:
        TraceError: the folder has no such file, or the file cannot be read.
    """
    file = folder / FILE
    try:
        with gzip.open(file, "rt", encoding="utf-8") as opened:
            pack = json.load(opened)
        zones = {name: _zone(name, found) for name, found in pack["traces"].items()}
        return [_case(found, zones) for found in pack["cases"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = f"cannot be read ({type(error).__name__}: {error})"
        fix = "give the folder with the converted artifact, which is not part of segue."
        raise TraceError(source=str(file), why=why, fix=fix) from None


def _zone(name: str, found: Mapping[str, Any]) -> Zone:
    up = np.concatenate([np.full(count, bool(value)) for value, count in found["up"]])
    price = np.concatenate([np.full(count, float(value)) for value, count in found["spot"]])
    return Zone(name, float(found["tick"]), up, price, float(found["on_demand"]))


def _case(found: Mapping[str, Any], zones: Mapping[str, Zone]) -> Case:
    tick = zones[found["regions"][0]].tick_seconds
    # The windows tile the trace, so the start is a multiple of the window. One table rounds it in its last digit, which
    # would be another tick.
    start_hours = round(found["start_h"] / found["deadline_h"]) * found["deadline_h"]
    first = math.ceil(start_hours * HOUR / tick)
    ticks = math.floor(found["deadline_h"] * HOUR / tick + 1e-9)
    return Case(
        sweep=found["sweep"],
        scenario=found["scenario"],
        zones=_cut([zones[name] for name in found["regions"]], first, first + ticks),
        work_seconds=found["work_h"] * HOUR,
        deadline_seconds=found["deadline_h"] * HOUR,
        restart_seconds=found["restart_h"] * HOUR,
        checkpoint_gb=found["checkpoint_gb"],
        window=found["window"],
        published=found["published"],
    )


def _cut(zones: Sequence[Zone], first: int, last: int) -> tuple[Zone, ...]:
    return tuple(
        Zone(zone.name, zone.tick_seconds, zone.up[first:last], zone.spot_price[first:last], zone.on_demand_price)
        for zone in zones
    )
