"""Shares observations of pools and machines between the runs of a store.

A run adds its observations to the store's memory, and a new run begins with the memory.
"""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from segue.clock import Clock
from segue.controller.costs.prices import append_at
from segue.policy.availability import intervals
from segue.policy.machines.machine_evidence import seen_machines
from segue.policy.spending import pools_now
from segue.policy.starts import machine_starts
from segue.records import SeenInterval, SeenPools, SeenPrice, SeenStart
from segue.runlog.entries import PoolsEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.pool_memory import add_to_memory, of_others, read_memory
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_EVERY = timedelta(hours=1)


def remember_pools(runlog: RunLog, spec: RunSpec, *, clock: Clock) -> None:
    """Add the run's observations of its pools to the record of pools in the store.

    The function adds observations once an hour, and after the end of the run. Call this function after each decision.
    If the store does not answer, or if other runs change the record at the same time, the function only logs a warning.
    The next call adds the observations again.
    """
    history = read_history(runlog)
    if not _is_due(history):
        return
    seen = seen_of(spec, history, log_id=runlog.log_id, now=clock.now())
    try:
        if not add_to_memory(runlog.store, seen):
            log.warning("the memory of pools was not changed reason=other runs change it at the same time")
    except (StoreReadError, StoreWriteError) as error:
        log.warning("the memory of pools was not changed reason=%s", error)


def recall_pools(runlog: RunLog, spec: RunSpec) -> None:
    """Copy other runs' observations of this run's pools into the log of this run, before its first decision.

    A signed run does not use the stored observations, because every writer of the store can change them.

    Raises:
        StoreReadError, StoreWriteError: the store could not be used. It is safe to try again.
    """
    history = read_history(runlog)
    if history.decisions or history.seen_pools != SeenPools() or runlog.is_signed:
        return
    seen = of_others(read_memory(runlog.store), spec.pools.deployments, log_id=runlog.log_id)
    if seen != SeenPools():
        append_at(runlog, history, lambda stamp: PoolsEntry.model_validate(stamp(epoch=0) | {"seen": seen}))


def seen_of(spec: RunSpec, history: History, *, log_id: str, now: datetime) -> SeenPools:
    """Return a run's observations of its pools. The function is pure."""
    pools = pools_now(spec, history)
    prices = {pool.deployment: pools.spot_pool_price(pool) for pool in pools.spot}
    prices[pools.on_demand] = pools.on_demand_price
    return SeenPools(
        intervals=tuple(
            SeenInterval(
                pool=each.deployment,
                log_id=log_id,
                is_up=each.is_up,
                begun_at=each.begun_at,
                seconds=each.seconds,
                has_ended=each.has_ended,
            )
            for each in intervals(history)
        ),
        starts=tuple(
            SeenStart(pool=pools.on_demand, log_id=log_id, decided_at=decided.written_at, seconds=seconds)
            for decided, seconds in machine_starts(history)
        ),
        prices={
            pool: SeenPrice(per_hour=price, currency=pools.currency, seen_at=now)
            for pool, price in prices.items()
            if pools.has_own_prices
        },
        machines=seen_machines(history, log_id=log_id),
    )


def _is_due(history: History) -> bool:
    decisions = history.decisions
    if not decisions:
        return False
    newest = decisions[-1]
    if newest.plan is None:
        return True
    # The newest decision and the decision before it are in different hours, counted from the first decision.
    hours = [(each.written_at - decisions[0].written_at) // _EVERY for each in decisions[-2:]]
    return hours[0] != hours[-1]
