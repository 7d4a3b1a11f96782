"""Checks whether a budget pays for a run before the run buys capacity."""

from __future__ import annotations

import math

from segue.clock import Clock
from segue.controller.costs.other_spending import with_spending_to_start
from segue.controller.costs.prices import with_prices_to_start
from segue.errors import BudgetError
from segue.policy.budget_cap import time_left_seconds
from segue.policy.decide import decide
from segue.runlog.history import History
from segue.runlog.log import RunLog
from segue.spec import RunSpec


def refuse_cost(runlog: RunLog | None, spec: RunSpec, history: History, *, clock: Clock) -> None:
    """Check that the prices of the run are known and that its budget pays for a start. The function writes nothing.

    For a run that continues, the next decision checks the budget and may end the run. If `runlog` is None, the store is
    new and has no costs.

    Raises:
        PriceSourceError: no prices of the run are known, and the source of prices fails.
        BudgetError: the budget of a run that begins, or begins again, does not pay for one attempt or for the run.
    """
    history = with_prices_to_start(spec, history, clock=clock)
    has_begun = any(entry.action == "run" for entry in history.decisions) and not history.is_over
    if has_begun or not (spec.budget.is_cap or spec.budget.max_hours):
        return
    if runlog is not None:
        history = with_spending_to_start(runlog, spec, history, clock=clock)
    first = decide(spec, history, now=clock.now())
    if first.action == "budget":
        fix = 'raise the budget, make the run cheaper, or set budget.on_exceeded = "warn".'
        if time_left_seconds(spec, history, now=clock.now()) < math.inf and not spec.budget.is_cap:
            fix = "set a higher budget.max_hours."
        raise BudgetError(run_id=spec.run_id, why=first.reason, fix=fix)
