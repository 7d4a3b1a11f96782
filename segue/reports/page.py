"""Writes the page about one run, in markdown: first punctuality and progress, then the tables, then the plot.

The module is pure. Because the Prefect UI cuts wide tables off, the tables have few and short columns, and lists
contain the long texts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, NamedTuple

from segue.curves.curve_damage import LOSS_CURVE
from segue.markup import Markup, blocks, bold, bullets, code, heading, inline, table
from segue.records import CheckpointRef, Heartbeat, Verdict, VerdictKind
from segue.reports.cost_report import CostReport
from segue.reports.preemptions import notice_counts, preemptions
from segue.reports.run_facts import budget_facts, rehearsal_text
from segue.reports.summary import RunSummary, live_of, pool_name, summarize
from segue.reports.tables import segment_rows
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import Checkpoint, History
from segue.spec import RunSpec
from segue.units import duration, size

_MOST_DECISIONS, _MOST_ROWS, _MOST_FINDINGS = 30, 50, 20
_OLD_HEARTBEATS = 3
"""The page marks a heartbeat as late after this number of heartbeat intervals."""
_MOST_CHECKPOINTS = 20
_NEWEST = 5


@dataclass(frozen=True)
class RunView:
    """The log, the cost and the current state of a run at one moment."""

    spec: RunSpec
    history: History
    cost: CostReport
    now: datetime
    beat: Heartbeat | None = None
    """The newest heartbeat of the attempt that has a machine."""
    waiting: str | None = None
    """The reason why an attempt without a machine waits.

    If no attempt waits, the value is None.
    """
    store_trouble: str | None = None
    """The reason why the parent cannot read the store.

    If the store cannot be read, the other values of the view are older than `now`.
    """
    clock_trouble: str | None = None
    """The reason why the run does not use a clock."""
    unguarded: str | None = None
    """The reason why recovery would not restart the parent after its death.

    If recovery would restart the parent, the value is None.
    """

    def at(self, now: datetime, *, store_trouble: str) -> RunView:
        """Return a copy of this view for the moment `now`, at which the store cannot be read."""
        return replace(self, now=now, store_trouble=store_trouble)

    @property
    def summary(self) -> RunSummary:
        return summarize(self.spec.run_id, self.history, now=self.now, beat=self.beat)


class Picture(NamedTuple):
    """A run's plot: the URL of the image (usually a `data:` URL), and the time at which the image was drawn."""

    address: str
    drawn_at: datetime


def page(view: RunView, *, picture: Picture | None = None) -> str:
    """Return the whole page as markdown."""
    parts = [
        headline(view),
        bullets(f"{name}: {text}" for name, text in facts(view).items()),
        _section("Segments", _segments(view)),
        _section("Preemptions and lost machines", _preemptions(view)),
        _section("Checkpoints", _checkpoints(view)),
        _section("Findings about resumes", _list(finding_lines(view.history), _MOST_FINDINGS, view)),
        _section("Cost", _costs(view)),
        _section("Decisions, newest first", _list(decision_lines(view.history), _MOST_DECISIONS, view)),
        _plot(picture) if picture is not None else "",
    ]
    return blocks(*parts)


def headline(view: RunView) -> Markup:
    """Return one sentence about the run: punctuality, step, expected end, and the current machine or state."""
    spec, run = view.spec, view.summary
    share = f"{run.step / spec.steps:.0%}" if run.step < spec.steps else "100%"
    parts = [bold(_punctuality(spec, run)), f"step {run.step} of {spec.steps} ({share})"]
    if run.is_over or run.state == "finished":
        parts.append(f"{run.state} at {_moment(run.finish_at)}" if run.state == "finished" else run.state)
    else:
        parts += [f"expected to finish at about {_moment(run.finish_at)}"] if run.finish_at is not None else []
        parts.append(_where(view))
    return Markup("; ".join(map(inline, parts)) + ".")


def facts(view: RunView) -> dict[str, str]:
    """Return the lines below the headline, by name. The most important line comes first."""
    spec, history, beat = view.spec, view.history, view.beat
    found = {}
    if view.store_trouble:
        found["STORE TROUBLE"] = view.store_trouble
    if view.unguarded:
        found["RECOVERY IS SILENT"] = view.unguarded
    if beat is not None and beat.trouble:
        found["SAVES FAIL"] = beat.trouble
    if view.clock_trouble:
        found["clock"] = view.clock_trouble
    if view.waiting:
        found["waits for"] = view.waiting
    found["deadline"] = _moment(spec.deadline) if spec.deadline is not None else "none"
    if beat is not None and beat.step_seconds:
        found["speed"] = f"{1 / beat.step_seconds:.3g} steps/s ({duration(beat.step_seconds)} a step)"
    found["paid"] = _paid(view)
    found |= budget_facts(spec, history, now=view.now, beat=beat)
    if beat is not None:
        found["last heartbeat"] = _heartbeat(view, beat)
    verdict = next((attempt.verdict for attempt in reversed(history.attempts) if attempt.verdict is not None), None)
    found["last resume"] = verdict.sentence if verdict is not None else "none judged yet"
    rehearsal = rehearsal_text(spec, history)
    if rehearsal is not None:
        found["rehearsal"] = rehearsal
    found["last decision"] = history.decisions[-1].reason if history.decisions else "none yet"
    if not history.is_over:
        found["as of"] = f"{view.now:%Y-%m-%d %H:%M:%S %Z}"
    return found


