"""Availability traces read from files. Rows of ticks, up or down.

A file is as skypilot-org/spot-traces publishes it, `{"metadata": {"gap_seconds": s}, "data": [available nodes]}`, and
its name tells the kind (see `read_trace`). Only simulations read traces; no run's decision rests on one.
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
from segue.policy.rules.view import Flags

_NODES = re.compile(r"(?:^|-)(\d+)node(?:-|$)")
_SHAPE = 'Give files like {"metadata": {"gap_seconds": 600}, "data": [1, 0, 1]}.'


@dataclass(frozen=True)
class Trace:
    """Whether spot could be had, tick after tick."""

    name: str
    tick_seconds: float
    up: Flags

    @property
    def seconds(self) -> float:
        return len(self.up) * self.tick_seconds

    def finer(self, tick_seconds: float) -> Trace:
        """The same in ticks of at most so long, each a whole part of what they were."""
        parts = max(int(np.ceil(self.tick_seconds / tick_seconds - 1e-9)), 1)
        return Trace(self.name, self.tick_seconds / parts, np.repeat(self.up, parts))

    def mean_up_seconds(self) -> float | None:
        """The mean length of a stretch in which spot could be had; None when there was none."""
        begins = np.count_nonzero(self.up & ~np.concatenate([[False], self.up[:-1]]))
        return float(np.count_nonzero(self.up) * self.tick_seconds / begins) if begins else None


def read_traces(path: Path) -> list[Trace]:
    """The trace of a file, or those of all `.json` files in a folder and below it, by name.

    Raises:
        TraceError: there is none, or one is not a trace; names the file and the fix.
    """
    if not path.is_dir():
        return [read_trace(path)]
    files = sorted(path.rglob("*.json"))
    if not files:
        raise TraceError(source=str(path), why="holds no .json file", fix=_SHAPE)
    return [read_trace(file) for file in files]


def read_trace(path: Path) -> Trace:
    """A file of the published data; up means that all of its nodes were.

    By its name: `a23-` is resampled to the ten minutes at which it was probed; `p23-` tells of an instance that was
    held, its zeros include the way to the next one, so eight samples are one, up only if all are; `-4node-` is a gang
    of four.

    Raises:
        TraceError: it cannot be read or is not a trace; names the file and the fix.
    """
    counts, gap = _counts_and_gap(path)
    gang = _NODES.search(path.stem)
    up: Flags = np.asarray(counts >= (int(gang[1]) if gang else 1))
    if path.stem.startswith("a23"):
        # Irregular ten-minute probes, written out at the mean of their gaps.
        gap, up = 600.0, up[(np.arange(0, len(up) * gap, 600.0) / gap).astype(int)]
    elif path.stem.startswith("p23") and gang is None:
        whole = len(up) // 8 * 8
        gap, up = gap * 8, np.asarray(up[:whole].reshape(-1, 8).all(axis=1))
    return Trace(path.stem, gap, up)


def windows(trace: Trace, *, seconds: float, count: int, random: np.random.Generator) -> Flags:
    """(count, ticks) of the trace from random starts, each at least `seconds` long.

    Raises:
        TraceError: the trace is shorter than that.
    """
    ticks = _ticks(trace, seconds)
    if ticks > len(trace.up):
        raise _too_short(trace.name, f"covers {trace.seconds / 3600:.1f} h", seconds)
    starts = random.integers(0, len(trace.up) - ticks + 1, count)
    return np.asarray(trace.up[starts[:, None] + np.arange(ticks)])


def long_enough(traces: Sequence[Trace], *, seconds: float) -> tuple[list[Trace], list[Trace]]:
    """Those traces that have windows of `seconds`, and those that are too short.

    Raises:
        TraceError: all are too short.
    """
    kept = [trace for trace in traces if _ticks(trace, seconds) <= len(trace.up)]
    if not kept:
        longest = max(trace.seconds for trace in traces)
        named = ", ".join(trace.name for trace in traces)
        covers = "covers" if len(traces) == 1 else "cover at most"
        raise _too_short(named, f"{covers} {longest / 3600:.1f} h", seconds)
    return kept, [trace for trace in traces if _ticks(trace, seconds) > len(trace.up)]


def _too_short(names: str, covers: str, seconds: float) -> TraceError:
    fix = "Give a longer trace, or a nearer deadline."
    return TraceError(source=names, why=f"{covers}, and {seconds / 3600:.1f} h are asked for", fix=fix)


def _ticks(trace: Trace, seconds: float) -> int:
    return int(np.ceil(seconds / trace.tick_seconds)) + 1


def _counts_and_gap(path: Path) -> tuple[np.ndarray, float]:
    document = _document(path)
    metadata = document.get("metadata")
    gap = metadata.get("gap_seconds") if isinstance(metadata, dict) else None
    if not _is_number(gap):
        raise TraceError(source=str(path), why="names no metadata.gap_seconds", fix=_SHAPE)
    if not 0 < gap < float("inf"):
        raise TraceError(
            source=str(path), why=f"has gaps of {gap} s", fix="metadata.gap_seconds must be positive: fix the file."
        )
    data = document.get("data")
    if not isinstance(data, list) or not data:
        raise TraceError(source=str(path), why="has no data", fix=_SHAPE)
    if not all(_is_number(count) and 0 <= count < float("inf") for count in data):
        fix = "Each entry of data must be a number of available nodes, 0 or more: fix the file."
        raise TraceError(source=str(path), why="has data that are not numbers of nodes", fix=fix)
    return np.asarray(data, float), float(gap)


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        why = f"cannot be read ({error.strerror})"
        raise TraceError(source=str(path), why=why, fix="Check the path; it may be a file or a folder.") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(source=str(path), why=f"is not JSON ({error})", fix=_SHAPE) from None
    if not isinstance(document, dict):
        raise TraceError(source=str(path), why="is not an object", fix=_SHAPE)
    return document


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
