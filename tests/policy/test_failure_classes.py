"""Budgets and back-offs of failed attempts: one row for each side of each boundary."""

from __future__ import annotations

import pytest

from segue.records import Capacity, CodeFailure, StopReason
from tests.support.histories import Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
POLICY = {"name": "greedy", "step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15, "margin_share": 0}
DISK = CodeFailure(type="OSError", message="Input/output error", traceback="...", is_transient=True)
FAILURES = {
    "out of memory": (StopReason.OUT_OF_MEMORY, {}),
    "hung": (StopReason.HUNG, {}),
    "transient": (StopReason.FAILED, {"failure": DISK}),
    "failed": (StopReason.FAILED, {}),
}


def log(deadline_in: float | None = None, **policy) -> Logbook:
    return Logbook(make_spec(deadline_in=deadline_in, policy=POLICY | policy))


def fail(book: Logbook, name: str, *, commit: int | None = None, to_step: int = 0, capacity=SPOT) -> None:
    reason, fields = FAILURES[name]
    book.attempt(reason, capacity, commit=commit, to_step=to_step, **fields)


@pytest.mark.parametrize(("name", "budget"), [("out of memory", 2), ("hung", 2), ("transient", 5), ("failed", 2)])
def test_each_class_has_a_budget_of_its_own(name, budget):
    book = log()
    for others in FAILURES.keys() - {name}:
        fail(book, others)
    for _ in range(budget - 1):
        fail(book, name)
        assert book.ask().action == "run"
    fail(book, name)
    assert book.ask().action == "failed"
    assert f"in {budget} attempts" in book.ask().reason


@pytest.mark.parametrize(("committed", "action"), [(40, "failed"), (50, "run")])
def test_a_failure_counts_until_a_later_step_than_it_reached_is_committed(committed, action):
    book = log()
    fail(book, "hung", commit=30, to_step=45)
    fail(book, "hung", commit=committed, to_step=committed + 5)
    assert book.ask().action == action


@pytest.mark.parametrize("name", FAILURES)
def test_no_class_ever_buys_on_demand(name):
    book = log(max_out_of_memory=9, max_hung=9, max_transient_failures=9, max_failures=9)
    for _ in range(8):
        fail(book, name)
        made = book.ask()
        assert (made.action, made.plan.capacity) == ("run", SPOT)
    assert made.reason.startswith("spot again: the recipe ")


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_on_on_demand_is_retried_there(name):
    book = log(100_000.0)
    fail(book, name, capacity=ON_DEMAND)
    assert book.ask().plan.capacity is ON_DEMAND


@pytest.mark.parametrize(
    ("name", "delays"),
    [
        ("out of memory", [10, 20, 40, 80, 160, 300, 300]),
        ("hung", [10, 20, 40, 80, 160, 300, 300]),
        ("transient", [5, 10, 20, 40, 80, 160, 300, 300]),
        ("failed", [0, 0, 0]),
    ],
)
def test_each_class_has_a_back_off_of_its_own(name, delays):
    book = log(max_out_of_memory=20, max_hung=20, max_transient_failures=20, max_failures=20)
    for delay in delays:
        fail(book, name)
        assert book.ask().plan.delay_seconds == delay


def test_the_wait_for_capacity_begins_after_the_back_off():
    book = log()
    before = book.ask().plan.start_within_seconds
    fail(book, "hung")
    assert book.ask().plan.start_within_seconds == before + 10


def test_a_near_deadline_shortens_the_back_off():
    # 1000 s of work from 1150 s before the deadline: 150 s of slack.
    book = log(1150.0, max_hung=9)
    for _ in range(4):
        fail(book, "hung")
    assert book.ask().plan.delay_seconds == pytest.approx(15.0)


def test_a_preemption_after_a_failure_starts_without_a_back_off():
    book = log()
    fail(book, "transient")
    book.attempt(StopReason.NOTICE, commit=10)
    assert book.ask().plan.delay_seconds == 0


def test_a_cancelled_segment_ends_the_run_and_the_next_start_goes_on():
    book = log(100_000.0)
    book.attempt(StopReason.CANCELLED, commit=10)
    made = book.decide()
    assert (made.action, made.plan) == ("cancelled", None)
    assert made.reason == "segment 0 was cancelled; start the run again to resume it"
    again = book.ask()
    assert (again.action, again.plan.capacity, again.plan.parent.step) == ("run", SPOT, 10)


def test_only_lost_capacity_is_a_preemption():
    preemptions = {reason for reason in StopReason if reason.is_preemption}
    assert preemptions == {StopReason.NOTICE, StopReason.LOST}


def test_an_attempt_that_changed_its_structure_is_not_made_again():
    book = log()
    said = "The structure changed during training: module act is new. Fix: build it from the start."
    failure = CodeFailure(type="StructureChangedError", message=said, traceback=said)
    book.attempt(StopReason.FAILED, SPOT, commit=10, to_step=19, failure=failure)
    made = book.ask()
    assert made.action == "failed"
    assert made.reason.startswith("the recipe changed the structure of its model or optimizer in 1 attempts")
    assert "module act is new" in made.reason
