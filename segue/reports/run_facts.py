"""Collects a run's values for JSON output, and texts about its budget, its prices and its rehearsal.

In JSON output, the key of each number contains its unit, and no program needs to parse a text. The module is pure.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from segue.continuity.noise import FIX, in_words
from segue.policy.anomalies import anomalies_of
from segue.policy.broken_resumes import is_rehearsal_due
from segue.policy.budget_cap import Purse, caps_of
from segue.records import Heartbeat, VerdictKind
from segue.reports.goodput import goodput_by_attempt
from segue.reports.summary import RunSummary, live_of
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import money


def run_facts(run: RunSummary, history: History) -> dict[str, Any]:
    """Return the values of one run for `segue runs --json`."""
    plan, cost = history.open_plan, run.cost
    return {
        "run": run.run,
        "state": state_name(history),
        "segment": plan.segment if plan is not None else None,
        "attempt": plan.attempt if plan is not None else None,
        "pool": plan.deployment if plan is not None else None,
        "committed_steps": history.committed_step,
        "reached_steps": run.step,
        "goal_steps": run.steps,
        "deadline": _moment(history.spec.deadline) if history.spec is not None else None,
        "late_seconds": round(run.late_seconds, 3) if run.late_seconds is not None else None,
        "finish_at": _moment(run.finish_at),
        "cost": round(cost.cost, 6) if cost is not None else None,
        "currency": cost.currency if cost is not None else None,
    }


def state_name(history: History) -> str:
    """Return the state of a run as one word.

    If the run is over, the result is the action of its last decision. The words for an open run are "running",
    "stopping", "importing" and "deciding".
    """
    if history.spec is not None and history.is_finished(history.spec):
        return "finished"
    plan, last = history.open_plan, history.decisions[-1] if history.decisions else None
    if plan is not None:
        is_import = history.is_import(plan.segment, plan.attempt)
        return "importing" if is_import else "stopping" if history.stop is not None else "running"
    return last.action if last is not None and history.is_over else "deciding"


def segment_facts(history: History) -> list[dict[str, Any]]:
    """Return the values of every attempt that has ended, oldest first."""
    return [
        {
            "segment": report.segment,
            "attempt": report.attempt,
            "pool": "import" if history.is_import(report.segment, report.attempt) else report.capacity.value,
            "deployment": plan.deployment if plan is not None else None,
            "from_step": report.from_step,
            "to_step": report.to_step,
            "committed_step": report.checkpoint.step if report.checkpoint else None,
            "lost_steps": report.lost_steps,
            "stop_reason": report.stop_reason.value,
            "anomaly": report.anomaly.model_dump(mode="json") if report.anomaly is not None else None,
            "verdict": verdict.kind.value if verdict is not None else None,
            "compared_steps": verdict.rows_compared if verdict is not None else None,
            "seconds": round(report.seconds, 3),
            "goodput": round(known.share, 4) if known.share is not None else None,
            "seconds_by_cause": {cause: round(seconds, 3) for cause, seconds in known.seconds.items()},
        }
        for report, known in goodput_by_attempt(history)
        for plan in [history.plan_of(report.segment, report.attempt)]
        for attempt in [history.attempt_named(report.attempt_id)]
        for verdict in [attempt.verdict if attempt is not None else None]
    ]


def anomaly_numbers(history: History) -> dict[str, Any]:
    """Return the number of rollbacks after anomalies, and the batches that the run skips because of anomalies."""
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    return {
        "rollbacks": len(anomalies_of(history.last_reports())),
        "left_out": [skip.model_dump(mode="json") for skip in plans[-1].skips] if plans else [],
    }


def money_facts(spec: RunSpec, history: History, *, now: datetime, beat: Heartbeat | None = None) -> dict[str, Any]:
    """Return each limit of the budget with the amount spent, and the current prices per hour."""
    known = history.prices if spec.pools.prices is not None else None
    caps = caps_of(spec, history, now=now, live_seconds=live_of(beat, history).seconds)
    return {
        "budget": [
            {"of": cap.whose, "limit": cap.limit, "spent": round(cap.spent, 6), "currency": spec.pools.currency}
            for cap in caps
        ],
        "prices_per_hour": dict(known.prices) if known is not None else None,
        "prices_taken_at": _moment(known.taken_at) if known is not None else None,
        "prices_problem": known.problem if known is not None else None,
    }


def _moment(moment: datetime | None) -> str | None:
    return moment.isoformat(timespec="seconds") if moment is not None else None


def rehearsal_text(spec: RunSpec | None, history: History) -> str | None:
    """Return a text about the state of the rehearsal. If the run has no rehearsal, return None."""
    if history.drills:
        last = history.drills[-1]
        said = f"{last.verdict.sentence.rstrip('.')} (from step {last.checkpoint.step}, {last.seconds:.0f} s)"
        if last.verdict.noise:
            said += f"; {in_words(last.verdict.noise)}. Fix: {FIX}"
        refuted = last.verdict.kind is VerdictKind.BROKEN and history.broken_drill is None
        return f"{said}; refuted by a later resume" if refuted else said
    if spec is None or not is_rehearsal_due(spec, history, ranks=spec.ranks or 2):
        return None
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    if attempt is None or attempt.report is not None:
        return None
    is_sealed = any(c.rows and c.ref.attempt_id == attempt.claim.attempt_id for c in history.checkpoints)
    return "under way" if is_sealed else "begins after the first sealed checkpoint"


def budget_facts(spec: RunSpec, history: History, *, now: datetime, beat: Heartbeat | None = None) -> dict[str, str]:
    """Return texts about the spent part of the budget and about the current prices.

    For a run without a budget and without prices, the result is empty.
    """
    found = {}
    caps = caps_of(spec, history, now=now, live_seconds=live_of(beat, history).seconds)
    if caps:
        # The estimate of the last decision: a new estimate is too expensive for a page that is refreshed all the time.
        expected = history.decisions[-1].numbers.get("expected_cost") if history.decisions else None
        found["budget"] = Purse(caps, expected, spec.pools.currency).in_words()
        if expected is not None and not history.is_over:
            rest = money(expected, spec.pools.currency)
            found["budget"] += f"; at the last decision, the expected cost of the remaining work was {rest}"
    known = history.prices
    if known is not None and spec.pools.prices is not None:
        listed = ", ".join(f"{name} {price:g}" for name, price in known.prices.items())
        trouble = f"; reading newer prices failed: {known.problem}" if known.problem is not None else ""
        found["prices"] = f"{listed} {spec.pools.currency} per hour ({known.taken_at:%Y-%m-%d %H:%M %Z}){trouble}"
    return found
