"""Derives the events of a run, for automations, from the run's log and its current state. The module is pure.

Every parent of a run derives the same key for the same event.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise

from segue.policy.estimates import changeover_seconds
from segue.records import Capacity, VerdictKind
from segue.reports.page import RunView
from segue.reports.preemptions import preemptions
from segue.runlog.entries import DecisionEntry, VerdictEntry
from segue.units import duration

PREEMPTED = "segue.preempted"
ESCALATED = "segue.escalated"
RESUME_BROKEN = "segue.resume.broken"
AT_RISK = "segue.deadline.at-risk"
LATE = "segue.late"
FINISHED = "segue.finished"
BUDGET = "segue.budget"
STALE_PRICES = "segue.prices.stale"
RECOVERY_SILENT = "segue.recovery.silent"
"""Name of the event that recovery's checks no longer complete. The event belongs to a store, not to a run."""

Fact = str | int | float | None


@dataclass(frozen=True)
class RunEvent:
    """One event: its name, its time, and a description as a sentence and as numbers."""

    name: str
    key: str
    """The key of the event, which is unique within the run."""
    at: datetime
    sentence: str
    facts: dict[str, Fact] = field(default_factory=dict)


def run_events(view: RunView) -> list[RunEvent]:
    """Return all events of a run up to now, grouped by name."""
    found = [*_preempted(view), *_escalated(view), *_broken(view), *_deadline(view), *_budget(view)]
    found += [*_prices(view), *_finished(view)]
    run = view.summary
    common: dict[str, Fact] = {
        "run": view.spec.run_id,
        "store": view.spec.store.url,
        "steps": view.spec.steps,
        "deadline": view.spec.deadline.isoformat() if view.spec.deadline is not None else None,
        "late_seconds": round(run.late_seconds, 3) if run.late_seconds is not None else None,
    }
    return [
        RunEvent(event.name, event.key, event.at, event.sentence, common | {"step": run.step} | event.facts)
        for event in found
    ]


def _preempted(view: RunView) -> Iterator[RunEvent]:
    # Only after the next decision: until then the stop reason of the last report may still be corrected.
    decided = {(e.plan.segment, e.plan.attempt) for e in view.history.decisions[:-1] if e.plan is not None}
    for one in preemptions(view.spec, view.history, beat=view.beat):
        report = view.history.report_of(one.segment, one.attempt)
        if report is None or (one.segment, one.attempt) not in decided:
            continue
        kept = f"step {report.checkpoint.step} is committed" if report.checkpoint else "nothing was committed"
        lost = f"{one.lost_steps} steps are lost" if one.lost_steps else "no step is lost"
        yield RunEvent(
            PREEMPTED,
            f"preempted:{one.segment}:{one.attempt}",
            one.ended_at or view.now,
            f"segment {one.segment} was preempted on {one.pool} ({one.warning}) at step {report.to_step}; "
            f"{kept}, {lost}",
            {
                "step": report.to_step,
                "pool": one.pool,
                "notice": one.notice,
                "lost_steps": one.lost_steps,
                "seconds": round(report.seconds, 3),
            },
        )


def _escalated(view: RunView) -> Iterator[RunEvent]:
    planned = [e for e in view.history.decisions if e.plan is not None and e.action == "run"]
    for before, entry in pairwise(planned):
        if _capacity(before) is Capacity.SPOT and _capacity(entry) is Capacity.ON_DEMAND and entry.plan is not None:
            plan = entry.plan
            facts: dict[str, Fact] = {"step": plan.parent.step if plan.parent else 0, "pool": plan.deployment}
            yield RunEvent(
                ESCALATED,
                f"escalated:{plan.segment}:{plan.attempt}",
                entry.written_at,
                f"segment {plan.segment} moves from spot to on-demand: {entry.reason}",
                facts | {"slack_seconds": entry.numbers.get("slack_seconds")},
            )


def _capacity(entry: DecisionEntry) -> Capacity | None:
    return entry.plan.capacity if entry.plan is not None else None


def _broken(view: RunView) -> Iterator[RunEvent]:
    for entry in view.history.resumes:
        if entry.verdict.kind is VerdictKind.BROKEN:
            yield _broken_resume(entry)
    for drill in view.history.drills:
        if drill.verdict.kind is VerdictKind.BROKEN:
            step = drill.checkpoint.step
            sentence = f"the resume rehearsal from step {step} is {drill.verdict.sentence}"
            yield RunEvent(RESUME_BROKEN, f"drill:{drill.entry_id}", drill.written_at, sentence, {"step": step})


