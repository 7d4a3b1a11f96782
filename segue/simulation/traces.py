"""Provides the availability of spot for simulations, from trace files or from synthetic traces.

A trace contains for each tick whether spot was up. Trace files have the format of skypilot-org/spot-traces,
`{"metadata": {"gap_seconds": s}, "data": [available nodes]}`. The name of a file determines the type of the trace (see
`read_trace`). Only simulations read traces. No decision of a run uses a trace.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from segue.errors import TraceError
from segue.policy.rules.hazards import DOWN_RATES, UP_RATES, age_bin
from segue.policy.rules.view import Flags, Floats
from segue.units import duration

_FORGOTTEN = 1e-7
"""Largest share of intervals that may be older than the oldest age in a simulation.

The age of an interval at the first tick is a random value up to the oldest age.
"""


def synthetic_availability(
    random: np.random.Generator,
    runs: int,
    seconds: float,
    tick_seconds: float,
    *,
    up_factor: float = 1.0,
    down_factor: float = 1.0,
) -> Flags:
    """Return availability as an array of (runs, ticks) that covers `seconds`.

    The hazards are the published hazards multiplied by the given positive factors. An `up_factor` of 2 doubles the
    preemption rate. A `down_factor` of 2 doubles the rate at which spot comes back.
    """
    up_rates, down_rates = UP_RATES * up_factor, DOWN_RATES * down_factor
    ticks = int(np.ceil(seconds / tick_seconds)) + 1
    is_up, age = _starts(random, runs, tick_seconds, up_rates, down_rates)
    rows = np.empty((ticks, runs), bool)
    for at in range(ticks):
        rows[at] = is_up
        bins = age_bin(age)
        rate = np.where(is_up, up_rates[bins], down_rates[bins])
        ends = random.random(runs) < -np.expm1(-rate * tick_seconds)
        is_up = is_up ^ ends
        age = np.where(ends, 0.0, age + tick_seconds)
    return np.ascontiguousarray(rows.T)


def _starts(
    random: np.random.Generator, runs: int, tick_seconds: float, up_rates: Floats, down_rates: Floats
) -> tuple[Flags, Floats]:
    """Return random states and ages of spot for the first tick.

    The probability of each (state, age) is proportional to the share of intervals that reach the age.
    """
    up_reach, down_reach = (_reach(rates, tick_seconds) for rates in (up_rates, down_rates))
    weights = np.concatenate([up_reach, down_reach])
    drawn = random.choice(len(weights), runs, p=weights / weights.sum())
    is_up = drawn < len(up_reach)
    return is_up, np.where(is_up, drawn, drawn - len(up_reach)) * tick_seconds


def _reach(rates: Floats, tick_seconds: float) -> Floats:
    """Return the share of intervals that reach each age.

    Ages are in ticks, up to an age that almost no interval reaches.
    """
    oldest = -np.log(_FORGOTTEN) / rates.min()
    ages = np.arange(0.0, oldest + tick_seconds, tick_seconds)
    hazard = rates[age_bin(ages)] * tick_seconds
    return np.asarray(np.exp(-np.concatenate([[0.0], np.cumsum(hazard)[:-1]])))


_NODES = re.compile(r"(?:^|-)(\d+)node(?:-|$)")
_FORMAT = 'give files like {"metadata": {"gap_seconds": 600}, "data": [1, 0, 1]}.'


@dataclass(frozen=True)
class Trace:
    """Spot availability, tick by tick."""

    name: str
    tick_seconds: float
    up: Flags

    @property
    def seconds(self) -> float:
        return len(self.up) * self.tick_seconds

    def finer(self, tick_seconds: float) -> Trace:
        """Return the trace in ticks of at most `tick_seconds`. Each new tick is a whole fraction of an old tick."""
        parts = max(int(np.ceil(self.tick_seconds / tick_seconds - 1e-9)), 1)
        return Trace(self.name, self.tick_seconds / parts, np.repeat(self.up, parts))

    def mean_up_seconds(self) -> float | None:
        """The mean length in seconds of an up interval, or None if the trace has no up interval."""
        begins = np.count_nonzero(self.up & ~np.concatenate([[False], self.up[:-1]]))
        return float(np.count_nonzero(self.up) * self.tick_seconds / begins) if begins else None


def read_traces(path: Path) -> list[Trace]:
    """Return the trace of a file, or the traces of all `.json` files in a folder and its subfolders, sorted by name.

    Raises:
        TraceError: the folder contains no trace, or a file is not a trace.
    """
    if not path.is_dir():
        return [read_trace(path)]
    files = sorted(path.rglob("*.json"))
    if not files:
        raise TraceError(source=str(path), why="holds no .json file", fix=_FORMAT)
    return [read_trace(file) for file in files]


def read_trace(path: Path) -> Trace:
    """Return the trace of a published data file. Spot is up in a tick if all nodes of the trace were available.

    The name of the file determines the type of the trace. With `a23-` in the name, the function resamples the trace to
    the ten-minute period of the probes. With `p23-`, the trace is of a held instance, and its zeros include the start
    of the next instance. The function therefore joins eight samples into one sample, which is up only if all eight are
    up. With `-4node-`, the trace is of four nodes that run at the same time.

    Raises:
        TraceError: the file cannot be read or is not a trace.
    """
    counts, tick_seconds = _counts_and_tick(path)
    gang = _NODES.search(path.stem)
    up: Flags = np.asarray(counts >= (int(gang[1]) if gang else 1))
    if path.stem.startswith("a23"):
        # The file contains irregular ten-minute probes with their mean distance.
        up = up[(np.arange(0, len(up) * tick_seconds, 600.0) / tick_seconds).astype(int)]
        tick_seconds = 600.0
    elif path.stem.startswith("p23") and gang is None:
        whole = len(up) // 8 * 8
        tick_seconds, up = tick_seconds * 8, np.asarray(up[:whole].reshape(-1, 8).all(axis=1))
    return Trace(path.stem, tick_seconds, up)


def windows(trace: Trace, *, seconds: float, count: int, random: np.random.Generator) -> Flags:
    """Return windows of the trace from random starts, as an array of (count, ticks).

    Each window is at least `seconds` long.

    Raises:
        TraceError: the trace is shorter than `seconds`.
    """
    ticks = _ticks(trace, seconds)
    if ticks > len(trace.up):
        raise _too_short(trace.name, f"covers {duration(trace.seconds)}", seconds)
    starts = random.integers(0, len(trace.up) - ticks + 1, count)
    return np.asarray(trace.up[starts[:, None] + np.arange(ticks)])


def long_enough(traces: Sequence[Trace], *, seconds: float) -> tuple[list[Trace], list[Trace]]:
    """Return the traces that are at least `seconds` long, and the traces that are too short.

    Raises:
        TraceError: all traces are too short.
    """
    kept = [trace for trace in traces if _ticks(trace, seconds) <= len(trace.up)]
    if not kept:
        longest = max(trace.seconds for trace in traces)
        named = ", ".join(trace.name for trace in traces)
        covers = "covers" if len(traces) == 1 else "cover at most"
        raise _too_short(named, f"{covers} {duration(longest)}", seconds)
    return kept, [trace for trace in traces if _ticks(trace, seconds) > len(trace.up)]


def _too_short(names: str, covers: str, seconds: float) -> TraceError:
    fix = "use a longer trace or an earlier deadline."
    return TraceError(source=names, why=f"{covers}, and the job needs {duration(seconds)}", fix=fix)


def _ticks(trace: Trace, seconds: float) -> int:
    return int(np.ceil(seconds / trace.tick_seconds)) + 1


def _counts_and_tick(path: Path) -> tuple[np.ndarray, float]:
    document = _document(path)
    metadata = document.get("metadata")
    tick_seconds = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(tick_seconds):
        raise TraceError(source=str(path), why="has no number in metadata.gap_seconds", fix=_FORMAT)
    if not 0 < tick_seconds < float("inf"):
        raise TraceError(
            source=str(path),
            why=f"has metadata.gap_seconds = {tick_seconds}",
            fix="metadata.gap_seconds must be above zero.",
        )
    data = document.get("data")
    if not isinstance(data, list) or not data:
        raise TraceError(source=str(path), why="has no data", fix=_FORMAT)
    if not all(_is_number(count) and 0 <= count < float("inf") for count in data):
        fix = "each entry of data must be a number of available nodes, 0 or more."
        raise TraceError(source=str(path), why="has entries in data that are not numbers of nodes", fix=fix)
    return np.asarray(data, float), float(tick_seconds)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise TraceError(source=str(path), why=why, fix="check the path; it may be a file or a folder.") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(source=str(path), why=f"is not JSON ({error})", fix=_FORMAT) from None
    if not isinstance(document, dict):
        raise TraceError(source=str(path), why="is not a JSON object", fix=_FORMAT)
    return document


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
