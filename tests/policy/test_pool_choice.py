"""Which spot pool an attempt goes to: by price, by what was observed there, and not twice in a row to an empty one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import Random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.policy.availability import Interval, intervals
from segue.policy.estimates import Situation, situation
from segue.policy.pool_choice import (
    LAST_FOR_SECONDS,
    PRIOR_LIFE_SECONDS,
    PRIOR_WAIT_SECONDS,
    Pool,
    PoolChoice,
    cheaper_pools,
    cheapest,
    choose_pool,
    paid_per_hour_of_work,
    pool_of,
    requests_of,
)
from segue.policy.spending import charges_of
from segue.records import Capacity, StopReason
from segue.runlog.entries import StartEntry
from tests.support.histories import START, Logbook, make_spec

LOST, NOTICE, BOUND = StopReason.LOST, StopReason.NOTICE, StopReason.BOUND
HERE = Situation(
    remaining_seconds=7200.0,
    work_seconds=3600.0,
    changeover_seconds=120.0,
    at_risk_seconds=600.0,
    detection_seconds=32.0,
)
A, B, C = "segment/a", "segment/b", "segment/c"


def log(*prices: float, deadline_in: float | None = 86400.0, name: str = "slack_age", **fields) -> Logbook:
    listed = [{"deployment": name, "price": price} for name, price in zip((A, B, C), prices, strict=False)]
    policy = {"name": name, "step_seconds": 30, "max_lost_in_place": 99}
    return Logbook(make_spec(deadline_in=deadline_in, pools={"spot": listed}, policy=policy, **fields))


CLUSTER = {"slurm": {"spot": "preemptible", "on_demand": "batch"}}
"""A run whose trainers wait in the queue of a cluster, so that it asks one pool at a time."""


def asked(book: Logbook) -> str:
    here = situation(book.spec, book.history, now=book.now)
    return choose_pool(book.spec, book.history, here, now=book.now).deployment


def lives(book: Logbook, seconds: float, reason: StopReason = LOST) -> str:
    """An attempt on the pool that is chosen, with a boot as long as the prior."""
    plan = book.plan()
    book.seconds += 100.0
    name = book.claim(plan)
    book.seconds += seconds
    book.report(plan, reason, attempt_id=name, seconds=seconds)
    return plan.deployment


def waits(book: Logbook) -> str:
    """A wait for the pool that is chosen, without capacity."""
    plan = book.plan()
    book.seconds += plan.start_within_seconds
    book.report(plan, LOST, attempt_id=None, got_capacity=False)
    return plan.deployment


@pytest.mark.parametrize(
    ("prices", "chosen"), [((1.0,), A), ((2.0, 1.0), B), ((1.0, 2.0), A), ((1.0, 1.0), A), ((3.0, 2.0, 1.0), C)]
)
def test_of_pools_without_observations_the_cheapest_is_taken(prices, chosen):
    book = log(*prices)
    assert asked(book) == chosen
    assert book.ask().plan.deployment == chosen


def test_a_decision_names_the_pool_and_its_cost_where_there_is_a_choice():
    assert f"; {A}: expected cost 1.06 per hour of useful work" in log(1.0, 2.0).ask().reason
    assert "segment/" not in log(1.0).ask().reason
    reason = log(1.0, 1.0, 2.0).ask().reason
    others = f"also requested on {B} and {C} after 7.5 min"
    assert reason.endswith(f"; {A}: expected cost 1.06 per hour of useful work; {others}")


def test_on_demand_has_its_own_deployment_whatever_the_spot_pools():
    spec = make_spec(pools={"spot": [{"deployment": A}, {"deployment": B}]}, policy={"name": "on_demand_only"})
    made = Logbook(spec).ask()
    assert (made.plan.capacity, made.plan.deployment) == (Capacity.ON_DEMAND, "segment/on-demand")
    assert A not in made.reason


@pytest.mark.matrix
def test_a_pool_whose_attempts_die_early_is_left_for_a_slightly_dearer_one_and_not_for_one_twice_as_dear():
    little, much = log(1.0, 1.05), log(1.0, 2.0)
    assert {lives(little, 60.0) for _ in range(6)} == {A, B}
    assert {lives(much, 60.0) for _ in range(6)} == {A}


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (Pool(A, 1.0, life_seconds=50_000.0), Pool(B, 0.99, life_seconds=2000.0), A),
        (Pool(A, 1.0, life_seconds=50_000.0), Pool(B, 0.4, life_seconds=2000.0), B),
        (Pool(A, 1.0, wait_seconds=3000.0), Pool(B, 0.99, wait_seconds=9000.0), A),
        (Pool(A, 1.0, no_capacity_at=START), Pool(B, 9.0), B),
        (Pool(A, 1.0, no_capacity_at=START), Pool(B, 9.0, no_capacity_at=START - timedelta(seconds=1)), B),
        (Pool(A, 1.0, no_capacity_at=START - timedelta(seconds=LAST_FOR_SECONDS)), Pool(B, 9.0), A),
    ],
)
def test_the_least_cost_of_useful_work_wins_among_pools_with_capacity(first, second, chosen):
    for pools in ([first, second], [second, first]):
        assert cheapest(pools, here=HERE, on_demand_price=3.0, now=START).deployment == chosen


def test_on_a_cluster_after_a_wait_without_capacity_the_next_pool_is_asked_and_the_first_one_again_half_an_hour_later():
    book = log(1.0, 2.0, deadline_in=None, **CLUSTER)
    assert waits(book) == A
    assert asked(book) == B
    assert lives(book, 60.0, BOUND) == B
    book.seconds += LAST_FOR_SECONDS
    assert asked(book) == A


def test_on_a_cluster_no_pool_is_waited_for_twice_in_a_row_when_none_has_capacity():
    book = log(1.0, 1.5, 2.0, **CLUSTER)
    assert [waits(book) for _ in range(7)] == [A, B, C, A, B, C, A]


@pytest.mark.parametrize(("prices", "seconds"), [((1.0,), 1020.0), ((1.0, 1.0), 570.0), ((1.0, 1.0, 1.0), 420.0)])
@pytest.mark.parametrize("deadline_in", [None, 86400.0])
def test_on_a_cluster_the_wait_without_the_boot_is_divided_among_the_pools_with_capacity(prices, seconds, deadline_in):
    book = log(*prices, deadline_in=deadline_in, **CLUSTER)
    plan = book.ask().plan
    assert (plan.start_within_seconds, plan.pools) == (seconds, ())


def test_on_a_cluster_the_last_pool_with_capacity_gets_the_whole_wait():
    book = log(1.0, 1.0, 1.0, deadline_in=None, **CLUSTER)
    found = [book.ask().plan.start_within_seconds for _ in range(4) if waits(book)]
    assert found == [570.0, 1020.0, 420.0, 420.0]


def test_the_only_pool_is_asked_again_without_a_pause():
    book = log(1.0)
    assert [waits(book) for _ in range(3)] == [A, A, A]


def test_a_pool_without_capacity_does_not_make_the_policy_give_up_on_another():
    fields = {"deadline_in": 9000.0, "name": "slack_age"}
    one, two = log(1.0, **fields), log(1.0, 1.0, **fields, **CLUSTER)
    assert (waits(one), waits(two)) == (A, A)
    assert one.ask().plan.capacity is Capacity.ON_DEMAND
    assert (two.ask().plan.capacity, two.ask().plan.deployment) == (Capacity.SPOT, B)
    waits(two)
    assert two.ask().plan.capacity is Capacity.ON_DEMAND


def requests(book: Logbook) -> dict[str, float]:
    """The requests of the next attempt, and their times, in their order."""
    return {each.deployment: each.after_seconds for each in book.ask().plan.pools}


def test_an_attempt_is_requested_on_every_pool_that_is_cheaper_than_on_demand_and_later_on_dearer_ones():
    found = requests(log(1.2, 1.0, 2.9))
    assert list(found) == [B, A]  # An hour of useful work on C costs more than on on-demand.
    assert found[B] == 0.0 < found[A] < 600.0
    assert list(requests(log(1.0, 1.3, 2.0))) == [A, B, C]
    assert requests(log(1.0, 1.0, 1.0)) == {A: 0.0, B: 0.0, C: 0.0}
    assert requests(log(1.0)) == requests(log(1.0, 9.0)) == {}
    assert log(1.0, 1.0).ask().plan.start_within_seconds == log(1.0).ask().plan.start_within_seconds


@pytest.mark.parametrize(("may_move", "seconds"), [(False, 3600.0), (True, 600.0)])
def test_a_dearer_pool_is_asked_when_the_wait_has_cost_what_its_machine_costs_more(may_move, seconds):
    cheap, dear = Pool(A, 1.0, life_seconds=3600.0, wait_seconds=480.0), Pool(B, 1.3, life_seconds=3600.0)
    paid = [paid_per_hour_of_work(pool, here=HERE) for pool in (cheap, dear)]
    first, second = requests_of([dear, cheap], A, here=HERE, on_demand_price=3.0, may_move=may_move)
    assert (first.deployment, first.after_seconds, second.deployment) == (A, 0.0, B)
    share = HERE.work_seconds / HERE.remaining_seconds
    assert second.after_seconds * 3.0 * share == pytest.approx((paid[1] - paid[0]) * seconds)


def test_all_pools_are_asked_within_the_first_half_of_the_wait():
    plan = log(1.0, 1.1, 2.0, deadline_in=None).ask().plan
    found = {each.deployment: each.after_seconds for each in plan.pools}
    assert found[C] == pytest.approx((plan.start_within_seconds - 120.0) / 2)
    assert 0 < found[B] < found[C] / 5


def test_a_pool_without_capacity_is_asked_at_once_beside_a_dearer_one():
    book = log(1.0, 1.1)
    waits(book)
    lives(book, 3600.0)
    assert requests(book)[A] == 0.0


@given(st.lists(st.floats(0.01, 5.0), min_size=2, max_size=3), st.none() | st.floats(3.2e3, 1e6))
def test_requests_name_each_pool_once_in_the_order_of_their_times_with_the_chosen_one_first(prices, deadline_in):
    plan = log(*prices, deadline_in=deadline_in).ask().plan
    names, times = [each.deployment for each in plan.pools], [each.after_seconds for each in plan.pools]
    assert len(names) == len(set(names)) != 1
    assert times == sorted(times)
    if names:
        assert (names[0], times[0]) == (plan.deployment, 0.0)
        assert times[-1] < plan.start_within_seconds


def race(book: Logbook, *, won_by: str, after: float, withdrawn: dict[str, float]) -> None:
    """An attempt that `won_by` claims after some seconds; the other starts had machines for these seconds."""
    plan = book.plan()
    book.seconds += after
    name = book.claim(plan, deployment=won_by)
    for number, each in enumerate(plan.pools, 1):
        if each.deployment in withdrawn:
            facts = {"segment": plan.segment, "attempt": plan.attempt, "number": number, "outcome": "withdrawn"}
            book.write(StartEntry, **facts, deployment=each.deployment, seconds=withdrawn[each.deployment])
    book.seconds += 3600.0
    book.report(plan, LOST, attempt_id=name, seconds=3600.0)


def test_the_pool_that_claims_first_is_the_pool_of_the_attempt_and_is_paid_and_the_others_were_asked():
    book = log(1.0, 1.0, 2.0)
    race(book, won_by=B, after=900.0, withdrawn={A: 0.0, C: 60.0})
    history = book.history
    assert history.decisions[0].plan.deployment == B
    assert [each.deployment for each in history.decisions[0].plan.pools] == [A, B, C]
    assert [(c.price, c.seconds) for c in charges_of(book.spec, history)] == [(1.0, 3600.0), (2.0, 60.0)]
    seen = {each.deployment: [] for each in intervals(history)}
    for each in intervals(history):
        seen[each.deployment].append((each.is_up, each.seconds, each.has_ended))
    assert seen[A] == [(False, 900.0, False)]
    assert seen[B] == [(False, 900.0, True), (True, 3600.0, True)]
    asked_after = history.decisions[0].plan.pools[2].after_seconds
    assert seen[C] == [(False, pytest.approx(840.0 - asked_after), True), (True, 60.0, False)]


def test_a_wait_without_capacity_was_a_wait_for_each_pool_that_was_asked():
    book = log(1.0, 1.0, 2.9)
    waits(book)
    assert [(each.deployment, each.is_up, each.has_ended) for each in intervals(book.history)] == [
        (A, False, False),
        (B, False, False),
    ]


@pytest.mark.parametrize(("budget", "pools"), [(50.0, [A, B]), (1.0, [])])
def test_a_budget_bounds_an_attempt_by_the_dearest_pool_and_leaves_pools_out_that_it_cannot_pay(budget, pools):
    books = [log(*prices, deadline_in=None, budget=budget) for prices in ((1.0,), (2.0,), (1.0, 2.0))]
    alone, dear, both = (book.ask().plan for book in books)
    assert [each.deployment for each in both.pools] == pools
    assert both.max_seconds == (dear if pools else alone).max_seconds


def trains_on(won_by: str, *prices: float, seconds: float = 0.0, steps: int = 100, **fields) -> Logbook:
    """A run whose attempt trains on this pool since these seconds."""
    book = log(*prices, steps=steps, **fields)
    book.claim(book.plan(), deployment=won_by)
    book.seconds += seconds
    return book


def cheaper(book: Logbook) -> tuple[str, ...]:
    here = situation(book.spec, book.history, now=book.now)
    return cheaper_pools(book.spec, book.history, here, book.history.open_plan, now=book.now)


def test_a_run_on_a_dear_pool_moves_to_the_cheaper_ones_and_first_to_the_one_that_saves_most():
    assert cheaper(trains_on(C, 1.2, 1.0, 2.5)) == (B, A)
    assert cheaper(trains_on(A, 1.2, 1.0, 2.5)) == (B,)
    assert cheaper(trains_on(B, 1.2, 1.0, 2.5)) == ()


def test_a_move_must_save_twice_the_cost_of_the_boot_in_the_work_that_is_left():
    assert cheaper(trains_on(B, 1.0, 1.05)) == ()
    assert cheaper(trains_on(B, 1.0, 1.5)) == (A,)
    assert cheaper(trains_on(B, 1.0, 1.5, steps=10)) == ()  # Five minutes of work are left.


def test_a_machine_that_has_lasted_long_is_left_only_for_a_clear_saving():
    assert cheaper(trains_on(B, 1.0, 1.1, seconds=0.0)) == (A,)
    assert cheaper(trains_on(B, 1.0, 1.1, seconds=30_000.0)) == ()


def test_old_observations_count_less():
    book = log(1.0, 1.05)
    while asked(book) == A:
        lives(book, 60.0)
    book.seconds += 5 * 86400.0
    assert asked(book) == A


def test_a_wait_costs_more_where_there_is_less_time():
    slow = Pool(A, 1.0, wait_seconds=7200.0)
    quick = Pool(B, 1.6, wait_seconds=60.0)

    def chosen(remaining: float | None) -> str:
        here = replace(HERE, remaining_seconds=remaining)
        return cheapest([slow, quick], here=here, on_demand_price=3.0, now=START).deployment

    assert [chosen(None), chosen(200 * 3600.0), chosen(3700.0)] == [A, A, B]


WORLDS = {  # For each pool price, mean life and mean wait.
    "the cheap one dies early": {A: (1.0, 900.0, 60.0), B: (1.3, 20_000.0, 60.0)},
    "the cheap one is as good": {A: (1.0, 9000.0, 60.0), B: (1.3, 9000.0, 60.0)},
    "each has its fault": {A: (1.0, 1200.0, 1200.0), B: (1.1, 5000.0, 300.0), C: (1.5, 50_000.0, 10.0)},
}


WAITS_SECONDS = 900.0
"""How long one attempt waits for a machine."""


def paid_by(choose: Callable[[list[Pool], Situation, datetime], PoolChoice], world: dict, *, seed: int):
    """What twelve hours of work cost, and how long they wait. Lives and waits are memoryless; a commit each 10 min."""
    chance, seconds, paid, waits, observed = Random(seed), 0.0, 0.0, 0.0, ()
    left = 12 * 3600.0
    while left > 0:
        now = START + timedelta(seconds=seconds)
        here = replace(HERE, work_seconds=left, remaining_seconds=30 * 3600.0)
        pools = [pool_of(observed, name, price=price, here=here, now=now) for name, (price, *_) in world.items()]
        choice = choose(pools, here, now)
        asked = {each.deployment: each.after_seconds for each in choice.requests_within(WAITS_SECONDS)}
        asked = asked or {choice.deployment: 0.0}
        comes = {name: after + chance.expovariate(1 / world[name][2]) for name, after in asked.items()}
        won, longest = min(comes, key=comes.get), WAITS_SECONDS * choice.wait_share
        waited = min(comes[won], longest)
        has_come = comes[won] < longest
        for name, after in asked.items():
            if after < waited:
                down = waited - after + 120.0 * has_come
                has_ended = has_come and name == won
                observed += (Interval(False, now + timedelta(seconds=after), down, has_ended, name),)
        seconds, waits = seconds + waited + 120.0 * has_come, waits + waited
        if not has_come:
            continue
        price, life, _ = world[won]
        lives = chance.expovariate(1 / life)
        held = min(lives, left)
        observed += (Interval(True, START + timedelta(seconds=seconds), held, held == lives, won),)
        seconds += held
        paid += price * (held + 120.0)
        left -= held - (min(held, chance.uniform(0, 600.0)) if held == lives else 0.0)
    return paid, waits


def one_by_one(pools, here, now):
    return cheapest(pools, here=here, on_demand_price=3.0, now=now)


def all_at_once(pools, here, now):
    chosen = cheapest(pools, here=here, on_demand_price=3.0, now=now)
    requests = requests_of(pools, chosen.deployment, here=here, on_demand_price=3.0, may_move=False)
    return replace(chosen, wait_share=1.0, requests=requests)


@pytest.mark.parametrize("choose", [one_by_one, all_at_once])
@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS.keys())
def test_over_many_attempts_the_choice_costs_little_more_than_the_best_pool_alone(world, choose):
    def cost(choose):
        return mean(paid_by(choose, world, seed=seed)[0] for seed in range(24))

    chosen, alone = cost(choose), [cost(lambda *_, name=name: PoolChoice(name)) for name in world]
    assert chosen < 1.18 * min(alone)
    assert chosen < 0.95 * max(alone)


SCARCE = {
    "alike": dict.fromkeys((A, B, C), (1.0, 5400.0, 1800.0)),
    "at three prices": {A: (1.0, 3600.0, 7200.0), B: (1.1, 3600.0, 7200.0), C: (1.3, 3600.0, 7200.0)},
}


@pytest.mark.matrix
@pytest.mark.parametrize("world", SCARCE.values(), ids=SCARCE.keys())
def test_a_run_that_asks_all_pools_at_once_waits_for_less_than_half_as_long_and_pays_no_more(world):
    found = [[paid_by(choose, world, seed=seed) for seed in range(40)] for choose in (one_by_one, all_at_once)]
    (paid, waits), (paid_at_once, waits_at_once) = ([mean(each) for each in zip(*one, strict=True)] for one in found)
    assert waits_at_once < waits / 2
    assert paid_at_once < 1.02 * paid


POOLS = st.builds(
    Pool,
    deployment=st.just(""),
    price=st.floats(0.01, 100.0),
    life_seconds=st.floats(10.0, 1e6),
    wait_seconds=st.floats(0.0, 1e5),
    no_capacity_at=st.none() | st.floats(0.0, 7200.0).map(lambda ago: START - timedelta(seconds=ago)),
)


def is_worse_throughout(one: Pool, other: Pool) -> bool:
    dearer = one.price > other.price and one.life_seconds < other.life_seconds and one.wait_seconds > other.wait_seconds
    return (
        dearer
        and one.no_capacity_at is not None
        and (other.no_capacity_at is None or one.no_capacity_at > other.no_capacity_at)
    )


@given(st.lists(POOLS, min_size=1, max_size=5), st.sampled_from([None, 100.0, 3600.0, 1e6]))
def test_a_pool_that_is_worse_in_every_number_is_never_chosen(pools, remaining):
    named = [replace(pool, deployment=f"p{at}") for at, pool in enumerate(pools)]
    here = replace(HERE, remaining_seconds=remaining)
    chosen = cheapest(named, here=here, on_demand_price=3.0, now=START)
    assert chosen == cheapest(named, here=here, on_demand_price=3.0, now=START)
    taken = next(pool for pool in named if pool.deployment == chosen.deployment)
    assert not any(is_worse_throughout(taken, other) for other in named)
    assert chosen.why


def test_a_pool_without_observations_starts_from_the_published_means():
    fresh = Pool(A, 1.0)
    assert (fresh.life_seconds, fresh.wait_seconds) == (PRIOR_LIFE_SECONDS, PRIOR_WAIT_SECONDS)