def _broken_resume(entry: VerdictEntry) -> RunEvent:
    finding = entry.verdict.findings[0] if entry.verdict.findings else None
    facts: dict[str, Fact] = {"step": entry.parent.step, "attempt": entry.attempt_id}
    if finding is not None:
        facts |= {"component": finding.component, "channel": finding.channel}
    sentence = f"the resume from step {entry.parent.step} is {entry.verdict.sentence}"
    return RunEvent(RESUME_BROKEN, f"broken:{entry.attempt_id}", entry.written_at, sentence, facts)


def _deadline(view: RunView) -> Iterator[RunEvent]:
    """Yield the event `late` if the deadline has passed or the run cannot meet it.

    If less than one changeover delay is left, yield the event `at risk`.
    """
    spec, run, deadline = view.spec, view.summary, view.spec.deadline
    if deadline is None or (run.is_over and run.state != "finished"):
        return
    changeover = changeover_seconds(spec, view.history)
    late = run.late_seconds
    at = run.finish_at if run.state == "finished" and run.finish_at is not None else view.now
    facts: dict[str, Fact] = {"pool": _pool(view), "seconds": round(late, 3) if late is not None else None}
    if at > deadline or (late is not None and _without_margin(view, late) > 0):
        said = run.punctuality if late is not None else f"the deadline passed at step {run.step}"
        yield RunEvent(LATE, f"late:{deadline.isoformat()}", at, f"{said}; step {run.step} of {spec.steps}", facts)
    elif late is not None and late > -changeover and run.state != "finished":
        sentence = f"{run.punctuality}: less than one changeover ({duration(changeover)}) is left before the deadline"
        yield RunEvent(AT_RISK, f"at-risk:{deadline.isoformat()}", at, sentence, facts)


def _without_margin(view: RunView, late_seconds: float) -> float:
    """Return the expected lateness in seconds, without the safety margin on the remaining work.

    The safety margin alone must not cause the event `late`.
    """
    finish_at = view.summary.finish_at
    if finish_at is None or view.summary.state == "finished":
        return late_seconds
    share = view.spec.policy.margin_share
    return late_seconds - (finish_at - view.now).total_seconds() * share / (1 + share)


def _budget(view: RunView) -> Iterator[RunEvent]:
    """Yield an event when the budget ends the run, and when the run ignores its deadline because of the budget.

    Also yield one event when the budget is not expected to suffice.
    """
    has_warned = False
    for entry in view.history.decisions:
        left, expected = entry.numbers.get("budget_left"), entry.numbers.get("expected_cost")
        facts: dict[str, Fact] = {"budget_left": left, "expected_cost": expected, "currency": view.spec.pools.currency}
        is_short = left is not None and (left <= 0 or (expected is not None and expected > left))
        if entry.action == "budget":
            yield RunEvent(BUDGET, f"budget:{entry.entry_id}", entry.written_at, entry.reason, facts)
        elif entry.plan is not None and entry.plan.ignores_deadline:
            sentence = f"segment {entry.plan.segment}: {entry.reason}"
            yield RunEvent(BUDGET, f"budget:{entry.entry_id}", entry.written_at, sentence, facts)
        elif is_short and not has_warned:
            has_warned = True
            yield RunEvent(BUDGET, "budget:warned", entry.written_at, entry.reason, facts)


def _prices(view: RunView) -> Iterator[RunEvent]:
    known = view.history.prices
    if known is not None and known.problem is not None:
        since = known.taken_at.isoformat(timespec="seconds")
        sentence = f"prices of {since} stay in force, because reading newer prices failed: {known.problem}"
        yield RunEvent(STALE_PRICES, f"prices:{since}", known.written_at, sentence, {"source": known.source})


def _finished(view: RunView) -> Iterator[RunEvent]:
    last = view.history.decisions[-1] if view.history.decisions else None
    if last is None or last.action != "finished":
        return
    run, cost = view.summary, view.cost.sentence
    parts = [run.punctuality if run.late_seconds is not None else "", last.reason, cost]
    facts: dict[str, Fact] = {"pool": None, "cost": round(view.cost.cost, 6), "currency": view.cost.currency}
    goodput = view.cost.goodput.share
    facts |= {"goodput": round(goodput, 4)} if goodput is not None else {}
    sentence = "; ".join(part for part in parts if part)
    yield RunEvent(FINISHED, f"finished:{last.entry_id}", last.written_at, sentence, facts)


def _pool(view: RunView) -> str | None:
    plan = view.history.open_plan
    return plan.deployment if plan is not None else None
