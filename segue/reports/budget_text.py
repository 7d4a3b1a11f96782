"""A run's budget and its current prices as text. The module is pure."""

from __future__ import annotations

from datetime import datetime

from segue.policy.budget_cap import Purse, caps_of
from segue.records import Heartbeat
from segue.reports.summary import live_of
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import money


def budget_facts(spec: RunSpec, history: History, *, now: datetime, beat: Heartbeat | None = None) -> dict[str, str]:
    """Return texts about the spent part of the budget and about the current prices.

    The result is empty for a run without a budget and prices.
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
