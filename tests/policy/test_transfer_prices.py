"""What data between the machines of a pool and the store costs, and how it changes the choice of a pool."""

from __future__ import annotations

from dataclasses import replace

import pytest

from segue.policy.budget_cap import bound_seconds, purse_of, reason_to_end
from segue.policy.estimates import situation
from segue.policy.pool_choice import choose_pool
from segue.policy.pool_outlook import pool_outlook
from segue.policy.spending import charges_of, month_of, priced_pools, read_cost
from segue.records import Capacity, StopReason
from segue.reports.cost_report import cost_report
from segue.runlog.entries import PricesEntry
from segue.simulation.plan_ahead import plan_ahead
from tests.support.histories import Logbook, make_spec

NEAR, FAR = "segment/near", "segment/far"
POLICY = {"step_seconds": 10, "changeover_seconds": 60}
GB = 10**9


def pools(per_gb: float = 0.02, *, on_demand_per_gb: float = 0.0) -> dict:
    far = {"deployment": FAR, "price": 1.0, "transfer_price_per_gb": per_gb}
    common = {"on_demand_price": 3.0, "on_demand_transfer_price_per_gb": on_demand_per_gb}
    return common | {"spot": [far, {"deployment": NEAR, "price": 1.2}]}


def attempt(book: Logbook, *, steps: list[int], seconds: float, deployment: str = FAR) -> None:
    """An attempt on the far pool that commits 5 GB at each of these steps."""
    plan = book.plan(Capacity.SPOT, deployment=deployment, pools=())
    name = book.claim(plan)
    for step in steps:
        book.commit(name, step, size_bytes=5 * GB)
    book.seconds += seconds
    done = {"to_step": steps[-1], "seconds": seconds, "train_steps": 10, "train_seconds": 100}
    book.report(plan, StopReason.NOTICE, attempt_id=name, **done)


def trained(**fields) -> Logbook:
    """A run that wrote four checkpoints of 5 GB in an hour on the far pool."""
    book = Logbook(make_spec(policy=POLICY, pools=pools(), steps=1000, **fields))
    attempt(book, steps=[10, 20, 30, 40], seconds=3600)
    return book


def test_the_price_of_a_pool_contains_the_money_for_the_checkpoints_of_an_hour():
    book = trained()
    priced = priced_pools(book.spec, book.history)
    assert priced.price(Capacity.SPOT, FAR) == pytest.approx(1.0 + 20 * 0.02)
    assert (priced.price(Capacity.SPOT, NEAR), priced.on_demand_price) == (1.2, 3.0)
    assert read_cost(priced, book.history, Capacity.SPOT, FAR) == pytest.approx(5 * 0.02)
    assert read_cost(priced, book.history, Capacity.SPOT, NEAR) == 0.0


def test_a_pool_that_is_cheaper_without_its_data_is_not_chosen():
    book, free = trained(), trained()
    free.spec = make_spec(policy=POLICY, pools=pools(0.0), steps=1000)
    chosen = {}
    for name, each in (("priced", book), ("free", free)):
        here = situation(each.spec, each.history, now=each.now)
        chosen[name] = choose_pool(each.spec, each.history, here, now=each.now).deployment
    assert chosen == {"priced": NEAR, "free": FAR}


def test_plan_over_pools_counts_the_money_for_data():
    book, free = trained(deadline_in=40_000), trained(deadline_in=40_000)
    free.spec = make_spec(policy=POLICY, pools=pools(0.0), steps=1000, deadline_in=40_000)
    first = {}
    for name, each in (("priced", book), ("free", free)):
        here = situation(each.spec, each.history, now=each.now)
        first[name] = pool_outlook(each.spec, each.history, here, now=each.now).pool.deployment
    assert first == {"priced": NEAR, "free": FAR}


def test_an_attempt_is_charged_for_what_it_read_and_wrote():
    book = trained()
    attempt(book, steps=[50, 60], seconds=1800)
    first, second = charges_of(book.spec, book.history)
    assert first.cost == pytest.approx(1.0 + 4 * 5 * 0.02)
    assert second.transfer == pytest.approx((5 + 2 * 5) * 0.02)  # It read the fourth checkpoint.
    report = cost_report(book.spec, book.history)
    assert report.transfer_cost == pytest.approx(0.4 + 0.3)
    assert report.cost == pytest.approx(1.5 + 0.7)
    assert "of it for data" in report.rows()["paid"]


def test_an_attempt_on_a_pool_without_a_price_for_data_is_charged_for_its_time_alone():
    book = Logbook(make_spec(policy=POLICY, pools=pools(), steps=1000))
    attempt(book, steps=[10], seconds=3600, deployment=NEAR)
    assert [charge.cost for charge in charges_of(book.spec, book.history)] == [1.2]
    report = cost_report(book.spec, book.history)
    assert report.transfer_cost == 0
    assert "data" not in report.rows()["paid"]


