"""Task of a run's artifact in the Prefect UI: summary, plot, and tables of segments, cost and decisions."""

from __future__ import annotations

import base64
import re
from datetime import datetime

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from segue.clock import SystemClock
from segue.controller.standby_messages import held_by_standbys
from segue.reports.cost import CostReport, cost_report
from segue.reports.run_plot import draw
from segue.reports.summary import RunSummary, summarize
from segue.reports.tables import decision_rows, segment_rows
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec

_MOST_DECISIONS = 50
"""Number of newest decisions in an artifact."""


@task(name="publish-run", retries=0, cache_policy=NO_CACHE)
def publish_run(spec: RunSpec) -> None:
    """Publish the run's summary, plot and tables as the artifact `segue-<run>`."""
    runlog = open_log(spec).reload()
    history = read_history(runlog)
    png = base64.b64encode(draw(runlog)).decode()
    cost = cost_report(spec, history, standbys=held_by_standbys(runlog.store, spec.run_id))
    first = "\n".join(summary_lines(spec, history, cost, now=SystemClock().now()))
    text = f"{first}\n\n![the run](data:image/png;base64,{png})\n\n{tables(history, cost)}"
    create_markdown_artifact(text, key=artifact_key(spec.run_id), description=f"Run {spec.run_id}")


def artifact_key(run_id: str) -> str:
    """The key of a run's artifact: Prefect permits lower-case letters, digits and dashes."""
    return "segue-" + re.sub(r"[^a-z0-9-]+", "-", run_id).strip("-")


def summary_lines(spec: RunSpec, history: History, cost: CostReport, *, now: datetime) -> list[str]:
    """Step, deadline, state, cost, last verdict and last decision, one markdown line each."""
    run = summarize(spec.run_id, history, now=now)
    plan, last = history.open_plan, history.decisions[-1] if history.decisions else None
    verdict = next((attempt.verdict for attempt in reversed(history.attempts) if attempt.verdict is not None), None)
    paid = cost.rows()["paid"] if history.attempts else "nothing yet"
    saved = f"; saved {cost.saved_share:.0%} of on-demand alone" if cost.saved_share is not None else ""
    return [
        f"**{spec.run_id}**: {_deadline(spec, run)}; step {history.committed_step} of {spec.steps}",
        "",
        f"* state: {run.state}" + (f" (pool {plan.deployment})" if plan is not None else ""),
        f"* paid: {paid}{saved}",
        f"* last resume: {_one_line(verdict.sentence) if verdict is not None else 'none judged yet'}",
        f"* last decision: {_one_line(last.reason) if last is not None else 'none yet'}",
    ]


def tables(history: History, cost: CostReport) -> str:
    """The run as markdown tables: its segments, its cost, and every decision with its reason."""
    rows = segment_rows(history)
    lines = []
    if rows:
        lines += ["| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |", "|" + "---|" * len(rows[0])]
        lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    lines += ["", *_cost_lines(cost, history), "", *_decision_lines(history)]
    return "\n".join(lines)


def _deadline(spec: RunSpec, run: RunSummary) -> str:
    if spec.deadline is None:
        return "no deadline"
    outlook = "the step time is not known yet" if run.late_seconds is None else run.punctuality
    return f"{outlook} (deadline {spec.deadline:%Y-%m-%d %H:%M %Z})"


def _cost_lines(cost: CostReport, history: History) -> list[str]:
    if not history.attempts:
        return []
    return ["| cost | |", "|---|---|", *(f"| {name} | {_cell(text)} |" for name, text in cost.rows().items())]


def _decision_lines(history: History) -> list[str]:
    rows = decision_rows(history)
    lines = ["| time | action | capacity | reason | numbers |", "|---|---|---|---|---|"]
    for row in rows[-_MOST_DECISIONS:]:
        numbers = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in row["numbers"].items())
        where = row["capacity"] or "-"
        lines.append(f"| {row['time'][:19]} | {row['action']} | {where} | {_cell(row['reason'])} | {numbers} |")
    left_out = len(rows) - _MOST_DECISIONS
    if left_out > 0:
        lines += ["", f"{left_out} earlier decisions are in the log: `segue status RUN --json`."]
    return lines if rows else []


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    """The text for one cell of a table: a reason may quote an exception with line breaks and bars."""
    return _one_line(text).replace("|", "\\|")
