"""What a run has cost: paid time and money, and the same work on on-demand alone."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.records import Capacity, StopReason
from segue.reports.cost_report import Live, cost_report
from segue.runlog.entries import DecisionEntry
from tests.support.histories import Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
LOST, NOTICE, FINISHED = StopReason.LOST, StopReason.NOTICE, StopReason.FINISHED
HOUR = 3600.0


def log(**pools: object) -> Logbook:
    prices = {"spot_price": 1.0, "on_demand_price": 4.0} | pools
    return Logbook(make_spec(pools=prices, policy={"step_seconds": 60, "max_lost_in_place": 99}))


def works(book: Logbook, capacity: Capacity, reason: StopReason, *, commit: int, boot: float = 0.0, **fields: object):
    plan = book.plan(capacity)
    book.seconds += boot
    name = book.claim(plan)
    book.commit(name, commit)
    book.report(plan, reason, attempt_id=name, **fields)


def test_an_hour_of_spot_and_one_of_on_demand_are_paid_at_their_prices():
    book = log()
    works(book, SPOT, NOTICE, commit=50, boot=300, seconds=HOUR, train_steps=50, train_seconds=3000, startup_seconds=60)
    works(book, ON_DEMAND, FINISHED, commit=100, seconds=HOUR, train_steps=50, train_seconds=3000, startup_seconds=20)
    cost = cost_report(book.spec, book.history)
    assert (cost.spot_seconds, cost.on_demand_seconds, cost.cost) == (HOUR, HOUR, 5.0)
    assert (cost.useful_seconds, cost.startup_seconds, cost.waiting_seconds, cost.preemptions) == (6000, 80, 300, 1)
    assert cost.on_demand_cost == pytest.approx((6000 + 40) * 4 / HOUR)
    assert cost.paid_share == pytest.approx(5 / 6.711, rel=1e-3)
    assert cost.saved_share == pytest.approx(1 - cost.paid_share)
    assert cost.sentence == "paid 75% of the cost of on-demand alone"


def test_standbys_are_paid_at_the_price_of_their_pool():
    book = log(spot=[{"deployment": "x/a", "price": 1.5}, {"deployment": "x/b", "price": 2.0}])
    works(book, ON_DEMAND, FINISHED, commit=100, seconds=HOUR, train_steps=100, train_seconds=3500, startup_seconds=100)
    cost = cost_report(book.spec, book.history, standbys={"x/a": HOUR / 2, "x/b": HOUR / 4})
    assert (cost.standby_seconds, cost.spot_seconds, cost.on_demand_seconds) == (0.75 * HOUR, 0.75 * HOUR, HOUR)
    assert cost.cost == pytest.approx(4.0 + 0.75 + 0.5)
    assert cost.rows()["paid"] == "5.25 USD for 45 min of spot (45 min of it for standbys) and 60 min of on-demand"


@pytest.mark.parametrize(
    ("given", "is_made_up"),
    [
        ({"on_demand_price": 3.0}, True),
        ({}, False),
        ({"on_demand_price": 3.0, "spot": [{"deployment": "x/a", "price": 1.0}]}, False),
        ({"on_demand_price": 3.0, "prices": "file: prices.toml"}, False),
    ],
)
def test_costs_at_prices_that_nobody_gave_say_so(given, is_made_up):
    said = cost_report(log(**given).spec, log(**given).history).rows().get("prices", "")
    assert said.startswith("segue's defaults, because the run spec has no prices: set spot_price") is is_made_up


def test_lost_steps_are_priced_at_their_pool():
    book = log()
    seen = {"train_steps": 60, "train_seconds": 3600.0, "seconds": HOUR}
    works(book, SPOT, LOST, commit=30, lost_steps=30, **seen)
    works(book, ON_DEMAND, LOST, commit=60, lost_steps=15, **seen)
    cost = cost_report(book.spec, book.history)
    assert cost.lost_seconds == 45 * 60
    assert cost.lost_cost == pytest.approx(0.5 * 1 + 0.25 * 4)


def test_each_spot_pool_is_paid_at_its_own_price():
    book = log(spot=[{"deployment": "x/a", "price": 1.5}, {"deployment": "x/b", "price": 2.0}])
    for deployment in ("x/a", "x/b"):
        plan = book.ask().plan.model_copy(update={"deployment": deployment})
        book.write(DecisionEntry, plan=plan, action="run", reason="chosen by the test")
        book.report(plan, LOST, attempt_id=book.claim(plan), seconds=HOUR)
    assert cost_report(book.spec, book.history).cost == 3.5


def test_a_wait_without_capacity_counts_as_waiting_and_costs_nothing():
    book = log()
    plan = book.plan()
    book.seconds += 900
    book.report(plan, LOST, attempt_id=None, got_capacity=False)
    book.plan()
    cost = cost_report(book.spec, book.history)
    assert (cost.cost, cost.waiting_seconds, cost.preemptions) == (0.0, 900.0, 0)
    assert (cost.paid_share, cost.saved_share, cost.sentence) == (None, None, "")


def test_the_live_attempt_is_counted_when_its_age_is_given():
    book = log()
    book.claim(book.plan(ON_DEMAND))
    assert cost_report(book.spec, book.history).cost == 0.0
    assert cost_report(book.spec, book.history, live=Live(HOUR / 2)).cost == 2.0


def test_the_expected_share_is_shown_with_the_paid_share():
    spec = make_spec(deadline_in=86400, pools={"on_demand_price": 4.0}, policy={"step_seconds": 60})
    book = Logbook(spec)
    first = book.decide()
    book.report(first.plan, LOST, attempt_id=book.claim(first.plan))
    book.decide()
    cost = cost_report(spec, book.history)
    assert cost.expected_share == first.numbers["expected_cost_share"] > 0
    assert f"{cost.expected_share:.0%} of the cost of on-demand alone" in cost.rows()["expected at first"]


def test_the_report_has_rows_for_people_and_plain_numbers_for_programs():
    book = log(currency="EUR")
    works(book, SPOT, LOST, commit=100, seconds=2 * HOUR, train_steps=100, train_seconds=6000, startup_seconds=60)
    cost = cost_report(book.spec, book.history)
    assert cost.rows() == {
        "paid": "2.00 EUR for 2.0 h of spot and 0 s of on-demand",
        "on-demand alone": "6.73 EUR; saved 4.73 EUR (70%)",
        "preemptions": "1",
        "lost": "0 s of work (0.00 EUR), and 60 s in starts",
        "waited": "0 s",
        "goodput": "83% of 2.0 h in steps that count; start 20 min",
    }
    numbers = json.loads(json.dumps(cost.numbers()))
    assert (numbers["cost"], numbers["currency"], numbers["expected_share"]) == (2.0, "EUR", None)
    assert numbers["paid_share"] + numbers["saved_share"] == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(list(Capacity)), st.floats(0.0, 1e5), st.integers(0, 20), st.floats(0.0, 1e3)),
        max_size=6,
    )
)
def test_nothing_is_paid_twice_and_no_number_is_negative(attempts):
    book, paid = log(), 0.0
    for capacity, seconds, lost, startup in attempts:
        seen = {"train_steps": 5, "train_seconds": 300.0, "lost_steps": lost, "startup_seconds": startup}
        book.attempt(LOST, capacity, seconds=seconds, **seen)
        paid += seconds * (1.0 if capacity is SPOT else 4.0)
    cost = cost_report(book.spec, book.history)
    assert cost.cost == pytest.approx(paid / HOUR)
    assert cost.spot_seconds + cost.on_demand_seconds == pytest.approx(sum(seconds for _, seconds, *_ in attempts))
    assert min(value for value in cost.numbers().values() if isinstance(value, (int, float))) >= 0
