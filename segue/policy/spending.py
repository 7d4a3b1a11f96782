"""Computes the cost of a run by attempt and by month. The module is pure.

An attempt is charged from its claim to its end, at the price that applied when the attempt was decided. `pools.prices`
names the source of current prices, and the log contains the prices that the source gave. If an attempt was started on
several pools, the starts that came second are charged from the time at which a worker took them until they were
withdrawn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from segue.records import Capacity, SegmentReport
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec

HOUR = 3600.0


@dataclass(frozen=True)
class Charge:
    """A time with a machine, at a price per hour."""

    capacity: Capacity
    began_at: datetime
    seconds: float
    price: float

    @property
    def cost(self) -> float:
        return self.seconds * self.price / HOUR

    @property
    def ended_at(self) -> datetime:
        return self.began_at + timedelta(seconds=self.seconds)

    def cost_in(self, month: Month) -> float:
        """Return the part of the cost that belongs to a month."""
        return self.within(month).cost

    def within(self, month: Month) -> Charge:
        """Return the part of the time that belongs to a month. The part may be empty."""
        begins_at = max(self.began_at, month.begins_at)
        inside = (min(self.ended_at, month.ends_at) - begins_at).total_seconds()
        return replace(self, began_at=begins_at, seconds=max(inside, 0.0))


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
    # In UTC: a difference of two times in one zone would not count the hour of its summer time.
    return Month(f"{begins_at:%Y-%m}", begins_at.astimezone(UTC), ends_at.astimezone(UTC))


def months_of(charges: Iterable[Charge], zone: tzinfo) -> list[Month]:
    """Return the months to which a part of the charges belongs, oldest first."""
    found: dict[str, Month] = {}
    for charge in charges:
        month = month_of(charge.began_at, zone)
        found[month.name] = month
        while month.ends_at < charge.ended_at:
            month = month_of(month.ends_at, zone)
            found[month.name] = month
    return [found[name] for name in sorted(found)]


def pools_now(spec: RunSpec, history: History) -> PoolSpec:
    """Return the pools at the prices that apply now.

    These are the newest prices in the log, or the prices of the run spec.
    """
    is_known = spec.pools.prices is not None and history.prices is not None
    return history.once(_at_newest_prices, spec) if is_known else spec.pools


def _at_newest_prices(spec: RunSpec, history: History) -> PoolSpec:
    assert history.prices is not None
    return spec.pools.at(history.prices.prices)


def price_of(spec: RunSpec, history: History, report: SegmentReport) -> float:
    """Return the price per hour at which a reported attempt is charged."""
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
            found.append(Charge(report.capacity, began_at, report.seconds, price))
    found += _withdrawn_charges(spec, history)
    plan = history.open_plan
    if live_seconds > 0 and plan is not None and not history.is_import(plan.segment, plan.attempt):
        price = _price_of(spec, history, plan.segment, plan.attempt, plan.capacity)
        found.append(Charge(plan.capacity, _began_at(history, plan.segment, plan.attempt), live_seconds, price))
    return found


def _withdrawn_charges(spec: RunSpec, history: History) -> list[Charge]:
    found = []
    for start in history.starts:
        plan = history.plan_of(start.segment, start.attempt)
        has_ended = start.outcome in ("withdrawn", "start_failed")
        if has_ended and start.seconds > 0 and plan is not None and plan.pools:
            began_at = start.written_at - timedelta(seconds=start.seconds)
            price = _price_of(spec, history, start.segment, start.attempt, plan.capacity, deployment=start.deployment)
            found.append(Charge(plan.capacity, began_at, start.seconds, price))
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
    plan = history.plan_of(segment, attempt)
    if deployment is None:
        deployment = plan.deployment if plan is not None else ""
    given = history.prices_of(segment, attempt).get(deployment)
    return spec.pools.price(capacity, deployment) if given is None else given


def _began_at(history: History, segment: int, attempt: int) -> datetime:
    claimed, decided = history.attempt_of(segment, attempt), history.decision_of(segment, attempt)
    entry = claimed.claim if claimed is not None else decided
    return entry.written_at if entry is not None else history.decisions[0].written_at
