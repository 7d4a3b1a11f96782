"""Availability traces: read from files, made from hazards. Rows of ticks, up or down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from segue.deadline.view import Flags


@dataclass(frozen=True)
class Trace:
    """Whether spot could be had, tick after tick."""

    name: str
    tick_seconds: float
    up: Flags

    @property
    def seconds(self) -> float:
        return len(self.up) * self.tick_seconds


def read_trace(path: Path) -> Trace:
    """A file of the published data; up means that all of its nodes were."""
    document = json.loads(path.read_text())
    counts, gap = np.asarray(document["data"]), float(document["metadata"]["gap_seconds"])
    name = path.stem
    nodes = next((int(part.removesuffix("node")) for part in name.split("-") if part.endswith("node")), 1)
    up: Flags = np.asarray(counts >= nodes)
    if name.startswith("a23"):
        # Irregular ten-minute probes, written out at the mean of their gaps.
        gap, up = 600.0, up[(np.arange(0, len(up) * gap, 600.0) / gap).astype(int)]
    elif name.startswith("p23") and nodes == 1:
        whole = len(up) // 8 * 8
        gap, up = gap * 8, np.asarray(up[:whole].reshape(-1, 8).all(axis=1))
    return Trace(name, gap, up)


def windows(trace: Trace, *, seconds: float, count: int, random: np.random.Generator) -> Flags:
    """(count, ticks) of the trace from random starts, each `seconds` long."""
    ticks = int(np.ceil(seconds / trace.tick_seconds)) + 1
    starts = random.integers(0, len(trace.up) - ticks + 1, count)
    return np.asarray(trace.up[starts[:, None] + np.arange(ticks)])
