"""Draws the plot of a run: loss over steps, steps over time, and the paid seconds of each attempt by cause.

The plot also shows capacity and queues as bands, preemptions and checkpoints. If the run has a deadline, the middle
part also shows the deadline and, for each decision, the latest safe start: the latest time at which on-demand must
start to meet the deadline. The slack is the distance between the run's line and the line of the latest safe start.
"""

from __future__ import annotations

import textwrap
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from segue.curves.frame import curve
from segue.curves.picture import page_figure, small_png
from segue.records import Capacity, SegmentReport
from segue.reports.cost_report import waits
from segue.reports.goodput_plot import draw_causes
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import Attempt, History, read_history
from segue.runlog.log import RunLog
from segue.units import unit_of_axis

if TYPE_CHECKING:
    import pandas as pd

_BAND = {Capacity.SPOT: "#cfe3f7", Capacity.ON_DEMAND: "#fbdcc4"}
_LINE = {Capacity.SPOT: "#2f6db0", Capacity.ON_DEMAND: "#c45a11"}
_PREEMPTION, _DEADLINE, _LOST = "#b3261e", "#111111", "#9a9a9a"
_QUEUE, _SAFE, _REASON = "#e9e9e9", "#7a3fb0", "#444444"
_SMOOTH_STEPS = 25
_MANY_PREEMPTIONS = 30
_WIDEST = 2.5
"""Largest ratio of the length of the time axis to the duration of the run so far."""
_REASON_LETTERS, _MOST_REASONS = 96, 6


def draw(log: RunLog) -> bytes:
    """Draw the run as a PNG.

    Raises:
        MissingExtraError: matplotlib or pandas is not installed.
    """
    history, frame = read_history(log.reload()), curve(log, superseded=True)
    with page_figure(8.4, needed_for="The plot of a run") as figure:
        by_step, by_time, by_cause = figure.subplots(3, 1, height_ratios=(5, 5, 3))
        _loss_over_steps(by_step, history, frame)
        _steps_over_time(by_time, history, frame)
        draw_causes(by_cause, history)
        figure.suptitle(_title(log, history), x=0.01, ha="left", fontweight="bold")
        below: dict[str, Any] = {"loc": "outside lower left", "ncols": 3, "frameon": False, "alignment": "left"}
        # The text is the title of the legend, because matplotlib reserves room only for titles, not for other texts.
        figure.legend(handles=_legend(), title=_reasons(history), **below)
        return small_png(figure)


def _title(log: RunLog, history: History) -> str:
    goal = history.spec.steps if history.spec else "?"
    resumes = [attempt.verdict.kind.value for attempt in history.attempts if attempt.verdict is not None]
    counts = ", ".join(f"{resumes.count(kind)} {kind}" for kind in dict.fromkeys(resumes)) or "none"
    return f"{log.run_id}: step {history.committed_step} of {goal} is committed; resumes: {counts}"


def _reasons(history: History) -> str:
    """Return the reasons of the decisions in the middle part of the plot, one reason per line."""
    decisions = [entry for entry in history.decisions if entry.action != "import"]
    shown = (textwrap.shorten(entry.reason, _REASON_LETTERS, placeholder=" ...") for entry in _changes(decisions))
    lines = (f"{number}  {text}" for number, text in enumerate([*shown][-_MOST_REASONS:], 1))
    return "\n".join(lines).replace("$", r"\$")  # Otherwise matplotlib reads text between two of them as formulas.


def _loss_over_steps(axes: Any, history: History, frame: pd.DataFrame) -> None:
    line = _preemption_line(history)
    for report in history.last_reports():
        _, high = _kept(report)
        if high > report.from_step:
            axes.axvspan(report.from_step, high, color=_BAND[report.capacity], lw=0)
        if report.stop_reason.is_preemption:
            axes.axvline(report.to_step, **line)
    for attempt in history.attempts:
        parent = history.parent_of(attempt.claim.segment, attempt.claim.attempt)
        if attempt.report is None and attempt.commits:
            start = parent.step if parent is not None else 0
            axes.axvspan(start, attempt.commits[-1].step, color=_BAND[attempt.claim.capacity], lw=0)
    if not frame.empty:
        kept = frame[~frame["superseded"]]
        axes.plot(kept["step"], kept["loss"], color=_LOST, lw=0.5, alpha=0.6)
        smooth = kept["loss"].rolling(_SMOOTH_STEPS, min_periods=1).mean()
        axes.plot(kept["step"], smooth, color="#1b1b1b", lw=1.4)
    steps = [checkpoint.manifest.step for checkpoint in history.checkpoints]
    axes.plot(steps, [0] * len(steps), marker="|", ls="", color="#2e7d32", ms=9, transform=axes.get_xaxis_transform())
    axes.set(xlabel="step", ylabel="loss", xlim=(0, history.spec.steps if history.spec else None))


