"""The plot of a resume point: the steps before it, and witness and replay over each other after it."""

from __future__ import annotations

import textwrap
from typing import Any

from segue.curves.picture import PAGE_INCHES, small_png, styled
from segue.curves.resume_view import CHANNELS, ResumePoint, resume_point_of
from segue.errors import MissingExtraError
from segue.records import VerdictKind
from segue.runlog.log import RunLog

_NAMES = {"loss": "loss", "grad_norm": "gradient norm", "param_norm": "parameter norm"}
_BEFORE, _WITNESS, _REPLAY, _COMMIT, _DIFFERS = "#6b6b6b", "#2f6db0", "#c45a11", "#2e7d32", "#b3261e"
_TITLE_COLOUR = {VerdictKind.BROKEN: _DIFFERS, VerdictKind.UNVERIFIED: _REPLAY}


def draw_resume(log: RunLog, *, segment: int | None = None, attempt: int | None = None) -> bytes:
    """The newest judged resume of a segment and attempt, or of the run, as a PNG.

    Raises:
        NoResumeError: there is none.
        MissingExtraError: matplotlib or pandas is not installed.
    """
    return draw(resume_point_of(log, segment=segment, attempt=attempt), run_id=log.run_id)


def draw(point: ResumePoint, *, run_id: str) -> bytes:
    """One resume point as a PNG: a panel for each of loss, gradient norm and parameter norm, over the step.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="The plot of a resume point") from None
    with styled():
        figure = Figure(figsize=(PAGE_INCHES, 7), layout="constrained")
        panels = figure.subplots(len(CHANNELS), 1, sharex=True)
        for axes, channel in zip(panels, CHANNELS, strict=True):
            _panel(axes, point, channel)
        panels[-1].set_xlabel("step")
        panels[-1].xaxis.get_major_locator().set_params(integer=True)
        colour = _TITLE_COLOUR.get(point.verdict.kind, "#111111")
        figure.suptitle(title(point, run_id=run_id), x=0.01, ha="left", fontweight="bold", color=colour)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        return small_png(figure)


def title(point: ResumePoint, *, run_id: str) -> str:
    """The name of the resume and its verdict, in lines that fit the plot."""
    which = f"segment {point.segment}" + (f" attempt {point.attempt}" if point.attempt > 1 else "")
    text = f"{run_id}: {which} resumed from step {point.parent.step}; {point.verdict.sentence}"
    return "\n".join(textwrap.wrap(text, width=84))


def _panel(axes: Any, point: ResumePoint, channel: str) -> None:
    for rows, style in (
        (point.before, {"color": _BEFORE, "marker": ".", "lw": 1.2, "label": "before"}),
        # Circles around the replay's dots: if the two agree, every dot is in its circle.
        (
            point.witness,
            {"color": _WITNESS, "marker": "o", "ms": 8, "mfc": "none", "ls": "", "label": "witness"},
        ),
        (point.replay, {"color": _REPLAY, "marker": ".", "lw": 1.2, "label": "after the resume"}),
    ):
        if len(rows):
            axes.plot(rows["step"], rows[channel], **style)
    axes.axvline(point.parent.step, color=_COMMIT, lw=1.2, ls="--", label="checkpoint")
    differs = next((finding.step for finding in point.verdict.findings if finding.step is not None), None)
    if differs is not None:
        axes.axvline(differs, color=_DIFFERS, lw=1.2, ls=":", label="first difference")
    axes.set_ylabel(_NAMES[channel])
