"""Draws the plot of a resume point: the steps before it, and the witness and the replay after it."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from segue.curves.frame import curve_frame
from segue.curves.picture import page_figure, small_png
from segue.errors import NoResumeError
from segue.records import CheckpointRef, Verdict, VerdictKind, WitnessRow
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog

if TYPE_CHECKING:
    import pandas as pd


CHANNELS = ("loss", "grad_norm", "param_norm")

_COLUMNS = ["step", *CHANNELS]


@dataclass(frozen=True)
class ResumePoint:
    """A resume with a verdict. The columns of each frame are `step`, `loss`, `grad_norm` and `param_norm`."""

    segment: int
    attempt: int
    parent: CheckpointRef
    verdict: Verdict
    before: pd.DataFrame
    """The steps up to the committed step, from the attempt that made the commit."""
    witness: pd.DataFrame
    """The steps after the committed step, from the attempt that made the commit.

    If there is no seal, the frame is empty.
    """
    replay: pd.DataFrame
    """The steps after the committed step, from the attempt that resumed. The replay may be longer than the witness."""


def resume_point_of(
    log: RunLog, *, segment: int | None = None, attempt: int | None = None, steps: int = 24
) -> ResumePoint:
    """Return the newest resume with a verdict of the given segment and attempt. If both are None, search the whole run.

    The result has at most `steps` steps on each side. A broken resume committed nothing, so the curve does not contain
    its steps. The steps of a broken resume come from the record of the verdict.

    Raises:
        NoResumeError: the requested resume does not exist, or has no verdict.
        MissingExtraError: pandas is not installed.
    """
    history = read_history(log.reload())
    judged = [(found.claim, entry) for entry in history.resumes if (found := history.attempt_named(entry.attempt_id))]
    wanted = [
        (claim, entry)
        for claim, entry in judged
        if segment in {None, claim.segment} and attempt in {None, claim.attempt}
    ]
    if not wanted:
        others = tuple(dict.fromkeys((claim.segment, claim.attempt) for claim, _ in judged))
        raise NoResumeError(run_id=log.run_id, segment=segment, attempt=attempt, there=others)
    claim, entry = max(wanted, key=lambda pair: pair[0].epoch)
    parent, frame = entry.parent, curve_frame(log, history)
    by_parent = frame[(frame["attempt_id"] == parent.attempt_id) & (frame["step"] <= parent.step)]
    by_this = frame[(frame["attempt_id"] == entry.attempt_id) & (frame["step"] > parent.step)]
    return ResumePoint(
        segment=claim.segment,
        attempt=claim.attempt,
        parent=parent,
        verdict=entry.verdict,
        before=_rows(by_parent).tail(steps),
        witness=_frame_of(_witness(log, history, parent)).head(steps),
        replay=(_rows(by_this) if len(by_this) else _frame_of(entry.replay)).head(steps),
    )


def _witness(log: RunLog, history: History, parent: CheckpointRef) -> Sequence[WitnessRow]:
    checkpoint = history.checkpoint(parent)
    if checkpoint is not None and checkpoint.rows:
        return checkpoint.rows
    # The attempt was killed between commit and seal, so the resume used the rows of the last heartbeat.
    beat = last_heartbeat(log, history.attempt_named(parent.attempt_id))
    return tuple(row for row in beat.rows if row.step > parent.step) if beat is not None else ()


def _rows(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[_COLUMNS].sort_values("step", ignore_index=True)


def _frame_of(rows: Sequence[WitnessRow]) -> pd.DataFrame:
    import pandas as pd

    return _rows(pd.DataFrame([[getattr(row, name) for name in _COLUMNS] for row in rows], columns=_COLUMNS))


_NAMES = {"loss": "loss", "grad_norm": "gradient norm", "param_norm": "parameter norm"}
_BEFORE, _WITNESS, _REPLAY, _COMMIT, _DIFFERS = "#6b6b6b", "#2f6db0", "#c45a11", "#2e7d32", "#b3261e"
_TITLE_COLOUR = {VerdictKind.BROKEN: _DIFFERS, VerdictKind.UNVERIFIED: _REPLAY}


def draw_resume(log: RunLog, *, segment: int | None = None, attempt: int | None = None) -> bytes:
    """Draw the newest resume with a verdict of the given segment and attempt, as a PNG.

    If both are None, draw the newest resume of the whole run.

    Raises:
        NoResumeError: the requested resume does not exist, or has no verdict.
        MissingExtraError: matplotlib or pandas is not installed.
    """
    return draw(resume_point_of(log, segment=segment, attempt=attempt), run_id=log.run_id)


def draw(point: ResumePoint, *, run_id: str) -> bytes:
    """Draw loss, gradient norm and parameter norm over the steps around one resume point, as a PNG.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    with page_figure(7, needed_for="The plot of a resume point") as figure:
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
    """Return the name of the resume and its verdict, in lines that fit the plot."""
    which = f"segment {point.segment}" + (f" attempt {point.attempt}" if point.attempt > 1 else "")
    text = f"{run_id}: {which} resumed from step {point.parent.step}; {point.verdict.sentence}"
    return "\n".join(textwrap.wrap(text, width=84))


def _panel(axes: Any, point: ResumePoint, channel: str) -> None:
    for rows, style in (
        (point.before, {"color": _BEFORE, "marker": ".", "lw": 1.2, "label": "before"}),
        # The witness has circles around the replay's dots: if the values are equal, every dot is in its circle.
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
