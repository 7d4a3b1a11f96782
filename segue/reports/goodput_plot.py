"""Draws the paid seconds of a run by cause, with one bar for each attempt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from segue.reports.goodput import CAUSES, TRAINING, Goodput, goodput_by_attempt, total
from segue.runlog.history import History
from segue.units import unit_of_axis

_MOST_BARS, _MOST_LABELS = 80, 16
_REST = "other"
_COLOURS = {
    TRAINING: "#2e7d32",
    "lost work": "#b3261e",
    "saves": "#7a3fb0",
    "evaluation": "#2f6db0",
    _REST: "#9a9a9a",
}
_OTHERS = ("#e07b39", "#f2b705", "#8d6e63", "#00897b", "#c2185b", "#546e7a", "#c0ca33", "#4dd0e1")
_LEAST_SHARE = 0.01
"""If a cause has a smaller share of all bars, the plot shows it as a part of `other`."""


def draw_causes(axes: Any, history: History) -> None:
    """Draw a stacked bar for each of the newest attempts. If no attempt has ended, draw nothing."""
    known = [(report, its) for report, its in goodput_by_attempt(history) if its.total_seconds][-_MOST_BARS:]
    unit, seconds = unit_of_axis(max((its.total_seconds for _, its in known), default=0.0))
    bottom = [0.0] * len(known)
    others = iter(_OTHERS)
    for cause, heights in _parts([its for _, its in known]).items():
        scaled = [each / seconds for each in heights]
        axes.bar(range(len(known)), scaled, bottom=bottom, color=_COLOURS.get(cause) or next(others), label=cause)
        bottom = [below + each for below, each in zip(bottom, scaled, strict=True)]
    names = [f"{report.segment}" + (f".{report.attempt}" if report.attempt > 1 else "") for report, _ in known]
    every = max(1, math.ceil(len(known) / _MOST_LABELS))
    axes.set_xticks(range(0, len(known), every), names[::every])
    axes.set(xlabel="segment", ylabel=f"paid {unit}")
    if known:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, frameon=False)


def _parts(known: Sequence[Goodput]) -> dict[str, list[float]]:
    """Return the seconds of each attempt by cause. The seconds of all small causes are one sum."""
    paid = total(known)
    shown = [cause for cause in CAUSES if paid.seconds.get(cause, 0.0) >= _LEAST_SHARE * max(paid.total_seconds, 1e-9)]
    parts = {cause: [its.seconds.get(cause, 0.0) for its in known] for cause in shown}
    parts[_REST] = [its.total_seconds - sum(its.seconds.get(cause, 0.0) for cause in shown) for its in known]
    return parts
