"""A run leaves what it saw of its pools to the store, and a new run of the store begins with it."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import pytest

from segue.controller.pool_observations import recall_pools, remember_pools
from segue.controller.steps import decide_next
from segue.policy.estimates import on_demand_changeover_seconds
from segue.records import Capacity, SeenPools, StopReason
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.pool_memory import read_memory
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from tests.controller.test_steps import Run

CHEAP, DEAR = "segment/cheap", "segment/dear"
POOLS = {
    "spot": [{"deployment": CHEAP, "price": 1.0}, {"deployment": DEAR, "price": 1.03}],
    "on_demand_price": 4.0,
    "currency": "EUR",
}
HOUR = 3600.0


@pytest.fixture
def clock():
    return FakeClock(datetime(2026, 11, 1, tzinfo=UTC))


@pytest.fixture
def run_of(make_spec, clock):
    def make(run_id, *, hours=10.0, **fields):
        deadline = datetime.fromtimestamp(clock.now().timestamp() + hours * HOUR, UTC)
        policy = {"name": "slack_age", "step_seconds": 30, "max_lost_in_place": 99, "changeover_seconds": 600}
        spec = make_spec(run_id=run_id, steps=400, deadline=deadline, **{"policy": policy, "pools": POOLS} | fields)
        run = Run(spec, clock)
        recall_pools(run.log, spec)
        return run

    return make


def lives(run, clock, *, seconds, reason=StopReason.LOST, boot=10.0, commit=None):
    """An attempt of the run on the pool that is chosen."""
    plan = run.decide()
    if isinstance(seconds, dict):
        seconds, reason = seconds[plan.deployment]
    clock.advance(boot)
    claim = run.claim(plan)
    clock.advance(seconds)
    if commit is not None:
        run.commit(claim, commit)
    measured = {"train_steps": 3, "train_seconds": 90.0, "startup_seconds": 5.0}
    run.report(plan, claim, reason, seconds=seconds, to_step=commit or 7, **measured)
    return plan


def end(run, clock):
    """The decision that ends the run, and what its parent does after each decision."""
    decide_next(run.log, run.spec, clock=clock)
    remember_pools(run.log, run.spec, clock=clock)


def test_a_pool_that_was_bad_for_an_earlier_run_is_not_the_first_of_the_next(run_of, clock):
    first = run_of("first")
    by_pool = {CHEAP: (120.0, StopReason.LOST), DEAR: (7200.0, StopReason.BOUND)}
    asked = [lives(first, clock, seconds=by_pool, boot=600.0).deployment for _ in range(4)]
    assert asked[0] == CHEAP
    lives(first, clock, seconds=600.0, reason=StopReason.FINISHED, commit=400)
    end(first, clock)
    clock.advance(24 * HOUR)
    second = run_of("second")
    seen = read_history(second.log).seen_pools
    assert {each.pool for each in seen.intervals} == {CHEAP, DEAR}
    assert {each.log_id for each in seen.intervals} == {first.log.log_id}
    assert second.decide().deployment == DEAR
    elsewhere = run_of(
        "other", pools={"spot": [{"deployment": "segment/new", "price": 1.0}], "on_demand": "segment/od"}
    )
    assert read_history(elsewhere.log).seen_pools == SeenPools()


def test_the_memory_has_intervals_starts_and_prices(run_of, clock):
    run = run_of("first")
    lives(run, clock, seconds=1800.0)
    lives(run, clock, seconds=60.0, reason=StopReason.FINISHED, commit=400)
    end(run, clock)
    seen = read_memory(run.log.store)
    ups = [(each.pool, each.seconds, each.has_ended) for each in seen.intervals if each.is_up]
    assert ups[0] == (CHEAP, 1800.0, True)
    assert {name: price.per_hour for name, price in seen.prices.items()} == {
        CHEAP: 1.0,
        DEAR: 1.03,
        "segment/on-demand": 4.0,
    }


@pytest.mark.parametrize(("boot", "counted"), [(900.0, 900.0), (36_000.0, 5 * 600.0)])
def test_a_slow_boot_of_on_demand_lengthens_the_margin_of_the_next_run_up_to_a_limit(run_of, clock, boot, counted):
    run = run_of("first", hours=3.6)  # So little slack that on-demand is the only choice.
    plan = lives(run, clock, seconds=600.0, reason=StopReason.FINISHED, boot=boot, commit=400)
    assert plan.capacity is Capacity.ON_DEMAND
    end(run, clock)
    second = run_of("second")
    history = read_history(second.log)
    assert [each.seconds for each in history.seen_pools.starts] == [boot]
    assert on_demand_changeover_seconds(second.spec, history) == pytest.approx(1.1 * counted)


def test_a_long_run_adds_once_an_hour_and_not_at_each_decision(run_of, clock):
    run = run_of("first", hours=100.0)
    added = []
    for _ in range(12):
        lives(run, clock, seconds=1200.0, commit=None)
        decide_next(run.log, run.spec, clock=clock)
        before = read_memory(run.log.store)
        remember_pools(run.log, run.spec, clock=clock)
        added.append(read_memory(run.log.store) != before)
    assert 2 <= sum(added) <= 5


def test_a_run_that_has_decided_takes_no_further_memory(run_of, clock):
    first = run_of("first")
    second = run_of("second")
    second.decide()
    lives(first, clock, seconds=60.0, reason=StopReason.FINISHED, commit=400)
    end(first, clock)
    recall_pools(second.log, second.spec)
    assert read_history(second.log).seen_pools == SeenPools()


def test_a_store_that_fails_costs_the_run_nothing_but_a_warning(run_of, clock, caplog):
    run = run_of("first")
    lives(run, clock, seconds=60.0, reason=StopReason.FINISHED, commit=400)
    decide_next(run.log, run.spec, clock=clock)
    faulty = FaultyStore(run.log.store, fails=lambda operation, key: key.startswith(".pools/"))
    with caplog.at_level(logging.WARNING):
        remember_pools(RunLog(faulty, "first", clock=clock).reload(), run.spec, clock=clock)
    assert "the memory of pools was not changed" in caplog.text
    assert read_memory(run.log.store) == SeenPools()


def test_a_signed_run_does_not_use_what_anybody_may_have_written(run_of, clock, monkeypatch):
    monkeypatch.setenv("THE_KEY", "5e" * 32)
    first = run_of("first")
    lives(first, clock, seconds=60.0, reason=StopReason.FINISHED, commit=400)
    end(first, clock)
    signed = run_of("signed", store={"url": first.spec.store.url, "signing_key": "env:THE_KEY"})
    assert signed.log.is_signed
    assert read_history(signed.log).seen_pools == SeenPools()
