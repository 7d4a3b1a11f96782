"""The state of a run in a few words, with its pool by name if the run has several."""

from __future__ import annotations

import pytest

from segue.records import Capacity
from segue.reports.summary import pool_name, state_of
from segue.reports.tables import segment_rows
from tests.support.histories import Logbook, make_spec


def log(*deployments: str) -> Logbook:
    spot = [{"deployment": name, "price": 1.0} for name in deployments]
    return Logbook(make_spec(pools={"spot": spot}))


def test_the_pool_that_gave_the_machine_is_named_and_before_that_only_the_capacity():
    book = log("segment/us-a", "segment/us-b")
    plan = book.plan()
    assert state_of(book.history) == "segment 0 attempt 1 on spot"
    name = book.claim(plan, deployment="segment/us-b")
    assert state_of(book.history) == "segment 0 attempt 1 on us-b (spot)"
    book.report(plan, "lost", attempt_id=name, seconds=60.0)
    assert segment_rows(book.history)[0]["pool"] == "us-b (spot)"


@pytest.mark.parametrize(
    ("deployment", "shown"),
    [("segment/spot", "spot"), ("segment/spot-b", "spot-b"), ("segment/gpu", "gpu (spot)")],
)
def test_the_capacity_is_added_where_the_name_does_not_show_it(deployment, shown):
    book = log(deployment)
    assert pool_name(book.plan(), Capacity.SPOT) == shown
