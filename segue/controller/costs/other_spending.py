"""Computes the costs under a run's budget that are not in the run's log.

The module adds up the costs of other runs of the store and of the run's standbys.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from segue.clock import Clock
from segue.controller.costs.prices import append_at
from segue.controller.standbys.messages import held_standbys
from segue.policy.spending import STANDBYS, Charge, charges_of, month_of, pools_now
from segue.records import Capacity
from segue.runlog.entries import SpendingEntry
from segue.runlog.history import History
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.open import runs_in
from segue.spec import RunSpec
from segue.stores.base import Store

_OLD_SECONDS = 60.0
"""Maximum age in seconds of the cached sum over a store's runs.

Without the cache, each of several quick failures would read all logs.
"""


def charges_in_store(runlog: RunLog, history: History) -> list[Charge]:
    """Return the current costs of a run's standbys and attempts, including the attempt that trains now.

    Raises:
        StoreReadError: the store could not be read.
    """
    if history.spec is None:
        return []
    plan = history.open_plan
    attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
    beat = last_heartbeat(runlog, attempt)
    live = (
        (beat.beat_at - attempt.claim.written_at).total_seconds() if beat is not None and attempt is not None else 0.0
    )
    attempts = charges_of(history.spec, history, live_seconds=live)
    return attempts + standby_charges(runlog.store, runlog.run_id, history.spec, history)


def standby_charges(store: Store, run_id: str, spec: RunSpec, history: History) -> list[Charge]:
    """Return the current costs of a run's standbys, at the newest prices.

    Raises:
        StoreReadError: the store could not be read.
    """
    pools = pools_now(spec, history)
    return [
        Charge(
            Capacity.SPOT,
            held.began_at,
            held.seconds,
            pools.price(Capacity.SPOT, held.deployment),
            use=STANDBYS,
            deployment=held.deployment,
        )
        for held in held_standbys(store, run_id)
    ]


def with_spending_to_start(runlog: RunLog, spec: RunSpec, history: History, *, clock: Clock) -> History:
    """Return the history of a run that is about to start, with the costs of other runs and of standbys.

    If the run has no budget, the history is unchanged.

    Raises:
        StoreReadError: the store could not be read.
    """
    if not spec.budget.is_set:
        return history
    facts = _facts(runlog, spec, history, clock)
    return replace(history, spending=SpendingEntry(entry_id="", written_at=clock.now(), **facts))


def refresh_spending(runlog: RunLog, spec: RunSpec, history: History, *, clock: Clock) -> bool:
    """Record the costs of other runs and of standbys, if the last record is old and the costs differ.

    Return whether the function wrote a record.

    Raises:
        StoreWriteError, StoreReadError: the store could not be used. It is safe to try again.
    """
    known = history.spending
    if not spec.budget.is_set:
        return False
    if known is not None and (clock.now() - known.written_at).total_seconds() < _OLD_SECONDS:
        return False
    facts = _facts(runlog, spec, history, clock)
    # If no budget covers all runs of the store, most runs have no other costs to record.
    before = {} if known is None else {name: getattr(known, name) for name in facts}
    is_nothing = known is None and not (facts["standby_cost"] or facts["standby_month_cost"])
    if spec.budget.per_month is None and (is_nothing or facts == before):
        return False
    return append_at(runlog, history, lambda stamp: SpendingEntry.model_validate(stamp(epoch=0) | facts))


def _facts(runlog: RunLog, spec: RunSpec, history: History, clock: Clock) -> dict[str, Any]:
    month, others = month_of(clock.now(), spec.budget.zone), list[Charge]()
    if spec.budget.per_month is not None:
        for log, its in runs_in(runlog.store, spec.store, other_than=runlog.run_id):
            others += charges_in_store(log, its)
    standbys = standby_charges(runlog.store, runlog.run_id, spec, history)
    return {
        "month": month.name,
        "others_cost": _sum(charge.cost_in(month) for charge in others),
        "standby_cost": _sum(charge.cost for charge in standbys),
        "standby_month_cost": _sum(charge.cost_in(month) for charge in standbys),
    }


def _sum(costs: Iterable[float]) -> float:
    return round(sum(costs), 6)
