"""How long a start may take, as starts on the same pool show it, and what follows when it takes longer."""

from __future__ import annotations

import pytest

from segue.policy.starts import Start, StartLimit, Step, known_seconds, limit_of, next_step, quantile
from segue.runlog.entries import StartEntry
from tests.support.histories import Logbook, make_spec

SPOT = "segment/spot"


@pytest.mark.parametrize(
    ("values", "share", "found"),
    [
        ((), 0.99, None),
        ((7.0,), 0.99, 7.0),
        ((3.0, 1.0, 2.0), 0.5, 2.0),
        ((3.0, 1.0, 2.0), 0.99, 3.0),
        (tuple(range(100)), 0.99, 98),
        (tuple(range(101)), 0.99, 99),
        ((5.0, 4.0), 0.0, 4.0),
    ],
)
def test_a_quantile_is_the_least_value_that_this_share_does_not_exceed(values, share, found):
    assert quantile(values, share) == found


@pytest.mark.parametrize(
    ("known", "seconds"),
    [
        ((), 120),  # Nothing is known.
        ((3.0, 5.0), 120),  # Twice the longest is less than the setting.
        ((59.0,), 120),
        ((61.0,), 122),
        ((3.0, 200.0), 400),
        ((5000.0,), 1800),  # Never longer than the time to the first step.
        ((*[3.0] * 100, 500.0), 120),  # One in a hundred shows nothing.
    ],
)
def test_a_start_is_slow_after_twice_the_time_of_the_known_ones_within_the_settings(known, seconds):
    assert limit_of(known, spec=make_spec(), changeover_seconds=60.0).seconds == seconds


@pytest.mark.parametrize(
    ("deadline_in", "known", "longest"),
    [(None, (), 1800), (5000, (), 600), (5000, (300.0,), 1800), (5000, (100.0,), 600)],
)
def test_a_start_is_given_up_after_the_time_to_the_first_step_and_sooner_with_a_deadline(deadline_in, known, longest):
    spec = make_spec(deadline_in=deadline_in, policy={"changeover_seconds": 120})
    assert limit_of(known, spec=spec, changeover_seconds=120.0).longest_seconds == longest


@pytest.mark.parametrize(
    ("known", "soon"), [((), 60), ((4.0,), 60), ((45.0,), 90), ((200.0,), 400)], ids=["none", "fast", "slow", "slower"]
)
def test_where_the_deadline_leaves_no_time_a_start_is_slow_once_it_is_unusual(known, soon):
    assert limit_of(known, spec=make_spec(), changeover_seconds=60.0).soon_seconds == soon


LIMIT = StartLimit(120.0, soon_seconds=30.0, longest_seconds=600.0, usual_seconds=10.0, known=4)


def start(number: int, seconds: float | None, *, waited: float = 0.0, may_be_doubled: bool = True) -> Start:
    return Start(number, seconds, waited_seconds=waited, may_be_doubled=may_be_doubled)


@pytest.mark.parametrize(
    ("starts", "asked", "left", "step"),
    [
        ([], 1, None, Step.WAIT),
        ([start(1, None, waited=9999)], 1, None, Step.WAIT),  # It waits for capacity.
        ([start(1, 120.0)], 1, None, Step.WAIT),
        ([start(1, 120.1)], 1, None, Step.ASK),
        ([start(1, 120.1, may_be_doubled=False)], 1, None, Step.WAIT),
        ([start(1, 120.1)], 2, None, Step.WAIT),  # Each one that was asked for doubles the time.
        ([start(2, 240.1)], 2, None, Step.ASK),
        ([start(3, 599.0)], 3, None, Step.WAIT),  # Three starts at most.
        # The deadline needs another start by then.
        ([start(1, 31.0)], 1, 90.0, Step.WAIT),
        ([start(1, 31.0)], 1, 88.0, Step.ASK),
        ([start(1, 29.0)], 1, -50.0, Step.WAIT),
        ([start(2, 31.0)], 2, -50.0, Step.WAIT),
        # Beside a slow one there is at most one other, which may need the slot of the slow one.
        ([start(1, 500.0), start(2, 200.0)], 2, None, Step.WAIT),
        ([start(1, 200.0), start(2, None, waited=120.0)], 2, None, Step.WAIT),
        ([start(1, 200.0), start(2, None, waited=121.0)], 2, None, Step.GIVE_UP),
        ([start(1, None), start(2, None, waited=999.0)], 2, None, Step.WAIT),
        # Past the longest time.
        ([start(1, 600.0)], 1, None, Step.ASK),
        ([start(1, 601.0)], 1, None, Step.END),
        ([start(1, 601.0), start(2, 5.0)], 2, None, Step.GIVE_UP),
        ([start(3, 601.0)], 3, None, Step.END),
        ([start(1, 601.0, may_be_doubled=False)], 1, None, Step.END),
    ],
)
def test_the_next_step_about_the_starts_of_an_attempt(starts, asked, left, step):
    assert next_step(starts, LIMIT, asked=asked, left_seconds=left) is step


@pytest.mark.parametrize(
    ("usual", "known", "words"),
    [
        (None, 0, "the start takes longer than 95 s, and no earlier start on this pool is known"),
        (4.0, 1, "the start takes longer than 95 s, and the only earlier start on this pool took at most 4 s"),
        (47.2, 8, "the start takes longer than 95 s, and 99% of the 8 earlier starts on this pool took at most 47 s"),
    ],
)
def test_a_slow_start_is_named_with_the_starts_before_it(usual, known, words):
    limit = StartLimit(95.0, soon_seconds=95.0, longest_seconds=600.0, usual_seconds=usual, known=known)
    assert limit.in_words(seconds=95.0) == words


def test_what_is_known_of_a_pool_are_its_own_starts_and_attempts_none_of_whose_starts_claimed():
    book = Logbook(make_spec())

    def known(attempt: int, number: int, outcome: str, seconds: float, deployment: str = SPOT) -> None:
        place = {"segment": 0, "attempt": attempt, "number": number, "deployment": deployment}
        book.write(StartEntry, **place, outcome=outcome, seconds=seconds)

    known(1, 1, "claimed", 5.0)
    known(1, 1, "claimed", 9.0, deployment="segment/other")
    # The second start took 6 s: that the first one never came shows nothing of the pool.
    known(2, 1, "slow", 120.0)
    known(2, 2, "claimed", 6.0)
    known(2, 1, "start_failed", 130.0)
    known(3, 1, "slow", 120.0)
    known(3, 2, "withdrawn", 0.0)
    known(3, 1, "claimed", 125.0)
    known(4, 1, "start_failed", 300.0)
    known(4, 2, "start_failed", 0.0)
    plan = book.plan().model_copy(update={"attempt": 5, "deployment": SPOT})
    known(5, 1, "start_failed", 300.0)  # What is still open.
    assert known_seconds(book.history, plan) == [5.0, 6.0, 125.0, 600.0]
