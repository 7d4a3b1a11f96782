"""What follows from steps with bad numbers: rollback, skip, or the end of the run."""

from __future__ import annotations

import math

import pytest

from segue.records import Anomaly, Capacity, Skip, StopReason
from tests.support.histories import Logbook, make_spec

FAILED, LOST = StopReason.FAILED, StopReason.LOST
HERE, THERE, ELSEWHERE = (Skip(samples_seen=at * 10, sample_count=10) for at in (4, 7, 9))


def log(*, deadline_in: float | None = None, **anomalies: object) -> Logbook:
    policy = {"step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15, "margin_share": 0}
    return Logbook(make_spec(deadline_in=deadline_in, policy=policy, anomalies=anomalies))


def anomaly(batch: Skip = HERE, **fields: object) -> Anomaly:
    common = {"step": 5, "kind": "non_finite", "channel": "loss", "value": math.nan, "sample_ids": (3, 17, 4)}
    return Anomaly(batch=batch, **(common | fields))


def went_bad(book: Logbook, batch: Skip = HERE, *, capacity: Capacity = Capacity.SPOT, **fields: object) -> None:
    book.attempt(FAILED, capacity, anomaly=anomaly(batch, **fields))


def test_the_first_time_the_batch_is_repeated_and_nothing_is_skipped():
    book = log(non_finite="skip")
    went_bad(book)
    made = book.ask()
    assert (made.action, made.plan.skips) == ("run", ())
    assert made.reason.startswith("rollback 1 of at most 4 to step 0: loss was nan at step 5, samples 40 to 49")


@pytest.mark.parametrize(("choice", "action"), [("rollback", "failed"), ("skip", "run")])
def test_the_second_time_the_batch_is_skipped_where_that_is_allowed_and_ends_the_run_elsewhere(choice, action):
    book = log(non_finite=choice)
    went_bad(book)
    went_bad(book)
    made = book.ask()
    assert made.action == action
    if made.plan:
        assert made.plan.skips == (HERE,)
        assert "; this batch is skipped from now on" in made.reason
    else:
        assert "step 5, samples 40 to 49 of the order; the same batch had bad numbers again" in made.reason
        assert "(3, 17, 4 and 6 more)" in made.reason


def test_each_kind_follows_its_own_choice():
    book = log(non_finite="skip", spikes="rollback")
    for _ in range(2):
        went_bad(book, kind="spike", value=9.0, limit=1.0)
    assert book.ask().action == "failed"
    assert 'anomalies.spikes = "skip"' in book.ask().reason


def test_two_batches_with_bad_numbers_once_each_are_both_repeated():
    book = log(non_finite="rollback")
    went_bad(book, HERE)
    went_bad(book, THERE)
    assert (book.ask().action, book.ask().plan.skips) == ("run", ())


def test_a_skipped_batch_stays_skipped_in_every_later_plan_whatever_the_spec_says_then():
    book = log(non_finite="skip")
    for batch in (THERE, THERE, HERE, HERE):
        went_bad(book, batch)
    assert book.decide().plan.skips == (HERE, THERE)
    book.report(book.history.open_plan, LOST, attempt_id=None)
    book.spec = log(non_finite="off").spec
    assert book.ask().plan.skips == (HERE, THERE)


def test_a_collapsed_loss_scale_skips_no_batch():
    book = log(non_finite="skip")
    for _ in range(2):
        went_bad(book, channel="loss_scale", value=1e-5, limit=1e-4)
    assert book.ask().action == "failed"
    assert "no single batch is skipped" in book.ask().reason


@pytest.mark.parametrize(
    ("budget", "times", "action"), [(0, 1, "failed"), (1, 1, "run"), (2, 2, "run"), (2, 3, "failed")]
)
def test_rollbacks_have_a_budget(budget, times, action):
    book = log(max_rollbacks=budget)
    for batch in (HERE, THERE, ELSEWHERE)[:times]:
        went_bad(book, batch)
    assert book.ask().action == action
    if action == "failed":
        assert book.ask().reason.startswith(f"the limit of {budget} rollbacks is reached; last: loss was nan")


@pytest.mark.parametrize(
    ("ids", "said"), [((3, 5), "Samples in all 2 bad batches: 3, 5."), ((8, 9), None), (tuple(range(3, 9)), None)]
)
def test_samples_that_all_bad_batches_share_are_named_where_they_are_few(ids, said):
    book = log(max_rollbacks=1)
    went_bad(book, HERE, sample_ids=(3, 4, 5, 6, 7))
    went_bad(book, THERE, sample_ids=ids)
    assert ("bad batches" in book.ask().reason) is (said is not None)
    assert said is None or said in book.ask().reason


def test_rollbacks_and_exceptions_have_separate_budgets():
    book = log(non_finite="skip")
    for batch in (HERE, HERE, THERE):
        went_bad(book, batch)
    book.attempt(FAILED)
    assert book.ask().action == "run"
    book.attempt(FAILED)
    assert book.ask().reason.startswith("the recipe raised in 2 attempts")


def test_a_run_that_ended_and_is_started_again_has_full_budgets_and_may_skip_at_once():
    book = log(non_finite="rollback")
    went_bad(book)
    went_bad(book)
    assert book.decide().action == "failed"
    assert (book.ask().action, book.ask().plan.skips) == ("run", ())
    book.spec = log(non_finite="skip").spec
    assert book.ask().plan.skips == (HERE,)


def test_anomalies_that_are_no_longer_looked_for_end_nothing():
    book = log(non_finite="rollback")
    went_bad(book)
    went_bad(book)
    book.spec = log(non_finite="off").spec
    assert book.ask().action == "run"


@pytest.mark.parametrize(("left", "capacity"), [(9000.0, Capacity.SPOT), (1100.0, Capacity.ON_DEMAND)])
def test_a_rollback_costs_time_and_is_subject_to_the_clamp(left, capacity):
    book = log(deadline_in=left)
    went_bad(book)
    assert book.ask().plan.capacity is capacity
