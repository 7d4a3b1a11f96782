"""The picture of a plan: sample runs as bands over time."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from segue.curves.picture import PAGE_INCHES
from segue.errors import MissingExtraError

if TYPE_CHECKING:
    from segue.simulation.forecast import Sample

_COLOURS = {"finished": "#ffffff", "idle": "#dddddd", "spot": "#2f6db0", "on-demand": "#e07b39"}
"""Colours by mode, from -1 up."""
_DEADLINE, _LATEST = "#111111", "#b3261e"


def draw_sample(sample: Sample, *, title: str, deadline_seconds: float | None, latest_seconds: float | None) -> bytes:
    """The capacity of sample runs over time, as a PNG; seconds are from now.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    mpl, figure = _figure(height=4.2)
    from matplotlib.colors import ListedColormap
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    hours = sample.tick_seconds / 3600
    runs, ticks = sample.modes.shape
    with mpl.rc_context({"font.size": 9}):
        axes = figure.subplots()
        colours = ListedColormap(list(_COLOURS.values()))
        grid = {"extent": (0, ticks * hours, runs + 0.5, 0.5), "aspect": "auto", "interpolation": "nearest"}
        axes.imshow(sample.modes, cmap=colours, vmin=-1, vmax=2, **grid)
        for row in range(1, runs):
            axes.axhline(row + 0.5, color="#ffffff", lw=2)
        legend: list[Any] = [Patch(color=colour, label=name) for name, colour in list(_COLOURS.items())[1:]]
        lines = ((deadline_seconds, _DEADLINE, "-", "deadline"), (latest_seconds, _LATEST, "--", "latest safe moment"))
        for seconds, colour, style, label in lines:
            if seconds is not None:
                axes.axvline(seconds / 3600, color=colour, ls=style, lw=1.6)
                legend.append(Line2D([], [], color=colour, ls=style, label=label))
        right = max(ticks * hours, (deadline_seconds or 0.0) / 3600)
        axes.set(xlabel="hours from now", ylabel="simulated run", xlim=(0, right * 1.01))
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
        figure.legend(handles=legend, loc="outside lower center", ncols=len(legend), frameon=False)
        return _png(figure)


def _figure(*, height: float) -> tuple[Any, Any]:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="A picture") from None
    return mpl, Figure(figsize=(PAGE_INCHES, height), layout="constrained")


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()