def finding_lines(history: History) -> list[str]:
    """Return one line for each finding of the verdicts on resumes and rehearsals, oldest first."""
    lines = []
    for attempt in history.attempts:
        verdict = attempt.verdict
        if verdict is None or verdict.kind is VerdictKind.EXACT:
            continue
        claim = attempt.claim
        texts = " ".join(finding.with_fix for finding in verdict.findings)
        said = f"{verdict.kind}: {texts}" if texts else verdict.sentence
        lines.append(f"segment {claim.segment} attempt {claim.attempt}, {said}")
    drills = (drill for drill in history.drills if drill.verdict.kind is not VerdictKind.EXACT)
    for finding in history.untracked:
        kind = "damaged" if finding.component == LOSS_CURVE else "state outside the checkpoint"
        lines.append(f"{kind}: {finding.with_fix}")
    return lines + [f"rehearsal from step {drill.checkpoint.step}, {drill.verdict.sentence}" for drill in drills]


def decision_lines(history: History) -> list[Markup]:
    """Return one line for each decision, oldest first: time, action, reason, slack and remaining work."""
    return [_decision_line(entry) for entry in history.decisions]


def _decision_line(entry: DecisionEntry) -> Markup:
    what = entry.plan.capacity.value if entry.plan is not None and entry.action == "run" else entry.action
    names = {"slack_seconds": "slack", "work_seconds": "work left"}
    told = [key for key, name in names.items() if key in entry.numbers and name not in entry.reason]
    numbers = [f"{names[key]} {duration(entry.numbers[key])}" for key in told]
    shown = f" ({', '.join(numbers)})" if numbers else ""
    reason = entry.reason.removeprefix(f"{what}: ").removeprefix(f"{what}, ").removeprefix(f"{what}; ")
    return Markup(f"{entry.written_at:%m-%d %H:%M:%S} {bold(what)}: {inline(f'{reason}{shown}')}")


def _punctuality(spec: RunSpec, run: RunSummary) -> str:
    if run.is_over and run.state != "finished":
        return f"{spec.run_id} ended before its goal"
    if spec.deadline is None:
        return f"{spec.run_id} has no deadline"
    known = "unknown if on time" if run.late_seconds is None else run.punctuality
    return f"{spec.run_id} is {known}" if not run.is_over else f"{spec.run_id} was {known}"


def _where(view: RunView) -> str:
    plan = view.history.open_plan
    if plan is None:
        return "between two segments"
    attempt = view.history.attempt_of(plan.segment, plan.attempt)
    asked = [each.deployment for each in plan.pools if attempt is None] or [plan.deployment]
    place = f"{plan.capacity} ({', '.join(asked)})"
    stopping = ", stopping" if view.history.stop is not None else ""
    if attempt is None:
        return f"no machine yet on {place}{stopping}"
    doing = view.beat.phase if view.beat is not None else "starting"
    return f"{doing} on {place}{stopping}"


def _paid(view: RunView) -> str:
    cost = view.cost
    if not cost.spot_seconds and not cost.on_demand_seconds:
        return "nothing yet"
    return cost.comparison


def _heartbeat(view: RunView, beat: Heartbeat) -> str:
    age = max((view.now - beat.beat_at).total_seconds(), 0.0)
    is_old = age > _OLD_HEARTBEATS * view.spec.liveness.heartbeat_seconds
    plan, host = view.history.open_plan, ""
    if plan is not None and (attempt := view.history.attempt_of(plan.segment, plan.attempt)) is not None:
        host = f", segment {plan.segment} attempt {plan.attempt} on {attempt.claim.host}"
    late = f", LATE: one is due every {duration(view.spec.liveness.heartbeat_seconds)}" if is_old else ""
    return f"{duration(age)} ago{host}{late}"


