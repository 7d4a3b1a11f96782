"""PLAN over the pools of a run: what it asks, for how long, and where it moves, from the run's own history."""

from __future__ import annotations

import numpy as np
import pytest

from segue.policy.estimates import situation
from segue.policy.handover import standby_pools
from segue.policy.outlook import wants_spot
from segue.policy.pool_outlook import (
    _age_seconds,
    _believed,
    _down_seconds,
    handover_seconds,
    plans_pools,
    pools_to_move_to,
)
from segue.records import Capacity, StopReason
from segue.runlog.entries import HandoverEntry, StartEntry
from tests.support.histories import Logbook, make_spec

A, B, C = "segment/a", "segment/b", "segment/c"
HOUR = 3600.0
SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND


def log(*prices: float, hours: float | None = 24.0, steps: int = 1000, **fields) -> Logbook:
    """A run of steps of 36 s: ten hours of work."""
    listed = [{"deployment": name, "price": price} for name, price in zip((A, B, C), prices, strict=False)]
    policy = {"step_seconds": 36, "max_lost_in_place": 99, "margin_share": 0.0} | fields.pop("policy", {})
    deadline = None if hours is None else hours * HOUR
    pools = {"spot": listed, "on_demand_price": fields.pop("on_demand", 3.0)}
    return Logbook(make_spec(deadline_in=deadline, steps=steps, pools=pools, policy=policy, **fields))


def here_of(book: Logbook):
    return situation(book.spec, book.history, now=book.now)


def moves(book: Logbook, **options) -> tuple[str, ...] | None:
    plan = book.history.open_plan
    return pools_to_move_to(book.spec, book.history, here_of(book), plan, now=book.now, **options)


def trains(book: Logbook, *, on: str | None, minutes: float = 10.0) -> Logbook:
    """An attempt that trains on this spot pool, or on on-demand."""
    capacity, changes = (ON_DEMAND, {"pools": ()}) if on is None else (SPOT, {"deployment": on})
    book.claim(book.plan(capacity, **changes), deployment=on)
    book.seconds += minutes * 60
    return book


def test_a_decision_says_when_each_pool_is_asked_and_what_the_rest_costs_with_the_cheapest_alone():
    made = log(1.0, 1.0, 1.3).ask()
    assert made.plan.capacity is SPOT
    assert [each.deployment for each in made.plan.pools] == [A, B, C]
    assert [each.after_seconds for each in made.plan.pools][:2] == [0.0, 0.0]
    assert made.plan.pools[2].after_seconds > 0
    assert f"PLAN over 3 pools asks {A} first; also requested on {B} and {C} after " in made.reason
    assert "; with the cheapest spot pool alone, PLAN expects the rest to cost " in made.reason
    # The cost with the cheapest pool alone, which is not too low.
    assert made.numbers["expected_cost_share"] == log(1.0).ask().numbers["expected_cost_share"]


def test_on_demand_is_chosen_at_once_if_waiting_costs_more():
    book = log(1.0, 1.0, hours=10.6)
    book.attempt(StopReason.LOST, deployment=A, seconds=10.0)
    waits = [book.plan()]
    book.seconds += 60.0
    book.report(waits[0], StopReason.LOST, attempt_id=None, got_capacity=False)
    made = book.ask()
    assert made.plan.capacity is ON_DEMAND
    assert made.plan.pools == ()
    assert "PLAN expects the rest to cost" in made.reason


@pytest.mark.parametrize(
    ("prices", "fields"),
    [
        ((1.0,), {}),
        ((1.0, 2.0), {"hours": None}),
        ((1.0, 2.0), {"policy": {"name": "slack_age"}}),
        ((1.0, 2.0), {"policy": {"max_preemptions": 0}}),
        ((1.0, 2.0), {"slurm": {"spot": "preemptible", "on_demand": "batch"}}),
    ],
)
def test_the_pools_are_planned_together_only_by_plan_with_a_deadline_on_several_pools_of_prefect(prices, fields):
    book = log(*prices, **fields)
    assert not plans_pools(book.spec, book.history, here_of(book))
    assert "PLAN over" not in book.ask().reason
    assert plans_pools((usual := log(1.0, 2.0)).spec, usual.history, here_of(usual))


def test_a_run_on_on_demand_has_standbys_on_all_pools_that_save_money_the_best_first():
    book = trains(log(1.5, 1.0, 3.5), on=None)
    assert moves(book) == (B, A)
    assert standby_pools(book.spec, book.history, here_of(book), book.history.open_plan, now=book.now) == (B, A)
    almost_done = trains(log(1.5, 1.0, steps=3), on=None)
    assert moves(almost_done) == ()


def test_a_run_on_a_dear_pool_moves_to_a_cheaper_one_and_not_back():
    assert moves(trains(log(1.0, 2.0), on=B)) == (A,)
    assert moves(trains(log(1.0, 2.0), on=A)) == ()
    assert moves(trains(log(1.0, 1.01), on=B)) == ()


def test_without_hand_overs_a_run_moves_nowhere():
    assert moves(trains(log(1.0, 2.0, policy={"handover": False}), on=B)) == ()
    assert moves(trains(log(1.0, 2.0, policy={"handover": False}), on=None)) == ()


def test_a_standby_takes_over_only_on_a_pool_that_saves_money():
    book = trains(log(1.0, 2.9), on=None)
    plan, here = book.history.open_plan, here_of(book)
    wanted = {
        name: wants_spot(book.spec, book.history, here, plan, up_seconds=HOUR, now=book.now, deployment=name)
        for name in (A, B)
    }
    assert wanted[A]
    assert moves(book, up_seconds=HOUR)[0] == A


