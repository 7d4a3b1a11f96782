"""How long a run without a deadline waits for spot, and how it comes back from on-demand."""

from __future__ import annotations

import pytest

from segue.policy.estimates import situation
from segue.policy.handover import may_come_back
from segue.policy.outlook import wants_spot
from segue.records import Capacity, StopReason
from segue.runlog.entries import HandoverEntry, OpenEntry
from tests.support.histories import Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
POLICY = {"step_seconds": 10, "changeover_seconds": 60, "max_wait_seconds": 3000}
PRICES = {"on_demand_price": 3.0, "spot_price": 1.0}


def log(*, deadline_in: float | None = None, policy: dict | None = None, **fields) -> Logbook:
    return Logbook(make_spec(deadline_in=deadline_in, policy=POLICY | (policy or {}), pools=PRICES, **fields))


def wait_for_spot(book: Logbook) -> None:
    """An attempt on spot that is given up after the wait of its plan."""
    plan = book.decide().plan
    assert plan.capacity is SPOT
    book.seconds += plan.start_within_seconds
    book.report(plan, StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)


def waited_too_long(**fields) -> Logbook:
    book = log(**fields)
    while book.ask().plan.capacity is SPOT:
        wait_for_spot(book)
    return book


def test_waits_for_the_longest_time_in_all_and_then_uses_on_demand():
    book = log()
    start_seconds = book.spec.liveness.start_seconds
    assert start_seconds < 3000
    wait_for_spot(book)
    assert book.seconds == start_seconds + 60
    decision = book.ask()
    assert decision.plan.capacity is SPOT
    assert decision.reason.startswith("spot: no deadline, so the cheapest capacity, after a wait of at most 50 min")
    while book.ask().plan.capacity is SPOT:
        wait_for_spot(book)
    assert 3000 <= book.seconds <= 3000 + 60
    decision = book.ask()
    assert decision.reason.startswith("on-demand: no spot machine for 5")
    assert "policy.max_wait_seconds" in decision.reason


def test_a_wait_shorter_than_the_capacity_timeout_ends_the_first_attempt_early():
    book = log(policy={"max_wait_seconds": 100})
    assert book.ask().plan.start_within_seconds == 160  # And the boot.
    wait_for_spot(book)
    assert book.ask().plan.capacity is ON_DEMAND


def test_without_the_setting_a_run_waits_for_ever():
    book = log(policy={"max_wait_seconds": None})
    for _ in range(20):
        wait_for_spot(book)
    assert book.ask().plan.capacity is SPOT


def test_a_preemption_begins_a_new_wait_with_the_next_request():
    book = waited_too_long()
    plan = book.plan(SPOT)
    name = book.claim(plan)
    book.commit(name, 20)
    book.seconds += 5000
    book.report(plan, StopReason.NOTICE, attempt_id=name, to_step=20, seconds=5000)
    book.seconds += 50_000  # The parent was down. Nobody asked for spot.
    assert book.ask().plan.capacity is SPOT
    begun = book.seconds
    while book.ask().plan.capacity is SPOT:
        wait_for_spot(book)
    assert 3000 <= book.seconds - begun <= 3000 + 60


def test_a_run_that_is_started_again_begins_a_new_wait():
    book = log()
    plan = book.decide().plan
    book.seconds += 30
    book.report(plan, StopReason.CANCELLED, attempt_id=None, got_capacity=False)
    assert book.decide().action == "cancelled"
    book.seconds += 5_000_000
    book.write(OpenEntry, spec=book.spec)
    assert book.ask().plan.capacity is SPOT


def test_a_planned_end_on_on_demand_continues_there_while_spot_has_not_come_back():
    book = waited_too_long()
    book.attempt(StopReason.BOUND, ON_DEMAND, commit=50)
    book.seconds += 4000
    assert book.ask().plan.capacity is ON_DEMAND


