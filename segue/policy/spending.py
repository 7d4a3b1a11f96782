"""Computes the cost of a run by attempt and by month. The module is pure.

The cost of an attempt is the time from its claim to its end, at the price at the time of its decision. `pools.prices`
names the source of current prices, and the run's log contains the prices from this source. If an attempt has starts on
several pools, each unused start costs from the moment at which a worker takes it until its withdrawal.

If a pool has a price for data between its machines and the store, the cost includes the checkpoint that the attempt
read and the checkpoints that it wrote. The choice of a pool includes the cost of data in the price per hour.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from segue.records import Capacity, SegmentReport
from segue.runlog.history import Attempt, History
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec

HOUR = 3600.0
STANDBYS, WITHDRAWN, LIVE = "standbys", "withdrawn starts", "attempt that trains now"
_GB = 1e9


@dataclass(frozen=True)
class Charge:
    """A period with a machine at a price per hour, and the cost of its data."""

    capacity: Capacity
    began_at: datetime
    seconds: float
    price: float
    transfer: float = 0.0
    """Money for data between the machine and the store."""
    use: str = ""
    """The use of the machine. The text is empty if the machine ran the attempt of `report`."""
    report: SegmentReport | None = None
    """The report of the attempt, if the attempt has ended."""
    deployment: str = ""
    """The pool of the machine."""

    @property
    def cost(self) -> float:
        return self.seconds * self.price / HOUR + self.transfer

    @property
    def ended_at(self) -> datetime:
        return self.began_at + timedelta(seconds=self.seconds)

    def cost_in(self, month: Month) -> float:
        """Return the part of the cost that belongs to a month."""
        return self.within(month).cost

    def within(self, month: Month) -> Charge:
        """Return the part of the charge that belongs to a month. The part may be empty."""
        begins_at = max(self.began_at, month.begins_at)
        inside = (min(self.ended_at, month.ends_at) - begins_at).total_seconds()
        seconds = max(inside, 0.0)
        is_inside = month.begins_at <= self.began_at < month.ends_at
        share = seconds / self.seconds if self.seconds else float(is_inside)
        return replace(self, began_at=begins_at, seconds=seconds, transfer=share * self.transfer)


@dataclass(frozen=True)
class Month:
    """A calendar month of one time zone."""

    name: str
    """The name of the month, for example 2026-11."""
    begins_at: datetime
    ends_at: datetime


def month_of(moment: datetime, zone: tzinfo) -> Month:
    """Return the calendar month of a moment."""
    there = moment.astimezone(zone)
    return month_named(there.year, there.month, zone)


def month_named(year: int, number: int, zone: tzinfo) -> Month:
    """Return the calendar month of a year by its number, from 1 to 12."""
    begins_at = datetime(year, number, 1, tzinfo=zone)
    ends_at = datetime(year + number // 12, number % 12 + 1, 1, tzinfo=zone)
    # The difference is computed in UTC, because a difference in one zone ignores the hour of summer time.
    return Month(f"{begins_at:%Y-%m}", begins_at.astimezone(UTC), ends_at.astimezone(UTC))


def months_of(charges: Iterable[Charge], zone: tzinfo) -> list[Month]:
    """Return the months of the charges, oldest first."""
    found: dict[str, Month] = {}
    for charge in charges:
        month = month_of(charge.began_at, zone)
        found[month.name] = month
        while month.ends_at < charge.ended_at:
            month = month_of(month.ends_at, zone)
            found[month.name] = month
    return [found[name] for name in sorted(found)]


def pools_now(spec: RunSpec, history: History) -> PoolSpec:
    """Return the pools at current prices.

    The current prices are the newest prices in the log, or the prices in the run spec.
    """
    is_known = spec.pools.prices is not None and history.prices is not None
    return history.once(_at_newest_prices, spec) if is_known else spec.pools


def _at_newest_prices(spec: RunSpec, history: History) -> PoolSpec:
    assert history.prices is not None
    return spec.pools.at(history.prices.prices)


def priced_pools(spec: RunSpec, history: History) -> PoolSpec:
    """Return the pools at the prices that decisions use.

    Decisions use the current prices plus the cost per hour of the checkpoints that the run writes.
    """
    return history.once(_priced_now, spec) if spec.pools.has_transfer_prices else pools_now(spec, history)


def _priced_now(spec: RunSpec, history: History) -> PoolSpec:
    return with_transfer(pools_now(spec, history), history)


def with_transfer(pools: PoolSpec, history: History) -> PoolSpec:
    """Return the pools at prices that include the money per hour for checkpoints.

    The run's attempts have measured their writes per hour. The estimate treats each attempt as at least one hour,
    because an attempt that dies early also writes a checkpoint.
    """
    written = 0
    trained = [report for report in history.last_reports() if report.got_capacity]
    for report in trained:
        attempt = history.attempt_of(report.segment, report.attempt)
        written += _bytes_written(history, attempt) if attempt is not None else 0
    gb_per_hour = written / _GB / max(sum(report.seconds for report in trained), HOUR) * HOUR
    spot = tuple(
        pool.model_copy(update={"price": pools.spot_pool_price(pool) + gb_per_hour * pool.transfer_price_per_gb})
        for pool in pools.spot
    )
    on_demand = pools.on_demand_price + gb_per_hour * pools.on_demand_transfer_price_per_gb
    return pools.model_copy(update={"spot": spot, "on_demand_price": on_demand})


def read_cost(pools: PoolSpec, history: History, capacity: Capacity, deployment: str) -> float:
    """Return the cost of the data of a start: the newest checkpoint, from the store to a machine of the pool."""
    size = history.newest.manifest.size_bytes if history.newest is not None else 0
    return size / _GB * pools.transfer_price_per_gb(capacity, deployment)


def _bytes_written(history: History, attempt: Attempt) -> int:
    found = [history.checkpoint(ref) for ref in attempt.commits]
    return sum(checkpoint.manifest.new_bytes for checkpoint in found if checkpoint is not None)


def _transfer(spec: RunSpec, history: History, segment: int, attempt: int) -> float:
    """Return the cost of the checkpoint that an attempt read and of the checkpoints that it wrote."""
    done, plan = history.attempt_of(segment, attempt), history.plan_of(segment, attempt)
    if done is None or plan is None or not spec.pools.has_transfer_prices:
        return 0.0
    per_gb = spec.pools.transfer_price_per_gb(plan.capacity, plan.deployment)
    parent = history.checkpoint(plan.parent) if plan.parent is not None else None
    read = parent.manifest.size_bytes if parent is not None else 0
    return (read + _bytes_written(history, done)) / _GB * per_gb


def price_of(spec: RunSpec, history: History, report: SegmentReport) -> float:
    """Return the price per hour of a reported attempt."""
    return _price_of(spec, history, report.segment, report.attempt, report.capacity)


def charges_of(spec: RunSpec, history: History, *, live_seconds: float = 0.0) -> list[Charge]:
    """Return the cost of each attempt of a run, in the order of the attempts. The costs of standbys are not included.

    `live_seconds` is the number of seconds for which an attempt without a report has had its machine, according to its
    heartbeat.
    """
    found = []
    for report in history.last_reports():
        if report.got_capacity and report.seconds > 0:
            began_at = _began_at(history, report.segment, report.attempt)
            price = price_of(spec, history, report)
            moved = _transfer(spec, history, report.segment, report.attempt)
            pool = _deployment_of(history, report.segment, report.attempt)
            charge = Charge(report.capacity, began_at, report.seconds, price, moved, report=report, deployment=pool)
            found.append(charge)
    found += _withdrawn_charges(spec, history)
    plan = history.open_plan
    if live_seconds > 0 and plan is not None and not history.is_import(plan.segment, plan.attempt):
        price = _price_of(spec, history, plan.segment, plan.attempt, plan.capacity)
        began_at = _began_at(history, plan.segment, plan.attempt)
        moved = _transfer(spec, history, plan.segment, plan.attempt)
        found.append(Charge(plan.capacity, began_at, live_seconds, price, moved, use=LIVE, deployment=plan.deployment))
    return found


def _withdrawn_charges(spec: RunSpec, history: History) -> list[Charge]:
    found = []
    for start in history.starts:
        plan = history.plan_of(start.segment, start.attempt)
        has_ended = start.outcome in ("withdrawn", "start_failed")
        if has_ended and start.seconds > 0 and plan is not None and plan.pools:
            began_at = start.written_at - timedelta(seconds=start.seconds)
            price = _price_of(spec, history, start.segment, start.attempt, plan.capacity, deployment=start.deployment)
            pool = start.deployment or plan.deployment
            found.append(Charge(plan.capacity, began_at, start.seconds, price, use=WITHDRAWN, deployment=pool))
    return found


def _price_of(
    spec: RunSpec,
    history: History,
    segment: int,
    attempt: int,
    capacity: Capacity,
    *,
    deployment: str | None = None,
) -> float:
    if deployment is None:
        deployment = _deployment_of(history, segment, attempt)
    given = history.prices_of(segment, attempt).get(deployment)
    return spec.pools.price(capacity, deployment) if given is None else given


def _deployment_of(history: History, segment: int, attempt: int) -> str:
    plan = history.plan_of(segment, attempt)
    return plan.deployment if plan is not None else ""


def _began_at(history: History, segment: int, attempt: int) -> datetime:
    claimed, decided = history.attempt_of(segment, attempt), history.decision_of(segment, attempt)
    entry = claimed.claim if claimed is not None else decided
    return entry.written_at if entry is not None else history.decisions[0].written_at
