"""The cost report of a store: by run, by slot of a retrained model, by month."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from segue.policy.spending import LIVE, STANDBYS, Charge, month_named
from segue.records import Capacity
from segue.reports.spending_report import RunCharges, by_month, by_run, by_slot, slot_of, totals

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
HOUR = 3600.0


def charge(at: str, hours: float, price: float = 1.0, capacity: Capacity = SPOT) -> Charge:
    began_at = datetime.fromisoformat(at).replace(tzinfo=UTC)
    return Charge(capacity, began_at, hours * HOUR, price, use=LIVE)


def run(name: str, *charges: Charge, currency: str = "EUR") -> RunCharges:
    return RunCharges(name, "finished", currency, charges)


def test_runs_are_listed_in_the_order_in_which_they_began_those_that_cost_nothing_last():
    rows = by_run([run("b", charge("2026-11-02", 1)), run("c"), run("a", charge("2026-11-03", 1))])
    assert [row.names["run"] for row in rows] == ["b", "a", "c"]


def test_a_line_has_the_time_on_each_capacity_and_the_money():
    (row,) = by_run([run("a", charge("2026-11-02", 2), charge("2026-11-02", 1, 3.0, ON_DEMAND))])
    assert row.row() == {
        "run": "a",
        "state": "finished",
        "spot": "2.0 h",
        "on-demand": "60 min",
        "cost": "5.00 EUR",
        "goodput": "-",
    }
    assert row.facts() == {
        "run": "a",
        "state": "finished",
        "spot_seconds": 2 * HOUR,
        "on_demand_seconds": HOUR,
        "cost": 5.0,
        "currency": "EUR",
        "goodput": None,
    }


def test_slots_are_listed_by_model_and_scheduled_time_and_other_runs_are_one_line():
    runs = [
        run("flights-20130801t0200", charge("2026-11-02", 3)),
        run("trips-20130701t0200", charge("2026-11-02", 1)),
        run("flights-20130701t0200", charge("2026-11-03", 2)),
        run("flights-daily-20130701t0200", charge("2026-11-03", 4)),
        run("by-hand", charge("2026-11-02", 5)),
        run("flights-20131301t0200", charge("2026-11-02", 6)),
    ]
    shown = [(row.names["model"], row.names["slot"], row.cost) for row in by_slot(runs)]
    assert shown == [
        ("flights", "2013-07-01 02:00", 2),
        ("flights", "2013-08-01 02:00", 3),
        ("flights-daily", "2013-07-01 02:00", 4),
        ("trips", "2013-07-01 02:00", 1),
        ("other runs", "-", 11),
    ]


@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("flights-20130701t0200", ("flights", datetime(2013, 7, 1, 2, tzinfo=UTC))),
        ("a-b-20130701t0200", ("a-b", datetime(2013, 7, 1, 2, tzinfo=UTC))),
        ("flights-20130732t0200", None),
        ("flights-20130701t2460", None),
        ("flights-20130701-020000", None),
        ("20130701t0200", None),
        ("flights", None),
    ],
)
def test_the_slot_of_a_run_is_in_its_name(name, slot):
    assert slot_of(name) == slot


def test_each_month_has_its_part_of_a_run_that_lasted_into_it():
    runs = [run("a", charge("2026-10-31T22:00", 4)), run("b", charge("2026-11-05", 1))]
    rows = by_month(runs, UTC)
    assert [(row.names, row.cost) for row in rows] == [
        ({"month": "2026-10", "runs": 1}, 2),
        ({"month": "2026-11", "runs": 2}, 3),
    ]
    assert sum(row.cost for row in by_run(one.within(month_named(2026, 11, UTC)) for one in runs)) == 3


def test_currencies_are_never_added():
    runs = [run("a", charge("2026-11-02", 1)), run("b", charge("2026-11-02", 2), currency="USD")]
    assert totals(by_run(runs)) == {"EUR": 1, "USD": 2}
    assert [(row.currency, row.cost) for row in by_month(runs, UTC)] == [("EUR", 1), ("USD", 2)]
    assert [(row.currency, row.cost) for row in by_slot(runs)] == [("EUR", 1), ("USD", 2)]


def test_before_the_first_attempt_has_ended_there_is_no_goodput_even_with_a_standby():
    standby = replace(charge("2026-11-02", 1), use=STANDBYS)
    (row,) = by_run([run("a", charge("2026-11-02", 1), standby)])
    assert row.goodput is None
