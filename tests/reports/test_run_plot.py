"""The run plot and the decision rows: the latest safe start, reasons and numbers, a plot at every stage of a run."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.clock import SystemClock
from segue.controller.attempt_ends import declare_lost
from segue.controller.steps import decide_next, open_run
from segue.records import Capacity, StopReason
from segue.reports.cost_report import waits
from segue.reports.run_plot import draw, latest_safe_starts
from segue.reports.tables import decision_rows
from segue.runlog.history import read_history
from segue.spec import RunSpec
from tests.support.histories import START, Logbook, make_spec

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_latest_safe_start_of_each_decision_leaves_time_for_the_work_and_a_slow_start():
    spec = make_spec(deadline_in=10_000, policy={"step_seconds": 20, "margin_share": 0.0, "changeover_seconds": 100})
    book = Logbook(spec)
    plan = book.decide().plan
    name = book.claim(plan)
    book.seconds = 3000
    book.commit(name, 40)
    book.report(plan, StopReason.LOST, attempt_id=name, train_steps=40, train_seconds=800)
    book.decide()
    moments = latest_safe_starts(list(book.history.decisions))
    assert moments == [
        (START + timedelta(seconds=10_000 - 2000 - 150), 0),
        (START + timedelta(seconds=10_000 - 1200 - 150), 40),
    ]


def test_without_a_deadline_there_is_no_latest_safe_start():
    book = Logbook(make_spec())
    book.decide()
    assert latest_safe_starts(list(book.history.decisions)) == []


def test_a_wait_lasts_from_the_decision_to_the_claim_or_to_the_next_decision():
    book = Logbook(make_spec())
    plan = book.plan()
    book.seconds = 900
    book.report(plan, StopReason.LOST, attempt_id=None, got_capacity=False)
    plan = book.plan(Capacity.ON_DEMAND)
    book.seconds = 960
    book.claim(plan)
    spans = [((begin - START).total_seconds(), (end - START).total_seconds()) for begin, end in waits(book.history)]
    assert spans == [(0, 900), (900, 960)]


def test_every_decision_is_shown_with_its_reason_and_numbers():
    book = Logbook(make_spec(deadline_in=10_000, policy={"step_seconds": 20}))
    made = book.decide()
    (row,) = decision_rows(book.history)
    assert (row["time"], row["action"], row["capacity"]) == ("2026-01-01T00:00:00+00:00", "run", "spot")
    assert (row["deployment"], row["reason"], row["numbers"]) == ("segment/spot", made.reason, made.numbers)


@pytest.mark.matrix
@pytest.mark.parametrize("waits_without_capacity", [0, 1, 3])
def test_a_run_can_be_drawn_before_its_first_step(waits_without_capacity, tmp_path):
    fields = {"run_id": "nightly", "recipe": "a.b:c", "steps": 9, "store": {"url": str(tmp_path / "store")}}
    clock = SystemClock()
    spec = RunSpec.parse(fields | {"deadline": clock.now() + timedelta(hours=1), "policy": {"step_seconds": 1}})
    log = open_run(spec, clock=clock)
    for _ in range(waits_without_capacity):
        declare_lost(log, decide_next(log, spec, clock=clock).plan, why="no capacity", got_capacity=False)
    assert len(read_history(log).decisions) == waits_without_capacity
    assert draw(log).startswith(PNG)