def test_the_months_of_an_attempt_share_the_money_for_its_data_by_time():
    book = trained()
    (charge,) = charges_of(book.spec, book.history)
    month = month_of(charge.began_at, book.spec.budget.zone)
    split = replace(month, ends_at=charge.began_at.replace(minute=15))
    assert charge.cost_in(month) == pytest.approx(charge.cost)
    assert charge.cost_in(split) == pytest.approx(charge.cost / 4)


def test_on_demand_alone_is_compared_with_its_own_data():
    without = trained()
    with_price = trained()
    with_price.spec = make_spec(policy=POLICY, pools=pools(on_demand_per_gb=0.05), steps=1000)
    costs = [cost_report(book.spec, book.history).on_demand_cost for book in (without, with_price)]
    assert costs[1] == pytest.approx(costs[0] * (3.0 + 20 * 0.05) / 3.0)


def test_plan_says_that_the_data_is_missing_before_the_first_checkpoint():
    fresh = Logbook(make_spec(policy=POLICY, pools=pools(), steps=1000, deadline_in=40_000))
    note = "the cost for data between machines and store is missing"
    plans = [
        plan_ahead(book.spec, book.history, now=book.now, runs=20) for book in (fresh, trained(deadline_in=40_000))
    ]
    assert [any(note in each for each in plan.facts["notes"]) for plan in plans] == [True, False]
    listed = {pool["deployment"]: pool for pool in plans[1].facts["pools"]}
    assert (listed[FAR]["price"], listed[NEAR]["price"]) == (1.0, 1.2)
    assert listed[FAR]["cost_of_useful_hour"] > listed[NEAR]["cost_of_useful_hour"]


def test_a_short_attempt_and_an_import_do_not_make_a_pool_dear():
    short = Logbook(make_spec(policy=POLICY, pools=pools(), steps=1000))
    attempt(short, steps=[10], seconds=120)
    assert priced_pools(short.spec, short.history).price(Capacity.SPOT, FAR) == pytest.approx(1.0 + 5 * 0.02)
    imported = Logbook(make_spec(policy=POLICY, pools=pools(), steps=1000))
    plan = imported.plan(Capacity.SPOT, deployment=FAR, pools=())
    name = imported.claim(plan)
    imported.commit(name, 0, size_bytes=50 * GB)
    imported.report(plan, StopReason.BOUND, attempt_id=name, seconds=2.0, got_capacity=False)
    assert priced_pools(imported.spec, imported.history).price(Capacity.SPOT, FAR) == 1.0
    assert read_cost(imported.spec.pools, imported.history, Capacity.SPOT, FAR) == pytest.approx(1.0)


def test_spot_and_on_demand_may_have_the_same_deployment():
    both = {"spot": [{"deployment": "segment/one", "transfer_price_per_gb": 0.02}], "on_demand": "segment/one"}
    book = Logbook(make_spec(policy=POLICY, pools=both | {"on_demand_transfer_price_per_gb": 0.5}, steps=1000))
    attempt(book, steps=[10, 20], seconds=3600, deployment="segment/one")
    priced = priced_pools(book.spec, book.history)
    assert priced.price(Capacity.SPOT, "segment/one") == pytest.approx(1.0 + 10 * 0.02)
    assert priced.on_demand_price == pytest.approx(3.0 + 10 * 0.5)


def test_a_cap_pays_for_the_data_of_the_start_first():
    capped = {"per_run": 2.0, "on_exceeded": "stop"}
    book = trained(budget=capped)  # 1.40 of 2.00 are spent, and a start on the far pool reads for .10.
    free = trained(budget=capped)
    near = priced_pools(book.spec, book.history)
    assert book.ask().plan.max_seconds is not None
    here = situation(book.spec, book.history, now=book.now)
    purse = purse_of(book.spec, book.history, here, now=book.now)
    facts = {"history": book.history, "now": book.now}
    bounds = [bound_seconds(book.spec, purse, price=1.0, start_cost=cost, **facts) for cost in (0.0, 0.1)]
    assert bounds == pytest.approx([0.6 * 3600 - 5, 0.5 * 3600 - 5])
    refused = reason_to_end(free.spec, free.history, here, purse, price=1.0, start_cost=0.59)
    assert refused.startswith("the budget is used up")
    assert reason_to_end(free.spec, free.history, here, purse, price=1.0, start_cost=0.1) is None
    assert near.price(Capacity.SPOT, NEAR) == 1.2


def test_plan_uses_the_prices_of_the_spec_which_were_just_read():
    fields = {"policy": POLICY, "steps": 1000, "deadline_in": 40_000}
    book = Logbook(make_spec(pools=pools() | {"prices": "file: prices.json"}, **fields))
    old = {FAR: 0.1, NEAR: 0.1, "segment/on-demand": 3.0}
    book.write(PricesEntry, source="file: prices.json", prices=old, taken_at=book.now)
    assert plan_ahead(book.spec, book.history, now=book.now, runs=20).facts["cost"] > 1.0


def test_a_spec_without_the_prices_is_stored_as_before():
    assert "transfer_price" not in make_spec().model_dump_json()