def test_a_machine_that_is_kept_at_a_planned_end_trains_on():
    book = log(1.0, 2.0)
    plan = book.plan(SPOT, deployment=B, pools=(), keeps_machine=True)
    name = book.claim(plan)
    book.seconds += HOUR
    book.commit(name, 100)
    book.report(plan, StopReason.BOUND, attempt_id=name, to_step=100, train_steps=100, train_seconds=HOUR)
    made = book.ask()
    assert (made.plan.deployment, made.plan.pools) == (B, ())
    assert "the machine is kept" in made.reason


def test_pieces_of_one_up_interval_between_planned_ends_count_as_one():
    book = log(1.0, 2.0)
    for _ in range(5):
        book.attempt(StopReason.BOUND, deployment=A, seconds=HOUR)
    shares = _believed(book.spec, book.history)["shares"]
    assert shares[0] < 0.85  # One request was granted, not five.
    few = _believed(log(1.0, 2.0).spec, log(1.0, 2.0).history)["up_rates"]
    assert (np.array(_believed(book.spec, book.history)["up_rates"][0]) < np.array(few[0])).all()


def test_a_pool_whose_machines_die_young_is_not_asked_first():
    book = log(1.0, 1.02)
    for _ in range(4):
        plan = book.plan(SPOT, deployment=A, pools=())
        book.seconds += 900.0
        name = book.claim(plan)
        book.seconds += 60.0
        book.report(plan, StopReason.LOST, attempt_id=name, seconds=60.0)
    book.seconds += 1000.0
    assert book.ask().plan.pools[0].deployment == B


@pytest.mark.parametrize("unit", [1e-6, 25_000.0, 1e8])
def test_the_currency_does_not_change_the_choice(unit):
    usual, other = (
        log(1.0, 1.05, 1.3).ask(),
        log(*(unit * price for price in (1.0, 1.05, 1.3)), on_demand=3 * unit).ask(),
    )
    assert other.plan.pools == usual.plan.pools
    assert other.numbers["expected_cost_share"] == usual.numbers["expected_cost_share"]


def test_with_a_small_budget_a_pool_without_a_machine_is_not_asked_again_and_again():
    book = log(1.0, 1.6, hours=None, budget={"per_run": 16.0})
    with_deadline = log(1.0, 1.6, budget={"per_run": 16.0})
    for each in (book, with_deadline):
        asked = []
        for _ in range(4):
            plan = each.plan()
            assert plan.pools == ()
            asked.append(plan.deployment)
            each.seconds += plan.start_within_seconds
            each.report(plan, StopReason.LOST, attempt_id=None, got_capacity=False)
        assert set(asked) == {A, B}


def test_a_pool_whose_request_was_withdrawn_before_a_machine_could_boot_was_not_refused():
    book = log(1.0, 1.0, 1.0)
    before = _believed(book.spec, book.history)["shares"]
    for _ in range(5):
        plan = book.plan()
        book.seconds += 60.0
        for pool in (B, C):
            facts = {"segment": plan.segment, "attempt": plan.attempt, "deployment": pool, "seconds": 0.0}
            book.write(StartEntry, number=1, outcome="withdrawn", reason="the start on a came first", **facts)
        name = book.claim(plan, deployment=A)
        book.seconds += HOUR
        book.report(plan, StopReason.LOST, attempt_id=name, seconds=HOUR)
    shares = _believed(book.spec, book.history)["shares"]
    assert shares[0] > shares[1]
    assert shares[1] == shares[2] >= before[1]
    assert np.isinf(_down_seconds(book.spec, book.history, now=book.now)[1:]).all()


def test_the_seconds_of_a_hand_over_are_measured_in_the_run():
    book = log(1.0, 2.0)
    book.attempt(StopReason.LOST, deployment=B, train_steps=5, train_seconds=180.0, startup_seconds=40.0)
    assert handover_seconds(book.history) == 40.0
    plan = book.plan(ON_DEMAND, pools=())
    name = book.claim(plan)
    facts = {"segment": plan.segment, "attempt": plan.attempt, "deployment": A, "standby": "s0"}
    book.write(HandoverEntry, reason="spot again", **facts)
    book.seconds += 3.0
    book.commit(name, 20)
    book.report(plan, StopReason.BOUND, attempt_id=name, to_step=20)
    plan = book.plan(SPOT, deployment=A, pools=(), standby="s0")
    name = book.claim(plan)
    book.seconds += 60.0
    book.report(plan, StopReason.LOST, attempt_id=name, train_steps=1, train_seconds=36.0, startup_seconds=2.0)
    assert handover_seconds(book.history) == 5.0


def test_a_machine_that_was_kept_at_planned_ends_is_as_old_as_all_its_segments():
    book = log(1.0, 2.0)
    for _ in range(4):
        plan = book.plan(SPOT, deployment=A, pools=(), keeps_machine=True)
        book.seconds += 10.0
        name = book.claim(plan)
        book.seconds += HOUR
        book.commit(name, book.history.committed_step + 10)
        book.report(plan, StopReason.BOUND, attempt_id=name, to_step=book.history.committed_step, seconds=HOUR)
    age = _age_seconds(book.history, here_of(book), book.now)
    assert age == pytest.approx(4 * (HOUR + 10) - 10 + 1800.0)
