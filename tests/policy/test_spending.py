"""What attempts have cost: at the prices that held when they were decided, and in the months in which they ran."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.policy.decide import decide
from segue.policy.spending import Charge, charges_of, month_named, month_of, months_of, pools_now
from segue.records import Capacity, StopReason
from segue.reports.cost_report import Live, cost_report
from segue.runlog.entries import OpenEntry, PricesEntry
from tests.support.histories import START, Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
LOST = StopReason.LOST
HOUR = 3600.0
BERLIN = ZoneInfo("Europe/Berlin")
SOURCE = "file: prices.toml"


def log(**pools: object) -> Logbook:
    prices = {"spot_price": 1.0, "on_demand_price": 4.0, "prices": SOURCE} | pools
    return Logbook(make_spec(pools=prices, policy={"step_seconds": 60, "max_lost_in_place": 99}))


def announce(book: Logbook, spot: float, on_demand: float = 4.0, *, source: str = SOURCE) -> None:
    prices = {"segment/spot": spot, "segment/on-demand": on_demand}
    book.write(PricesEntry, source=source, prices=prices, taken_at=book.now)


def test_each_attempt_is_charged_at_the_price_that_held_when_it_was_decided():
    book = log()
    announce(book, 0.5)
    book.attempt(LOST, seconds=HOUR)
    announce(book, 2.0)
    book.attempt(LOST, seconds=HOUR)
    announce(book, 99.0)  # The newest price counts for neither of them.
    charges = charges_of(book.spec, book.history)
    assert [charge.price for charge in charges] == [0.5, 2.0]
    assert cost_report(book.spec, book.history).cost == 2.5


def test_a_price_that_changes_while_an_attempt_runs_does_not_change_its_charge():
    book = log()
    announce(book, 0.5)
    plan = book.plan()
    book.claim(plan)
    announce(book, 2.0)
    assert cost_report(book.spec, book.history, live=Live(HOUR)).cost == 0.5


def test_without_prices_in_the_log_those_of_the_spec_hold():
    book = log()
    book.attempt(LOST, seconds=HOUR)
    announce(book, 0.5)
    book.attempt(LOST, ON_DEMAND, deployment="segment/on-demand", seconds=HOUR)
    assert [charge.price for charge in charges_of(book.spec, book.history)] == [1.0, 4.0]
    assert pools_now(make_spec(), book.history).spot_price == 1.0  # Its spec names no source.


def test_prices_of_another_source_no_longer_hold_once_the_run_is_opened_without_it():
    book = log()
    announce(book, 0.5)
    changed = book.spec.model_copy(update={"pools": book.spec.pools.model_copy(update={"prices": "file: other.toml"})})
    book.write(OpenEntry, spec=changed)
    assert book.history.prices is None
    assert pools_now(changed, book.history).price(SPOT, "segment/spot") == 1.0


def test_decisions_use_the_newest_prices():
    book = log()
    announce(book, 5.0)
    decision = decide(book.spec, book.history, now=book.now)
    assert decision.plan.capacity is ON_DEMAND
    assert decision.reason == "on-demand: no spot pool is cheaper"
    announce(book, 3.9)
    assert decide(book.spec, book.history, now=book.now).plan.capacity is SPOT


def test_the_cheaper_pool_by_the_newest_prices_is_chosen():
    book = log(spot=[{"deployment": "x/a", "price": 1.0}, {"deployment": "x/b", "price": 1.5}])
    assert book.ask().plan.deployment == "x/a"
    book.write(PricesEntry, source=SOURCE, prices={"x/a": 1.0, "x/b": 0.5, "segment/on-demand": 4}, taken_at=book.now)
    assert book.ask().plan.deployment == "x/b"


def test_a_charge_is_divided_at_the_boundary_of_two_months():
    charge = Charge(SPOT, datetime(2026, 1, 31, 22, tzinfo=UTC), 4 * HOUR, price=2.0)
    january, february = month_named(2026, 1, UTC), month_named(2026, 2, UTC)
    assert (charge.cost_in(january), charge.cost_in(february), charge.cost_in(month_named(2026, 3, UTC))) == (4, 4, 0)
    assert [month.name for month in months_of([charge], UTC)] == ["2026-01", "2026-02"]
    # In Berlin it is an hour later: three of the four hours are in February.
    assert charge.cost_in(month_named(2026, 2, BERLIN)) == 6


@pytest.mark.parametrize(
    ("moment", "zone", "name"),
    [
        ("2026-11-30T23:59:59+00:00", UTC, "2026-11"),
        ("2026-12-01T00:00:00+00:00", UTC, "2026-12"),
        ("2026-11-30T22:59:59+00:00", BERLIN, "2026-11"),
        ("2026-11-30T23:00:00+00:00", BERLIN, "2026-12"),
        ("2026-12-31T23:59:59+00:00", UTC, "2026-12"),
    ],
)
def test_a_moment_belongs_to_the_month_of_its_zone(moment, zone, name):
    assert month_of(datetime.fromisoformat(moment), zone).name == name


def test_a_month_in_which_summer_time_begins_is_an_hour_shorter():
    march = month_named(2026, 3, BERLIN)
    assert (march.ends_at - march.begins_at).total_seconds() == (31 * 24 - 1) * HOUR
    whole = Charge(SPOT, march.begins_at - timedelta(days=9), 60 * 24 * HOUR, price=1.0)
    assert whole.cost_in(march) == 31 * 24 - 1


@given(st.floats(0, 90 * 86400.0), st.floats(0, 90 * 86400.0), st.sampled_from([UTC, BERLIN]))
def test_the_months_of_a_charge_add_up_to_it(offset, seconds, zone):
    charge = Charge(SPOT, START + timedelta(seconds=offset), seconds, price=3.0)
    parts = [charge.cost_in(month) for month in months_of([charge], zone)]
    assert sum(parts) == pytest.approx(charge.cost, abs=1e-5)
