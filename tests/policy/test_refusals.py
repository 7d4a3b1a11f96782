"""Attempts that a pool could not start: a growing pause, for ever, and what is said of it."""

from __future__ import annotations

import pytest

from segue.records import Capacity, SegmentReport, StopReason
from segue.runlog.entries import DecisionEntry
from tests.support.histories import Logbook, make_spec

NOTE = "the pool spot could not start it: Unable to create Kubernetes job"
SHORTAGE = (
    "the pool spot could not start it: Failed to submit flow run to infrastructure: ClientException: An error occurred "
    "(ClientException) when calling the RunTask operation: Capacity is unavailable at this time."
)


def refused(book: Logbook, *, note: str = NOTE, capacity: Capacity = Capacity.SPOT, **changes: str) -> None:
    facts = {"got_capacity": False, "was_refused": True, "note": note}
    book.report(book.plan(capacity, **changes), StopReason.NO_CAPACITY, attempt_id=None, **facts)


def test_the_pause_doubles_up_to_five_minutes_and_ends_with_the_refusals():
    book = Logbook(make_spec())
    pauses = []
    for _ in range(8):
        refused(book)
        pauses.append(book.ask().plan.delay_seconds)
    assert pauses == [5, 10, 20, 40, 80, 160, 300, 300]
    assert "retry in 5 min" in book.ask().reason
    book.attempt(StopReason.NOTICE, commit=10)
    assert book.ask().plan.delay_seconds == 0
    assert NOTE not in book.ask().reason


def test_a_near_deadline_shortens_the_pause():
    book = Logbook(make_spec(deadline_in=4000, policy={"step_seconds": 30, "changeover_seconds": 10}))
    for _ in range(8):
        refused(book)
    slack = book.ask().numbers["slack_seconds"]
    assert 0 < book.ask().plan.delay_seconds == pytest.approx(slack * 0.1, rel=0.01)


@pytest.mark.matrix
@pytest.mark.parametrize(("count", "seconds"), [(1, 5), (10, 5), (20, 10), (200, 100), (2000, 300)])
def test_a_late_run_pauses_for_5_s_and_a_small_share_of_an_outage(count, seconds):
    book = Logbook(make_spec(deadline_in=100, policy={"step_seconds": 30, "changeover_seconds": 10}))
    plan = book.plan(Capacity.ON_DEMAND, deployment=book.spec.pools.on_demand)
    for number in range(count):
        facts = {"got_capacity": False, "was_refused": True, "note": NOTE}
        made = plan.model_copy(update={"attempt": number + 1})
        book.write(DecisionEntry, plan=made, action="run", reason="the test says so")
        book.report(made, StopReason.NO_CAPACITY, attempt_id=None, **facts)
    book.seconds = 200
    decided = book.ask()
    assert decided.numbers["slack_seconds"] < 0
    assert (decided.action, decided.plan.capacity) == ("run", Capacity.ON_DEMAND)
    assert decided.plan.delay_seconds == seconds


@pytest.mark.parametrize("where", [{}, {"slurm": {"spot": "preemptible", "on_demand": "batch"}}])
def test_a_pool_that_refused_is_asked_later_and_another_one_at_once(where):
    pools = {"spot": [{"deployment": "segment/a", "price": 1}, {"deployment": "segment/b", "price": 1}]}
    book = Logbook(make_spec(pools=pools, **where))
    for _ in range(5):
        refused(book, deployment="segment/a", pools=())
    plan = book.ask().plan
    assert (plan.deployment, plan.delay_seconds) == ("segment/b", 0)


def test_where_all_pools_refused_all_are_asked_later():
    pools = {"spot": [{"deployment": "segment/a", "price": 1}, {"deployment": "segment/b", "price": 1}]}
    book = Logbook(make_spec(pools=pools))
    for _ in range(5):
        refused(book)
    plan = book.ask().plan
    assert (len(plan.pools), plan.delay_seconds) == (2, 80)


@pytest.mark.matrix
@pytest.mark.parametrize("count", [1, 20, 500])
def test_refusals_alone_never_end_a_run_and_are_named_with_what_the_pool_said(count):
    book = Logbook(make_spec())
    for _ in range(count):
        refused(book)
    decision = book.ask()
    assert decision.action == "run"
    how_often = f"{count} attempts in a row, last: " if count > 1 else "the last attempt, "
    assert f"the pools could not start {how_often}{NOTE}. Fix: correct what the pool reports" in decision.reason


def test_a_warning_is_logged_whenever_the_refusals_have_doubled():
    book = Logbook(make_spec())
    warned = []
    for count in range(1, 20):
        refused(book)
        if book.ask().warning:
            warned.append(count)
            assert book.ask().warning in book.ask().reason
    assert warned == [1, 2, 4, 8, 16]


@pytest.mark.parametrize(
    "said",
    [
        "Capacity is unavailable at this time. Please try again later or in a different availability zone",
        "You've reached the limit on the number of vCPUs you can run concurrently",
        "Failed to run ECS task: RESOURCE:GPU",
    ],
)
def test_a_shortage_of_ecs_is_a_lack_of_capacity_and_nothing_to_correct(said):
    book = Logbook(make_spec())
    refused(book, note=f"the pool spot could not start it: {said}")
    decision = book.ask()
    assert f"no capacity for the last attempt, the pool spot could not start it: {said}" in decision.reason
    assert "Fix:" not in decision.reason
    assert not decision.warning
    assert decision.plan.delay_seconds == 5


@pytest.mark.matrix
def test_a_shortage_on_spot_that_lasts_falls_over_to_on_demand_at_once():
    policy = {"step_seconds": 30, "changeover_seconds": 10, "detection_seconds": 10, "margin_share": 0}
    book = Logbook(make_spec(deadline_in=3600, policy=policy))
    assert book.ask().plan.capacity is Capacity.SPOT
    while book.ask().plan.capacity is Capacity.SPOT:
        assert book.seconds < 3600, "it stays on spot for too long"
        book.seconds += book.ask().plan.delay_seconds + 5
        refused(book, note=SHORTAGE, deployment="segment/spot")
    plan = book.ask().plan
    assert (plan.capacity, plan.delay_seconds, plan.start_within_seconds) == (Capacity.ON_DEMAND, 0, None)
    assert book.seconds < 600


def test_a_refusal_is_no_preemption_and_buys_no_on_demand_by_itself():
    book = Logbook(make_spec(policy={"max_preemptions": 1, "max_lost_in_place": 2}))
    for _ in range(5):
        refused(book)
    assert book.ask().plan.capacity is Capacity.SPOT


def test_a_report_without_a_refusal_is_written_as_before():
    book = Logbook(make_spec())
    assert "was_refused" not in book.attempt(StopReason.LOST).model_dump(mode="json")
    refused(book)
    report = book.history.last_reports()[-1]
    assert SegmentReport.model_validate(report.model_dump(mode="json")).was_refused
