"""Makes tables of a run's segments, decisions and checkpoints, as plain rows and for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from segue.policy.anomalies import anomalies_of
from segue.records import Manifest, SegmentReport
from segue.reports.summary import pool_name
from segue.runlog.history import History


def segments_table(history: History) -> Table:
    """Return one row for each attempt: its steps, its stop reason, and the verdict on its resume."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in ("segment", "pool", "steps", "stop reason", "lost steps", "verdict", "seconds"):
        table.add_column(name, justify="right" if name in {"lost steps", "seconds"} else "left", no_wrap=True)
    for row in segment_rows(history):
        table.add_row(*(str(value) for value in row.values()))
    return table


def without_empty_columns(rows: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return the rows without the columns that have no value in any row."""
    shown = {name for row in rows for name, text in row.items() if text not in ("-", "0")}
    return [{name: text for name, text in row.items() if name in shown} for row in rows]


def anomaly_facts(history: History) -> dict[str, Any]:
    """Return the rollbacks after anomalies, and the batches that the run skips because of anomalies.

    If there were no rollbacks, the result is empty.
    """
    seen = anomalies_of(history.last_reports())
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    skips = plans[-1].skips if plans else ()
    rollbacks = {"rollbacks": f"{len(seen)}, last: {seen[-1].sentence}"} if seen else {}
    return rollbacks | ({"left_out": "; ".join(skip.in_words for skip in skips)} if skips else {})


def segment_rows(history: History) -> list[dict[str, Any]]:
    """Return the rows of the segments table as plain data."""
    return [
        {
            "segment": f"{report.segment}" + (f".{report.attempt}" if report.attempt > 1 else ""),
            "pool": "import"
            if history.is_import(report.segment, report.attempt)
            else pool_name(history.plan_of(report.segment, report.attempt), report.capacity),
            "steps": f"{report.from_step}-{_kept_step(report)}" if _has_run(report, history) else "-",
            "stop_reason": _ended_as(report),
            "lost_steps": report.lost_steps,
            "verdict": _verdict_of(report, history),
            "seconds": round(report.seconds, 1),
        }
        for report in history.last_reports()
    ]


def decision_rows(history: History) -> list[dict[str, Any]]:
    """Return every decision with its reason and its numbers, oldest first."""
    return [
        {
            "time": entry.written_at.isoformat(timespec="seconds"),
            "action": entry.action,
            "capacity": entry.plan.capacity.value if entry.plan and entry.action == "run" else None,
            "deployment": entry.plan.deployment if entry.plan and entry.action == "run" else None,
            "reason": entry.reason,
            "numbers": entry.numbers,
        }
        for entry in history.decisions
    ]


def checkpoint_rows(history: History) -> list[dict[str, Any]]:
    """Return every checkpoint in the log, oldest first."""
    return [
        {
            "step": c.manifest.step,
            "slot": c.ref.slot,
            "attempt": c.ref.attempt_id,
            "bytes": c.manifest.size_bytes,
            "metric": c.manifest.metric,
            "rows": len(c.rows),
            "state": "quarantined" if c.quarantined else "pruned" if c.is_pruned else "kept",
            "parent": c.manifest.parent.step if c.manifest.parent else None,
            "reason": c.quarantined or _origin(c.manifest),
        }
        for c in history.checkpoints
    ]


def rows_table(rows: list[dict[str, Any]]) -> Table:
    """Return a terminal table of plain rows. The table shows None as a dash."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in rows[0] if rows else ():
        table.add_column(name.replace("_", " "))
    for row in rows:
        table.add_row(*("-" if value is None else _shown(value) for value in row.values()))
    return table


def _shown(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _ended_as(report: SegmentReport) -> str:
    anomaly = report.anomaly
    return report.stop_reason.value + (f", {anomaly.channel} {anomaly.value:.4g}" if anomaly is not None else "")


def _has_run(report: SegmentReport, history: History) -> bool:
    return report.got_capacity or history.is_import(report.segment, report.attempt)


def _kept_step(report: SegmentReport) -> int:
    return report.checkpoint.step if report.checkpoint else report.from_step


def _verdict_of(report: SegmentReport, history: History) -> str:
    attempt = history.attempt_named(report.attempt_id)
    if attempt is None:
        return "-"
    if attempt.verdict is not None:
        return f"{attempt.verdict.kind}, {attempt.verdict.rows_compared} steps"
    return "unverified" if report.from_step and report.got_capacity else "-"


def _origin(manifest: Manifest) -> str | None:
    if manifest.lost_ranks:
        return f"committed by rank 0 alone after the loss of rank {', '.join(map(str, manifest.lost_ranks))}"
    file, fork = manifest.imported_from, manifest.forked_from
    if file is not None:
        return f"{manifest.origin} (SHA-256 {file.sha256})"
    return f"{manifest.origin}, reset: {', '.join(fork.reset)}" if fork is not None and fork.reset else manifest.origin