def _live_rows(view: RunView) -> list[dict[str, Any]]:
    """Return the row of the segments table for the attempt that has a machine now."""
    plan, beat = view.history.open_plan, view.beat
    if plan is None or beat is None:
        return []
    attempt, start = view.history.attempt_of(plan.segment, plan.attempt), plan.parent.step if plan.parent else 0
    verdict = attempt.verdict if attempt is not None else None
    row = {"segment": f"{plan.segment}" + (f".{plan.attempt}" if plan.attempt > 1 else "")}
    row |= {"pool": pool_name(plan, plan.capacity), "steps": f"{start}-{max(beat.step, start)}"}
    row |= {"stop_reason": f"({beat.phase})"}
    seconds = live_of(beat, view.history).seconds
    return [row | {"lost_steps": None, "verdict": verdict.kind if verdict else None, "seconds": round(seconds, 1)}]


def _segments(view: RunView) -> Markup:
    rows = [*segment_rows(view.history), *_live_rows(view)]
    rows = [row | {"stop_reason": row["stop_reason"].replace("_", " ")} for row in rows]
    return _with_rest(_table(rows[-_MOST_ROWS:]), len(rows) - _MOST_ROWS, f"segue status {view.spec.run_id} --json")


def _preemptions(view: RunView) -> Markup:
    taken = preemptions(view.spec, view.history, beat=view.beat)
    rows = [one.row(view.spec.pools.currency) for one in taken]
    shown = _with_rest(_table(rows[-_MOST_ROWS:]), len(rows) - _MOST_ROWS, f"segue status {view.spec.run_id} --json")
    counts = notice_counts(taken)
    return blocks(shown, f"Notices: {counts}." if counts else "")


def _checkpoints(view: RunView) -> Markup:
    rows, left_out = lineage_rows(view.history)
    return _with_rest(_table(rows), left_out, f"segue checkpoints {view.spec.run_id}")


def _costs(view: RunView) -> Markup:
    named = view.cost.rows().items() if view.history.attempts else ()
    return bullets(f"{name}: {text}" for name, text in named)


def _plot(picture: Picture) -> Markup:
    return _section(f"Plot, drawn at {picture.drawn_at:%H:%M:%S %Z}", Markup(f"![the run]({picture.address})"))


def _section(title: str, body: Markup) -> Markup:
    return blocks(heading(title, level=3), body) if body else body


def _table(rows: Sequence[Mapping[str, Any]]) -> Markup:
    """Return the rows as a markdown table."""
    names = [name.replace("_", " ") for name in rows[0]] if rows else []
    return table(names, [list(row.values()) for row in rows])


def _list(lines: Sequence[str], most: int, view: RunView) -> Markup:
    """Return the newest lines as a markdown list, the newest line first."""
    shown = bullets(reversed(lines[-most:]))
    return _with_rest(shown, len(lines) - most, f"segue status {view.spec.run_id} --json")


def _with_rest(shown: Markup, left_out: int, command: str) -> Markup:
    """Return the shown lines, followed by the command that shows the other lines."""
    return blocks(shown, Markup(f"{left_out} earlier ones: {code(command)}.")) if left_out > 0 else shown


def _moment(moment: datetime | None) -> str:
    return f"{moment:%Y-%m-%d %H:%M %Z}" if moment is not None else "an unknown time"


def lineage_rows(history: History) -> tuple[list[dict[str, Any]], int]:
    """Return rows of the most relevant checkpoints, newest first, and the number of the other checkpoints.

    The relevant checkpoints are the newest ones, those from which an attempt resumed, and those in quarantine.
    """
    resumed = _resumes_by_checkpoint(history)
    newest = {checkpoint.ref for checkpoint in history.checkpoints[-_NEWEST:]}
    told = [c for c in history.checkpoints if c.ref in newest or c.ref in resumed or c.quarantined]
    shown = told[-_MOST_CHECKPOINTS:]
    rows = [_row(checkpoint, resumed.get(checkpoint.ref, [])) for checkpoint in reversed(shown)]
    return rows, len(history.checkpoints) - len(shown)


def _row(checkpoint: Checkpoint, verdicts: list[Verdict]) -> dict[str, Any]:
    manifest = checkpoint.manifest
    origin = manifest.origin or (f"step {manifest.parent.step}" if manifest.parent is not None else "step 0")
    return {
        "step": manifest.step,
        "attempt": checkpoint.ref.attempt_id,
        "resumed from": origin,
        "size": size(manifest.size_bytes),
        "resumes from it": ", ".join(verdict.kind.value for verdict in verdicts) or "-",
        "state": "quarantined" if checkpoint.quarantined else "pruned" if checkpoint.is_pruned else "kept",
    }


def _resumes_by_checkpoint(history: History) -> dict[CheckpointRef, list[Verdict]]:
    found: dict[CheckpointRef, list[Verdict]] = {}
    for entry in history.resumes:
        found.setdefault(entry.parent, []).append(entry.verdict)
    return found
