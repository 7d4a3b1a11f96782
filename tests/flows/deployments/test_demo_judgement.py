"""What the demos require of a run, and what they say of it."""

from __future__ import annotations

import pytest

from examples.demo.main_job import _cost, _way_back
from examples.demo.retraining import is_shown
from segue.records import Capacity, StopReason
from segue.retraining.model_record import Training
from tests.support.histories import Logbook, make_spec


@pytest.mark.parametrize(
    ("preemptions", "verdicts", "holds"),
    [
        (1, {"exact": 1}, True),
        (2, {"exact": 2}, True),
        (3, {"exact": 2}, True),
        (0, {}, False),
        (1, {}, False),
        (0, {"exact": 1}, False),
        (1, {"unverified": 1}, False),
        (2, {"exact": 1, "broken": 1}, False),
    ],
)
def test_a_run_has_to_be_preempted_at_least_once_and_every_resume_to_be_exact(preemptions, verdicts, holds):
    training = Training(segments=2, preemptions=preemptions, verdicts=verdicts, cost=1.0)
    assert is_shown(training) is holds


def test_the_demo_names_a_return_to_spot_only_where_there_was_one_and_a_cost_with_its_currency():
    book = Logbook(make_spec())
    book.attempt(StopReason.BOUND, Capacity.ON_DEMAND)
    assert _way_back(book.history) == ()
    assert " USD" in _cost(book.history, book.spec)
