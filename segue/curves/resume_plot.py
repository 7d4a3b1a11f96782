"""A resume as a picture: the steps before it, and witness and replay over each other after it."""

from __future__ import annotations

import io
import textwrap
from typing import Any

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


def draw(resume_point: ResumePoint, *, run_id: str) -> bytes:
    """One resume point as a PNG: a panel for each of loss, gradient norm and parameter norm, over the step.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="The picture of a resume") from None
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(8, 7), layout="constrained")
        panels = figure.subplots(len(CHANNELS), 1, sharex=True)
        for axes, channel in zip(panels, CHANNELS, strict=True):
            _panel(axes, resume_point, channel)
        panels[-1].set_xlabel("step")
        panels[-1].xaxis.get_major_locator().set_params(integer=True)
        colour = _TITLE_COLOUR.get(resume_point.verdict.kind, "#111111")
        figure.suptitle(title(resume_point, run_id=run_id), x=0.01, ha="left", fontweight="bold", color=colour)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def title(resume_point: ResumePoint, *, run_id: str) -> str:
    """Which resume it is and its verdict, in lines that fit the picture."""
    which = f"segment {resume_point.segment}" + (f" attempt {resume_point.attempt}" if resume_point.attempt > 1 else "")
    words = f"{run_id}: {which} resumed from step {resume_point.parent.step}; {resume_point.verdict.sentence}"
    return "\n".join(textwrap.wrap(words, width=92))


def _panel(axes: Any, resume_point: ResumePoint, channel: str) -> None:
    for rows, style in (
        (resume_point.before, {"color": _BEFORE, "marker": ".", "lw": 1.2, "label": "before"}),
        # Rings around the replay's dots: where the two agree, every dot is in its ring.
        (
            resume_point.witness,
            {"color": _WITNESS, "marker": "o", "ms": 8, "mfc": "none", "ls": "", "label": "witness"},
        ),
        (resume_point.replay, {"color": _REPLAY, "marker": ".", "lw": 1.2, "label": "after the resume"}),
    ):
        if len(rows):
            axes.plot(rows["step"], rows[channel], **style)
    axes.axvline(resume_point.parent.step, color=_COMMIT, lw=1.2, ls="--", label="checkpoint")
    differs = next((finding.step for finding in resume_point.verdict.findings if finding.step is not None), None)
    if differs is not None:
        axes.axvline(differs, color=_DIFFERS, lw=1.2, ls=":", label="first difference")
    axes.set_ylabel(_NAMES[channel])