def _steps_over_time(axes: Any, history: History, frame: pd.DataFrame) -> None:
    # An import may be long before the first segment, and used no capacity.
    attempts = [a for a in history.attempts if not history.is_import(a.claim.segment, a.claim.attempt)]
    decisions = [entry for entry in history.decisions if entry.action != "import"]
    if not decisions:
        return
    start = decisions[0].written_at
    trained = [frame["wall_time"].max().to_pydatetime()] if not frame.empty else []
    last = max([decisions[-1].written_at, *(_span(attempt, frame)[1] for attempt in attempts), *trained])
    unit, seconds = unit_of_axis((last - start).total_seconds())

    def passed(moment: datetime) -> float:
        return (moment - start).total_seconds() / seconds

    for begin, end in waits(history):
        axes.axvspan(passed(begin), passed(end), color=_QUEUE, lw=0)
    for attempt in attempts:
        begin, end = _span(attempt, frame)
        axes.axvspan(passed(begin), passed(end), color=_BAND[attempt.claim.capacity], lw=0)
        if attempt.report is not None and attempt.report.stop_reason.is_preemption:
            axes.axvline(passed(end), **_preemption_line(history))
    capacities = {attempt.claim.attempt_id: attempt.claim.capacity for attempt in history.attempts}
    for attempt_id, rows in frame.groupby("attempt_id") if not frame.empty else ():
        # The curve was read after the history, so it may have rows of a newer attempt.
        if (capacity := capacities.get(str(attempt_id))) is not None:
            axes.plot([passed(moment) for moment in rows["wall_time"]], rows["step"], color=_LINE[capacity], lw=1.8)
    for number, entry in enumerate(_changes(decisions)[-_MOST_REASONS:], 1):
        at = (passed(entry.written_at), 1.0)
        place = {"xycoords": axes.get_xaxis_transform(), "xytext": (2, 2), "textcoords": "offset points"}
        axes.annotate(str(number), at, **place, color=_REASON, fontweight="bold")
    axes.set(xlabel=f"{unit} since the first decision", ylabel="step", xlim=(0, None), ylim=(0, None))
    if history.spec is not None and history.spec.deadline is not None:
        safe = [(passed(moment), step) for moment, step in latest_safe_starts(decisions)]
        _show_deadline(axes, passed(history.spec.deadline), unit=unit, safe=safe, now=passed(last))


def _show_deadline(axes: Any, deadline: float, *, unit: str, safe: list[tuple[float, int]], now: float) -> None:
    axes.axvline(deadline, color=_DEADLINE, lw=2)
    axes.plot([at for at, _ in safe], [step for _, step in safe], color=_SAFE, lw=1.2, ls=":")
    right = _WIDEST * now
    if 0 < right < deadline:
        axes.set_xlim(0, right)  # Otherwise a far deadline would leave the run itself a few pixels.
        told = f"deadline at {deadline:.0f} {unit}"
        axes.text(0.995, 0.03, told, transform=axes.transAxes, ha="right", color=_DEADLINE, fontweight="bold")


def latest_safe_starts(decisions: list[DecisionEntry]) -> list[tuple[datetime, int]]:
    """For each decision, return the latest time at which on-demand could safely start, and the committed step."""
    found = []
    for entry in decisions:
        left, work = entry.numbers.get("remaining_seconds"), entry.numbers.get("work_seconds")
        if entry.plan is None or left is None or work is None:
            continue
        start = entry.numbers.get("on_demand_changeover_seconds", entry.numbers.get("changeover_seconds", 0.0))
        slack = left - work - start
        found.append((entry.written_at + timedelta(seconds=slack), entry.plan.parent.step if entry.plan.parent else 0))
    return found


def _preemption_line(history: History) -> dict[str, Any]:
    """Return the style of the lines at preemptions.

    If there are many lines, they are thin, so that the plot stays visible.
    """
    count = sum(report.stop_reason.is_preemption for report in history.last_reports())
    style = {"lw": 1.2, "ls": "--"} if count <= _MANY_PREEMPTIONS else {"lw": 0.4, "alpha": 0.6}
    return {"color": _PREEMPTION, **style}


def _changes(decisions: list[DecisionEntry]) -> list[DecisionEntry]:
    """Return the decisions that changed the capacity or ended the run."""
    kinds = [entry.plan.capacity if entry.plan is not None else None for entry in decisions]
    return [entry for at, entry in enumerate(decisions) if at == 0 or kinds[at] != kinds[at - 1] or kinds[at] is None]


def _span(attempt: Attempt, frame: pd.DataFrame) -> tuple[datetime, datetime]:
    """Return the begin and the end of an attempt.

    If the attempt still trains, the end is the time of its newest row.
    """
    begin = attempt.claim.written_at
    if attempt.report is not None:
        return begin, begin + timedelta(seconds=attempt.report.seconds)
    rows = frame[frame["attempt_id"] == attempt.claim.attempt_id] if not frame.empty else frame
    return begin, max(begin, rows["wall_time"].max().to_pydatetime()) if len(rows) else begin


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
        Patch(color=_QUEUE, label="queueing, booting"),
        Line2D([], [], color=_DEADLINE, lw=2, label="deadline"),
        Line2D([], [], color=_SAFE, ls=":", label="latest safe start of on-demand"),
    ]
