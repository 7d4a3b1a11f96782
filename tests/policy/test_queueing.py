"""Pools whose slots runs share: the wait for on-demand is part of the way to the deadline, and no preemption."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.policy import clamp
from segue.policy.availability import preemptions
from segue.policy.decide import decide
from segue.policy.estimates import changeover_seconds, situation
from segue.policy.queueing import NUMBER, Queues, Slots, queue_seconds
from segue.records import Capacity, StopReason
from tests.support.histories import Logbook, make_spec

SPEC = {"policy": {"step_seconds": 10, "changeover_seconds": 20, "detection_seconds": 10, "margin_share": 0}}


@pytest.mark.parametrize(
    ("slots", "seconds"),
    [
        (Slots(None, taken=50, waiting=9, held_seconds=[60]), 0),
        (Slots(2, taken=1, waiting=0, held_seconds=[60]), 0),
        (Slots(2, taken=0, waiting=1, held_seconds=[60]), 0),
        (Slots(2, taken=2, waiting=0, held_seconds=[60]), 30),
        (Slots(2, taken=1, waiting=1, held_seconds=[60]), 30),
        (Slots(2, taken=2, waiting=3, held_seconds=[10, 60, 600]), 120),
        (Slots(2, taken=2, waiting=3, held_seconds=[]), 0),
        (Slots(0, taken=0, waiting=3, held_seconds=[60]), 0),
        (Slots(2, taken=2, waiting=1, held_seconds=[60], start_every_seconds=40), 80),
        (Slots(2, taken=2, waiting=1, held_seconds=[60], start_every_seconds=20), 60),
        (Slots(2, taken=2, waiting=1, held_seconds=[60], start_every_seconds=9000), 120),
        (Slots(2, taken=1, waiting=0, held_seconds=[60], start_every_seconds=40), 0),
    ],
)
def test_the_wait_is_that_of_the_flow_runs_before_this_one(slots, seconds):
    assert queue_seconds(slots) == seconds


@given(limit=st.integers(1, 50), taken=st.integers(0, 50), waiting=st.integers(0, 50), held=st.floats(1, 1e5))
def test_more_runs_before_this_one_never_shorten_its_wait(limit, taken, waiting, held):
    here = queue_seconds(Slots(limit, taken, waiting, [held]))
    assert here >= 0
    assert queue_seconds(Slots(limit, taken, waiting + 1, [held])) >= here
    assert queue_seconds(Slots(limit + 1, taken, waiting, [held])) <= here


def test_spot_ends_earlier_by_the_wait_for_on_demand():
    book = Logbook(make_spec(deadline_in=4000, **SPEC))
    free = situation(book.spec, book.history, now=book.now)
    full = situation(book.spec, book.history, now=book.now, on_demand_queue_seconds=600)
    assert clamp.needed_for_spot_seconds(full) == clamp.needed_for_spot_seconds(free) + 600
    assert clamp.seconds_to_recall(full) == clamp.seconds_to_recall(free) - 600
    assert clamp.longest_wait_seconds(full) == clamp.longest_wait_seconds(free) - 600


def test_a_full_on_demand_pool_is_asked_in_time():
    """100 steps of 10 s: with 1,400 s left on-demand still meets the deadline, but not after 300 s in its queue."""
    book = Logbook(make_spec(deadline_in=1400, **SPEC))
    assert decide(book.spec, book.history, now=book.now).plan.capacity is Capacity.SPOT
    asked = decide(book.spec, book.history, now=book.now, queues=Queues(on_demand_seconds=300))
    assert asked.plan.capacity is Capacity.ON_DEMAND
    assert asked.numbers[NUMBER] == 300
    assert asked.reason.endswith("that dies, with 5 min for other runs on on-demand")


def test_runs_that_spot_will_not_reach_in_time_leave_it_one_after_the_other_the_last_one_first():
    """Slots are held for a minute. Spot has 4 slots, and time for 40 of 50 that wait; on-demand has 2."""
    now = datetime(2026, 1, 1, tzinfo=UTC)
    on_demand = Slots(2, taken=0, waiting=0, held_seconds=[])
    patience = now + timedelta(minutes=10)
    queues = [
        Queues.of(spot=Slots(4, taken=4, waiting=before, held_seconds=[60]), on_demand=on_demand, now=now)
        for before in range(50)
    ]
    crowds = [found.crowd_seconds(until=patience) for found in queues]
    assert crowds[:40] == [0] * 40
    # Each waits for those before it that must leave too: on-demand has a slot each half minute.
    assert crowds[40:] == [30 * (number + 1) for number in range(10)]


@pytest.mark.parametrize(("spot", "on_demand"), [(None, 2), (4, None), (0, 2), (4, 0)])
def test_without_slots_to_wait_for_nobody_is_crowded(spot, on_demand):
    now = datetime(2026, 1, 1, tzinfo=UTC)
    queues = Queues.of(spot=Slots(spot, 4, 90, [60]), on_demand=Slots(on_demand, 0, 0, []), now=now)
    assert queues.crowd_seconds(until=now) == 0


def test_a_run_behind_many_waits_for_spot_for_a_shorter_time_or_asks_for_on_demand_at_once():
    book = Logbook(make_spec(deadline_in=4000, **SPEC))
    limit = decide(book.spec, book.history, now=book.now).plan.start_within_seconds
    patience = clamp.longest_wait_seconds(situation(book.spec, book.history, now=book.now))

    def behind(seconds):
        free_at = book.now + timedelta(seconds=patience + seconds)
        queues = Queues(spot_free_at=free_at, slots_ratio=2.0)
        return decide(book.spec, book.history, now=book.now, queues=queues)

    assert behind(-1).plan.start_within_seconds == limit
    crowded = behind((patience - 300) / 2)
    assert crowded.numbers["crowd_seconds"] == pytest.approx(patience - 300)
    assert crowded.plan.capacity is Capacity.SPOT
    assert crowded.plan.start_within_seconds == pytest.approx(300)
    assert behind(patience).plan.capacity is Capacity.ON_DEMAND


def test_while_no_step_is_measured_other_runs_do_not_shorten_the_probes():
    spec = {"policy": {"changeover_seconds": 20, "detection_seconds": 10}}
    book = Logbook(make_spec(deadline_in=4000, **spec))
    queues = Queues(spot_free_at=book.now + timedelta(days=1), slots_ratio=2.0)
    made = decide(book.spec, book.history, now=book.now, queues=queues)
    assert made.plan == decide(book.spec, book.history, now=book.now).plan
    assert made.plan.capacity is Capacity.SPOT


def test_runs_that_will_leave_spot_wait_behind_those_that_wait_for_on_demand_already():
    book = Logbook(make_spec(deadline_in=4000, **SPEC))
    patience = clamp.longest_wait_seconds(situation(book.spec, book.history, now=book.now))
    free_at = book.now + timedelta(seconds=patience + 200)

    def needed(on_demand_seconds):
        queues = Queues(on_demand_seconds=on_demand_seconds, spot_free_at=free_at, slots_ratio=2.0)
        return decide(book.spec, book.history, now=book.now, queues=queues).numbers["needed_for_spot_seconds"]

    free = decide(book.spec, book.history, now=book.now).numbers["needed_for_spot_seconds"]
    assert [needed(seconds) - free for seconds in (0, 100, 400, 500)] == pytest.approx([400, 500, 800, 900])


def test_an_attempt_on_a_machine_that_is_kept_has_its_slot_and_is_behind_nobody():
    book = Logbook(make_spec(deadline_in=9000, **SPEC))
    queues = Queues(spot_free_at=book.now + timedelta(days=1), slots_ratio=2.0)
    assert decide(book.spec, book.history, now=book.now, queues=queues).plan.capacity is Capacity.ON_DEMAND
    plan = book.plan(keeps_machine=True)
    name = book.claim(plan)
    book.commit(name, 10)
    book.report(plan, StopReason.BOUND, attempt_id=name)
    made = decide(book.spec, book.history, now=book.now, queues=queues)
    assert (made.plan.capacity, made.numbers.get("crowd_seconds")) == (Capacity.SPOT, None)


@pytest.mark.parametrize(
    ("on_demand_seconds", "spot_seconds", "capacity"),
    [(3000, 60, Capacity.SPOT), (3000, 5000, Capacity.ON_DEMAND), (500, 60, Capacity.ON_DEMAND)],
    ids=["only spot is in time", "none is in time", "on-demand is in time"],
)
def test_on_demand_that_comes_too_late_is_not_waited_for_where_spot_has_a_slot_sooner(
    on_demand_seconds, spot_seconds, capacity
):
    """100 steps of 10 s in 1,600 s."""
    book = Logbook(make_spec(deadline_in=1600, **SPEC))
    free_at = book.now + timedelta(seconds=spot_seconds)
    queues = Queues(on_demand_seconds=on_demand_seconds, spot_free_at=free_at)
    made = decide(book.spec, book.history, now=book.now, queues=queues)
    assert made.plan.capacity is capacity
    if capacity is Capacity.SPOT:
        assert made.reason == ("spot: behind other runs (50 min), on-demand would miss the deadline; spot is in time")
        assert made.plan.start_within_seconds >= book.spec.liveness.start_seconds


def test_only_spot_in_time_is_no_reason_for_spot_where_attempts_die_nothing_is_measured_or_pools_differ():
    queues = Queues(on_demand_seconds=3000)

    def decided(book):
        return decide(book.spec, book.history, now=book.now, queues=queues).plan.capacity

    book = Logbook(make_spec(deadline_in=1600, **SPEC))
    assert decided(book) is Capacity.SPOT
    for _ in range(book.spec.policy.max_lost_in_place):
        book.attempt(StopReason.LOST)
    assert decided(book) is Capacity.ON_DEMAND
    pools = {"spot": [{"deployment": "segment/a"}, {"deployment": "segment/b"}]}
    assert decided(Logbook(make_spec(deadline_in=1600, pools=pools, **SPEC))) is Capacity.ON_DEMAND
    unmeasured = Logbook(make_spec(deadline_in=1600, policy={"changeover_seconds": 20}))
    assert decided(unmeasured) is Capacity.ON_DEMAND


def test_spot_without_capacity_is_given_up_when_it_is_not_in_time_any_more():
    book = Logbook(make_spec(deadline_in=1050, **SPEC))
    queues, chosen = Queues(on_demand_seconds=60), []
    for _ in range(2):
        made = decide(book.spec, book.history, now=book.now, queues=queues)
        chosen.append(made.plan.capacity)
        book.not_started()
        book.seconds += 900
    assert chosen == [Capacity.SPOT, Capacity.ON_DEMAND]


def test_an_attempt_on_spot_is_not_recalled_to_wait_for_on_demand_beyond_the_deadline():
    book = Logbook(make_spec(deadline_in=1600, **SPEC))
    tight, behind = (
        situation(book.spec, book.history, now=book.now, on_demand_queue_seconds=wait) for wait in (570, 3000)
    )
    assert clamp.must_recall(tight)
    assert not clamp.must_recall(behind)


def test_a_wait_in_a_queue_is_no_changeover_beyond_the_time_of_the_plan():
    book = Logbook(make_spec(deadline_in=90000, **SPEC))
    plan = book.plan(start_within_seconds=900.0)
    book.seconds = 3 * 3600
    name = book.claim(plan)
    book.commit(name, 10)
    book.report(plan, StopReason.NOTICE, attempt_id=name, train_steps=10, train_seconds=100.0, startup_seconds=5.0)
    assert changeover_seconds(book.spec, book.history) == 905


def test_the_wait_of_the_newest_decision_holds_until_a_newer_one_is_known():
    book = Logbook(make_spec(deadline_in=9000, **SPEC))
    made = decide(book.spec, book.history, now=book.now, queues=Queues(on_demand_seconds=300))
    book.attempt(StopReason.NOTICE, commit=10)
    assert situation(book.spec, book.history, now=book.now).on_demand_queue_seconds == 0
    from segue.runlog.entries import DecisionEntry

    book.write(DecisionEntry, plan=made.plan, action="run", reason=made.reason, numbers=made.numbers)
    assert situation(book.spec, book.history, now=book.now).on_demand_queue_seconds == 300


def test_a_wait_that_ended_without_a_slot_is_no_preemption():
    book = Logbook(make_spec(policy={"max_preemptions": 2}))
    for _ in range(5):
        book.not_started()
    assert preemptions(book.history) == 0
    assert book.ask().plan.capacity is Capacity.SPOT
