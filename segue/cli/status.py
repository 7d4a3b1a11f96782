"""`segue status`, `segue runs`, `segue stop`: show one run, list the runs of a store, stop a run."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

import typer

from segue.cli.options import Endpoint, Json, Store, read_run, store_named
from segue.clock import SystemClock
from segue.controller.recovery_looks import SILENCE_FIX, seconds_without_look, silence_sentence
from segue.controller.standbys.messages import held_by_standbys
from segue.controller.steps import request_stop
from segue.policy.machines.bad_machines import of_run
from segue.records import Heartbeat, ParentRecord
from segue.reports.console import console, show_json
from segue.reports.cost_report import CostReport, cost_report
from segue.reports.page import finding_lines
from segue.reports.preemptions import notice_counts, preemptions
from segue.reports.run_facts import anomaly_numbers, budget_facts, money_facts, rehearsal_text, run_facts, segment_facts
from segue.reports.summary import live_of, summarize
from segue.reports.tables import anomaly_facts, decision_rows, rows_table, segments_table
from segue.runlog.history import History
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.open import known_runs
from segue.runlog.parents import read_parent

_ALIVE = timedelta(minutes=1)
"""A parent is alive if its newest heartbeat is not older than this time."""


def status(run: str, store: Store = ".segue/store", endpoint_url: Endpoint = None, as_json: Json = False) -> None:
    """Show one run: its segments, verdicts, preemptions, last decision, cost, and damaged records."""
    runlog, history = read_run(run, store=store, endpoint_url=endpoint_url)
    beat, now = _live_heartbeat(runlog, history), SystemClock().now()
    if as_json:
        show_json(_facts(run, runlog, history, beat=beat, now=now))
    else:
        _show(run, runlog, history, beat=beat, now=now)


def _facts(run: str, runlog: RunLog, history: History, *, beat: Heartbeat | None, now: datetime) -> dict[str, Any]:
    """Return the state, costs and history of a run for JSON output."""
    spec, last = history.spec, history.decisions[-1] if history.decisions else None
    cost = _cost(runlog, history, beat)
    parent = _parent(runlog, history)
    return {
        **run_facts(summarize(run, history, now=now, beat=beat), history),
        "waits_for": _waiting(parent),
        "bad_machines": [each.in_words for each in of_run(history, log_id=runlog.log_id, now=now)],
        "recovery": _unguarded(runlog, parent, now=now),
        "last_decision": last.reason if last else None,
        "rehearsal": history.drills[-1].verdict.kind.value if history.drills else None,
        **anomaly_numbers(history),
        **_live_facts(beat, now=now),
        **(money_facts(spec, history, now=now, beat=beat) if spec else {}),
        "segments": segment_facts(history),
        "preemptions": [one.facts() for one in preemptions(spec, history, beat=beat)] if spec else [],
        "decisions": decision_rows(history),
        "costs": cost.numbers() if cost else None,
        "findings": list(finding_lines(history)),
        "damage": [{"slot": item.slot, "key": item.key, "why": item.why} for item in history.damage],
    }


def _show(run: str, runlog: RunLog, history: History, *, beat: Heartbeat | None, now: datetime) -> None:
    """Print the run as text."""
    spec, last = history.spec, history.decisions[-1] if history.decisions else None
    summary = summarize(run, history, now=now, beat=beat)
    parent = _parent(runlog, history)
    facts: dict[str, Any] = {
        "run": run,
        "on_time": summary.punctuality if summary.late_seconds is not None else None,
        "committed_step": history.committed_step,
        "steps": spec.steps if spec else None,
        "state": summary.state,
        "waiting": _waiting(parent),
        "deadline": spec.deadline.isoformat(timespec="seconds") if spec and spec.deadline else None,
        "last_decision": last.reason if last else None,
    }
    rehearsal = rehearsal_text(spec, history)
    facts |= {"rehearsal": rehearsal} if rehearsal is not None else {}
    unguarded = _unguarded(runlog, parent, now=now)
    facts |= {"recovery": unguarded} if unguarded is not None else {}
    bad = of_run(history, log_id=runlog.log_id, now=now)
    facts |= {"bad machines": "; ".join(each.in_words for each in bad)} if bad else {}
    facts |= anomaly_facts(history) | _live_facts(beat, now=now)
    facts |= budget_facts(spec, history, now=now, beat=beat) if spec else {}
    taken = preemptions(spec, history, beat=beat) if spec else []
    facts |= {"notices": counts} if (counts := notice_counts(taken)) is not None else {}
    for name, value in facts.items():
        console.print(f"{name.replace('_', ' '):>21}  {'-' if value is None else value}", markup=False)
    console.print(segments_table(history))
    if spec is not None and taken:
        console.print("preemptions")
        console.print(rows_table([one.row(spec.pools.currency) for one in taken]))
    cost = _cost(runlog, history, beat)
    for name, value in cost.rows().items() if cost and history.attempts else ():
        console.print(f"{name:>21}  {value}", markup=False)
    for line in finding_lines(history):
        console.print(line, markup=False, soft_wrap=True)
    for item in history.damage:
        console.print(f"damaged: {item.key}: {item.why}", markup=False, style="red")


def runs(store: Store = ".segue/store", endpoint_url: Endpoint = None, as_json: Json = False) -> None:
    """List the runs of a store: state, step, time before or after the deadline, cost."""
    spec = store_named(store, endpoint_url=endpoint_url)
    now = SystemClock().now()
    found = []
    for runlog, history in known_runs(spec):
        beat = _live_heartbeat(runlog, history)
        found.append((summarize(runlog.run_id, history, now=now, beat=beat), history))
    if as_json:
        show_json({"store": store, "runs": [run_facts(one, history) for one, history in found]})
        return
    if not found:
        console.print(f"There are no runs in {store}.", markup=False)
        return
    console.print(rows_table([one.row() for one, _ in found]))


def stop(
    run: str,
    store: Store = ".segue/store",
    endpoint_url: Endpoint = None,
    reason: Annotated[
        str, typer.Option(help="Reason for the stop, shown in the run's log and the Prefect UI.")
    ] = "stopped by hand",
) -> None:
    """Stop a run: the attempt that trains commits a last checkpoint, and no further attempt starts."""
    runlog, _ = read_run(run, store=store, endpoint_url=endpoint_url)
    plan = request_stop(runlog, reason=reason)
    if plan is None:
        console.print(f"{run}: stopped; no attempt was training.", markup=False)
    else:
        console.print(
            f"{run}: stop requested. Segment {plan.segment} commits its last checkpoint on {plan.capacity} and ends; "
            f"`segue status {run}` shows it.",
            markup=False,
            soft_wrap=True,
        )
    console.print(f"Run the same command with --run-id {run} to resume it.", markup=False)


def _cost(runlog: RunLog, history: History, beat: Heartbeat | None) -> CostReport | None:
    if history.spec is None:
        return None
    standbys = held_by_standbys(runlog.store, runlog.run_id)
    return cost_report(history.spec, history, live=live_of(beat, history), standbys=standbys)


def _live_heartbeat(runlog: RunLog, history: History) -> Heartbeat | None:
    plan = history.open_plan
    return last_heartbeat(runlog, history.attempt_of(plan.segment, plan.attempt)) if plan is not None else None


def _parent(runlog: RunLog, history: History) -> ParentRecord | None:
    return None if history.is_over else read_parent(runlog.store, runlog.run_id)


def _waiting(parent: ParentRecord | None) -> str | None:
    """Return the reason why the run waits, as the parent wrote it. If the run waits for nothing, return None."""
    return parent.waiting if parent is not None else None


def _unguarded(runlog: RunLog, parent: ParentRecord | None, *, now: datetime) -> str | None:
    """Return the reason why recovery would not restart a dead parent. If recovery would restart it, return None."""
    if parent is None:
        return None
    if parent.unguarded is not None or now - parent.beat_at < _ALIVE:
        return parent.unguarded  # The parent watches the looks by their counter, not by clocks.
    seconds = seconds_without_look(runlog.store, now=now)
    return f"{silence_sentence(seconds)}. {SILENCE_FIX}" if seconds is not None else None


def _live_facts(beat: Heartbeat | None, *, now: datetime) -> dict[str, Any]:
    """Return the values of the current attempt's newest heartbeat.

    If there is no heartbeat, return an empty mapping.
    """
    if beat is None:
        return {}
    return {
        "live_step": beat.step,
        "heartbeat_age_seconds": round(max((now - beat.beat_at).total_seconds(), 0.0), 1),
        "saves": beat.cadence,
        "saves_delayed": beat.saves_delayed,
        "save_trouble": beat.trouble,
        "slowness": None if beat.slowness is None else round(beat.slowness, 2),
        "slow_ranks": "; ".join(each.in_words for each in beat.slow_ranks) or None,
    }