def test_if_on_demand_has_no_machine_either_spot_is_asked_again():
    book = waited_too_long()
    plan = book.decide().plan
    assert plan.capacity is ON_DEMAND
    assert plan.start_within_seconds == book.spec.liveness.start_seconds + 60
    assert plan.pools == ()
    book.seconds += plan.start_within_seconds
    book.report(plan, StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)
    decision = book.ask()
    assert decision.plan.capacity is SPOT
    assert decision.reason.startswith("spot: on-demand has no machine either")
    assert decision.plan.start_within_seconds == book.spec.liveness.start_seconds + 60
    wait_for_spot(book)
    assert book.ask().plan.capacity is ON_DEMAND


def test_with_a_deadline_the_rule_of_the_policy_counts():
    with_limit, without = (
        log(deadline_in=1e6, policy={"max_wait_seconds": limit, "name": "greedy"}) for limit in (10, None)
    )
    for book in (with_limit, without):
        wait_for_spot(book)
    assert with_limit.ask() == without.ask()
    assert with_limit.ask().plan.capacity is SPOT


def test_moves_back_to_spot_as_soon_as_a_standby_has_a_machine():
    book = waited_too_long()
    plan = book.decide().plan
    name = book.claim(plan)
    book.commit(name, 20)
    book.seconds += 1000
    assert may_come_back(book.spec, book.history)
    here = situation(book.spec, book.history, now=book.now)
    moves = {"up_seconds": 0.0, "now": book.now, "deployment": book.spec.pools.spot[0].deployment}
    assert wants_spot(book.spec, book.history, here, plan, **moves)
    where = {"standby": "spare0", "deployment": moves["deployment"], "reason": "the standby is ready"}
    numbers = {"waited_seconds": 900.0, "held_seconds": 60.0}
    book.write(HandoverEntry, segment=plan.segment, attempt=plan.attempt, numbers=numbers, **where)
    book.report(plan, StopReason.BOUND, attempt_id=name, to_step=20)
    back = book.decide().plan
    assert (back.capacity, back.standby) == (SPOT, "spare0")
    assert back.start_within_seconds <= book.spec.liveness.heartbeat_timeout_seconds


def test_a_run_that_is_on_on_demand_for_another_reason_stays_there():
    unlimited = log(policy={"max_wait_seconds": None})
    unlimited.attempt(StopReason.NOTICE, ON_DEMAND, commit=20)
    dies_on_spot = log(policy={"max_lost_in_place": 2})
    for _ in range(2):
        dies_on_spot.attempt(StopReason.LOST, SPOT)
    assert dies_on_spot.decide().plan.capacity is ON_DEMAND
    keeps = waited_too_long(policy={"handover": False})
    assert keeps.decide().plan.capacity is ON_DEMAND
    preempted = log(policy={"max_preemptions": 1})
    preempted.attempt(StopReason.NOTICE, SPOT, commit=20)
    preempted.report(preempted.plan(SPOT), StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)
    preempted.seconds += 5000
    decision = preempted.decide()
    assert decision.plan.capacity is ON_DEMAND
    assert decision.plan.start_within_seconds is None  # It keeps its place in the queue.
    for book in (unlimited, dies_on_spot, keeps, preempted):
        assert not may_come_back(book.spec, book.history)


@pytest.mark.parametrize(("per_run", "capacity"), [(0.7, SPOT), (2.0, ON_DEMAND)])
def test_a_budget_that_does_not_pay_for_on_demand_up_to_the_goal_keeps_the_run_on_spot(per_run, capacity):
    # 100 steps of 10 s and a start of 60 s cost .88 on on-demand.
    book = log(budget={"per_run": per_run})
    while book.ask().plan.capacity is SPOT and book.seconds < 3000:
        wait_for_spot(book)
    decision = book.ask()
    assert decision.plan.capacity is capacity
    assert not decision.plan.ignores_deadline
    short = "spot in spite of policy.max_wait_seconds, because the budget wins: the rest on on-demand costs 0.88"
    assert (short in decision.reason) is (capacity is SPOT)


def test_old_logs_have_no_field_for_it():
    assert "max_wait_seconds" not in make_spec().model_dump_json()
    assert make_spec(policy={"max_wait_seconds": 5}).policy.max_wait_seconds == 5
