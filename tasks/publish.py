"""The doorway to the UI: what a run looks like, as artifacts."""

from __future__ import annotations

import base64
import re

from prefect import task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE

from segue.controller.standby_messages import held_by_standbys
from segue.reports.cost import CostReport, cost_report
from segue.reports.run_plot import draw
from segue.reports.tables import decision_rows, segment_rows
from segue.runlog.history import History, read_history
from segue.runlog.open import open_log
from segue.spec import RunSpec

_MOST_DECISIONS = 50
"""How many of the newest decisions an artifact shows."""


@task(name="publish-run", retries=0, cache_policy=NO_CACHE)
def publish_run(spec: RunSpec) -> None:
    """Put the run's table and picture where the person on call looks."""
    runlog = open_log(spec).reload()
    picture = base64.b64encode(draw(runlog)).decode()
    cost = cost_report(spec, read_history(runlog), standbys=held_by_standbys(runlog.store, spec.run_id))
    text = f"![the run](data:image/png;base64,{picture})\n\n{summary(spec, read_history(runlog), cost)}"
    create_markdown_artifact(text, key=artifact_key(spec.run_id), description=f"Run {spec.run_id}")


def artifact_key(run_id: str) -> str:
    """Prefect wants lower-case letters, digits and dashes."""
    return "segue-" + re.sub(r"[^a-z0-9-]+", "-", run_id).strip("-")


def summary(spec: RunSpec, history: History, cost: CostReport) -> str:
    """The run as markdown tables: its segments, what it cost, why each of them was where it was."""
    rows = segment_rows(history)
    last = history.decisions[-1].reason if history.decisions else "nothing decided yet"
    lines = [f"**{spec.run_id}**: step {history.committed_step} of {spec.steps}; {last}", ""]
    if rows:
        lines += ["| " + " | ".join(name.replace("_", " ") for name in rows[0]) + " |", "|" + "---|" * len(rows[0])]
        lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    lines += ["", *_cost_lines(cost, history), "", *_decision_lines(history)]
    return "\n".join(lines)


def _cost_lines(cost: CostReport, history: History) -> list[str]:
    told = cost.rows() if history.attempts else {}
    return (
        ["| cost | |", "|---|---|", *(f"| {name} | {_cell(words)} |" for name, words in told.items())] if told else []
    )


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


def _cell(words: str) -> str:
    """Text that stays in its cell: a reason may quote what a recipe raised."""
    return " ".join(words.split()).replace("|", "\\|")
