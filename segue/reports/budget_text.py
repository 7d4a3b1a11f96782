"""A run's budget and its current prices, as people read them. Pure."""

from __future__ import annotations

from datetime import datetime

from segue.policy.budget import purse_of
from segue.policy.estimates import situation
from segue.records import Heartbeat
from segue.reports.summary import live_of
from segue.runlog.history import History
from segue.spec import RunSpec


def budget_facts(spec: RunSpec, history: History, *, now: datetime, beat: Heartbeat | None = None) -> dict[str, str]:
    """What was spent of the budget, and the prices that hold; empty for a run with neither."""
    found = {}
    here = situation(spec, history, now=now)
    purse = purse_of(spec, history, here, now=now, live_seconds=live_of(beat, history).seconds)
    if purse is not None:
        expected = "" if history.is_over else purse.shortage()
        found["budget"] = "; ".join(part for part in (purse.in_words(), expected) if part)
    known = history.prices
    if known is not None and spec.pools.prices is not None:
        listed = ", ".join(f"{name} {price:g}" for name, price in known.prices.items())
        trouble = f"; the source fails: {known.problem}" if known.problem is not None else ""
        found["prices"] = f"{listed} {spec.pools.currency}".strip() + f" ({known.taken_at:%Y-%m-%d %H:%M %Z}){trouble}"
    return found
