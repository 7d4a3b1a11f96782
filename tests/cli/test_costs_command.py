"""`segue costs`, and what a budget and current prices do to the other commands."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import pytest

from segue.controller.steps import decide_next
from segue.records import StopReason
from segue.stores import LocalStore
from segue.testing.clock import FakeClock
from tests.cli.test_errors import TINY
from tests.controller.test_steps import Run

HOUR = 3600.0
PRICES = {"spot_price": 1.5, "on_demand_price": 4.0, "currency": "EUR"}


@pytest.fixture
def trained(make_spec):
    """A store in which a run can be trained for some hours from a moment on."""

    def train(run_id: str, begin: datetime, hours: float, *, commit: int = 100, **fields) -> Run:
        clock = FakeClock(begin)
        run = Run(make_spec(run_id=run_id, steps=100, policy={"step_seconds": 1}, **{"pools": PRICES} | fields), clock)
        plan = run.decide()
        claim = run.claim(plan)
        clock.advance(hours * HOUR)
        run.commit(claim, commit)
        run.report(plan, claim, StopReason.FINISHED, seconds=hours * HOUR, to_step=commit, train_steps=9)
        decide_next(run.log, run.spec, clock=clock)
        return run

    return train


@pytest.fixture
def store(trained) -> str:
    """Three runs in two months: two slots of a model, and one across the end of October."""
    trained("flights-20130801t0200", datetime(2026, 11, 3, tzinfo=UTC), 2)
    trained("flights-20130701t0200", datetime(2026, 11, 4, tzinfo=UTC), 1)
    return trained("by-hand", datetime(2026, 10, 31, 22, tzinfo=UTC), 4).spec.store.url


def test_the_costs_of_a_store_are_listed_by_run_with_a_total(desk, store):
    said = desk.told("costs", "--store", store)
    assert [(row["run"], row["cost"]) for row in said["rows"]] == [
        ("by-hand", 6.0),
        ("flights-20130801t0200", 3.0),
        ("flights-20130701t0200", 1.5),
    ]
    assert (said["totals"], said["by"]) == ({"EUR": 10.5}, "run")
    table = desk.run("costs", "--store", store)
    assert (table.code, table.err) == (0, "")
    assert all(word in table.out for word in ("run", "state", "spot", "on-demand", "6.00 EUR", "total: 10.50 EUR"))


def test_by_slot_the_runs_of_a_model_are_in_the_order_of_their_scheduled_times(desk, store):
    rows = desk.told("costs", "--store", store, "--by", "slot")["rows"]
    assert [(row["model"], row["slot"], row["cost"]) for row in rows] == [
        ("flights", "2013-07-01 02:00", 1.5),
        ("flights", "2013-08-01 02:00", 3.0),
        ("other runs", "-", 6.0),
    ]


def test_by_month_a_run_is_divided_at_the_end_of_the_month_of_the_zone(desk, store):
    rows = desk.told("costs", "--store", store, "--by", "month")["rows"]
    assert [(row["month"], row["runs"], row["cost"]) for row in rows] == [("2026-10", 1, 3.0), ("2026-11", 3, 7.5)]
    there = desk.told("costs", "--store", store, "--by", "month", "--time-zone", "Europe/Berlin")["rows"]
    assert [(row["month"], row["cost"]) for row in there] == [("2026-10", 1.5), ("2026-11", 9.0)]


def test_one_month_has_only_what_falls_into_it(desk, store):
    said = desk.told("costs", "--store", store, "--month", "2026-10")
    assert [(row["run"], row["spot_seconds"], row["cost"]) for row in said["rows"]] == [("by-hand", 2 * HOUR, 3.0)]
    assert "total of 2026-10: 3.00 EUR" in desk.run("costs", "--store", store, "--month", "2026-10").out


def test_a_store_without_costs_says_so_and_one_that_is_not_there_is_refused(desk):
    LocalStore(desk.folder / "empty").create()
    outcome = desk.run("costs", "--store", str(desk.folder / "empty"))
    assert (outcome.code, outcome.out.split(" in ")[0]) == (0, "There are no costs")
    assert "none" in desk.refused("costs", "--store", str(desk.folder / "none"))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--month", "2026-13"), "--month: must be a month"),
        (("--month", "11/2026"), "--month: must be a month"),
        (("--time-zone", "Mars"), "time_zone: must be a time zone"),
    ],
)
def test_wrong_options_are_refused(desk, store, options, why):
    assert why in desk.refused("costs", "--store", store, *options)


def test_a_run_that_its_budget_does_not_pay_for_is_refused_before_a_server_starts(desk):
    said = desk.refused("run", TINY, "--steps", "9", "--budget", "0.01")
    assert (
        "the budget is used up: 0.00 USD of 0.0100 USD for the run are spent, and one more attempt takes 2 min" in said
    )
    assert "Nothing was bought. Fix: raise the budget" in said


def test_the_option_overrides_the_number_and_the_table_of_the_run_spec(desk):
    for text in ("budget = 9.0\n", '[budget]\nper_run = 9.0\non_exceeded = "refuse"\n'):
        desk.write("run.toml", "steps = 9\n" + text)
        assert "of 0.0200 USD for the run" in desk.refused("run", TINY, "--config", "run.toml", "--budget", "0.02")


def test_a_run_whose_prices_cannot_be_had_is_refused_before_a_server_starts(desk):
    desk.write("run.toml", 'steps = 9\n[pools]\nprices = "cmd: echo no token >&2; exit 3"\n')
    said = desk.refused("run", TINY, "--config", "run.toml")
    assert "the command ended with code 3 and said 'no token'" in said


def test_a_plan_is_made_at_current_prices(desk):
    spec = 'steps = 3600\npolicy = { step_seconds = 1 }\npools = { prices = "file: prices.json" }\nbudget = 4.0\n'
    desk.write("run.toml", spec)
    desk.write("prices.json", json.dumps({"segment/spot": 5.0, "segment/on-demand": 20.0}))
    told = desk.told("plan", "run.toml", "--runs", "20")
    assert told["on_demand_cost"] == pytest.approx(20 * (3600 + 120) / 3600)
    assert "the budget has 4.00 USD left, which does not pay for the expected cost" in told["notes"]
    desk.write("prices.json", "{}")
    assert "the answer has no price for segment/spot" in desk.refused("plan", "run.toml")


def test_status_shows_the_budget_and_the_prices_that_hold(trained, desk, tmp_path):
    prices = tmp_path / "prices.toml"
    prices.write_text('"segment/spot" = 0.5\n"segment/on-demand" = 2\n')
    begin = datetime(2026, 11, 3, tzinfo=UTC)
    pools = PRICES | {"prices": f"file: {prices}"}
    run = trained("capped", begin, 2, commit=50, budget=40.0, pools=pools)
    facts = desk.told("status", "capped", "--store", run.spec.store.url)
    assert [(cap["limit"], cap["spent"], cap["currency"]) for cap in facts["budget"]] == [(40.0, 1.0, "EUR")]
    assert facts["prices_per_hour"] == {"segment/spot": 0.5, "segment/on-demand": 2.0}
    assert facts["costs"]["cost"] == 1.0
    shown = " ".join(desk.run("status", "capped", "--store", run.spec.store.url).out.split())
    assert "1.00 EUR of 40.00 EUR for the run are spent" in shown
    assert re.search(r"at the last decision, the expected cost of the remaining work was 0\.\d+ EUR", shown)
    assert "segment/spot 0.5, segment/on-demand 2 EUR per hour (2026-11-03 02:00 UTC)" in shown


@pytest.mark.soak
@pytest.mark.matrix
def test_a_drill_buys_nothing_and_asks_for_no_prices(desk):
    text = 'budget = 0.001\n[pools]\nprices = "cmd: touch asked; exit 1"\n'
    command = ("drill", TINY, "--config", desk.write("run.toml", text), "--steps", "40", "--kills", "1")
    outcome = desk.run(*command)
    assert (outcome.code, "verdict: exact" in outcome.out) == (0, True), outcome
    assert not (desk.folder / "asked").exists()
