"""One picture of a run: loss over steps, steps over time, pools as bands, preemptions, checkpoints, deadline."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from segue.curves import curve
from segue.errors import MissingExtraError
from segue.history import Attempt, History, read_history
from segue.records import Capacity, SegmentReport
from segue.runlog import RunLog

if TYPE_CHECKING:
    import pandas as pd

_BAND = {Capacity.SPOT: "#cfe3f7", Capacity.ON_DEMAND: "#fbdcc4"}
_LINE = {Capacity.SPOT: "#2f6db0", Capacity.ON_DEMAND: "#c45a11"}
_PREEMPTION, _DEADLINE, _LOST = "#b3261e", "#111111", "#9a9a9a"
_SMOOTH_STEPS = 25


def draw(log: RunLog) -> bytes:
    """The run as a PNG.

    Raises:
        MissingExtraError: matplotlib or pandas is not installed.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="The picture of a run") from None
    history, frame = read_history(log.reload()), curve(log, superseded=True)
    with mpl.rc_context({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 6.2), layout="constrained")
        by_step, by_time = figure.subplots(2, 1)
        _loss_over_steps(by_step, history, frame)
        _steps_over_time(by_time, history, frame)
        figure.suptitle(_title(log, history), x=0.01, ha="left", fontweight="bold")
        figure.legend(handles=_legend(), loc="outside lower center", ncols=6, frameon=False)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110)
    return buffer.getvalue()


def _title(log: RunLog, history: History) -> str:
    goal = history.spec.steps if history.spec else "?"
    resumes = [attempt.verdict.kind.value for attempt in history.attempts if attempt.verdict is not None]
    told = ", ".join(f"{resumes.count(kind)} {kind}" for kind in dict.fromkeys(resumes)) or "none"
    return f"{log.run_id}: step {history.committed_step} of {goal}; resumes: {told}"


def _loss_over_steps(axes: Any, history: History, frame: pd.DataFrame) -> None:
    for report in history.last_words():
        _, high = _kept(report)
        if high > report.from_step:
            axes.axvspan(report.from_step, high, color=_BAND[report.capacity], lw=0)
        if report.stop_reason.is_preemption:
            axes.axvline(report.to_step, color=_PREEMPTION, lw=1.2, ls="--")
    if not frame.empty:
        kept = frame[~frame["superseded"]]
        axes.plot(kept["step"], kept["loss"], color=_LOST, lw=0.5, alpha=0.6)
        smooth = kept["loss"].rolling(_SMOOTH_STEPS, min_periods=1).mean()
        axes.plot(kept["step"], smooth, color="#1b1b1b", lw=1.4)
    marks = [checkpoint.manifest.step for checkpoint in history.checkpoints]
    axes.plot(marks, [0] * len(marks), marker="|", ls="", color="#2e7d32", ms=9, transform=axes.get_xaxis_transform())
    axes.set(xlabel="step", ylabel="loss", xlim=(0, history.spec.steps if history.spec else None))


def _steps_over_time(axes: Any, history: History, frame: pd.DataFrame) -> None:
    # An import may lie long before the first segment, and used no capacity.
    attempts = [a for a in history.attempts if not history.is_import(a.claim.segment, a.claim.attempt)]
    if not attempts:
        return
    start = attempts[0].claim.written_at

    def seconds_in(moment: datetime) -> float:
        return (moment - start).total_seconds()

    for attempt in attempts:
        begin, end = _span(attempt)
        axes.axvspan(seconds_in(begin), seconds_in(end), color=_BAND[attempt.claim.capacity], lw=0)
        if attempt.report is not None and attempt.report.stop_reason.is_preemption:
            axes.axvline(seconds_in(end), color=_PREEMPTION, lw=1.2, ls="--")
    for attempt_id, rows in frame.groupby("attempt_id") if not frame.empty else ():
        capacity = next(a.claim.capacity for a in history.attempts if a.claim.attempt_id == attempt_id)
        seconds = [seconds_in(moment) for moment in rows["wall_time"]]
        axes.plot(seconds, rows["step"], color=_LINE[capacity], lw=1.8)
    if history.spec is not None and history.spec.deadline is not None:
        axes.axvline(seconds_in(history.spec.deadline), color=_DEADLINE, lw=2)
    axes.set(xlabel="seconds since the first claim", ylabel="step", xlim=(0, None), ylim=(0, None))


def _span(attempt: Attempt) -> tuple[datetime, datetime]:
    begin = attempt.claim.written_at
    seconds = attempt.report.seconds if attempt.report else 0.0
    return begin, begin + timedelta(seconds=seconds)


def _kept(report: SegmentReport) -> tuple[int, int]:
    return report.from_step, report.checkpoint.step if report.checkpoint else report.from_step


def _legend() -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Patch(color=_BAND[Capacity.SPOT], label="spot"),
        Patch(color=_BAND[Capacity.ON_DEMAND], label="on-demand"),
        Line2D([], [], color="#1b1b1b", label=f"loss ({_SMOOTH_STEPS}-step mean)"),
        Line2D([], [], color=_PREEMPTION, ls="--", label="preemption"),
        Line2D([], [], color="#2e7d32", marker="|", ls="", ms=9, label="checkpoint"),
        Line2D([], [], color=_DEADLINE, lw=2, label="deadline"),
    ]
