"""What the artifact of a run says, in tables."""

from __future__ import annotations

from segue.tasks.publish import summary

from segue.records import StopReason
from segue.reports.cost import cost_report
from tests.support.histories import Logbook, make_spec

LOST, FAILED = StopReason.LOST, StopReason.FAILED


def told_of(book: Logbook) -> str:
    return summary(book.spec, book.history, cost_report(book.spec, book.history))


def test_a_run_is_shown_with_its_segments_its_cost_and_every_decision():
    book = Logbook(make_spec(deadline_in=86400, policy={"step_seconds": 60}, pools={"currency": "EUR"}))
    made = book.decide()
    name = book.claim(made.plan)
    book.commit(name, 50)
    book.report(made.plan, LOST, attempt_id=name, seconds=3600.25, train_steps=50, train_seconds=3000)
    book.seconds = 4000
    again = book.decide()
    told = told_of(book)
    assert told.startswith(f"**r**: step 50 of 100; {again.reason}\n")
    assert "| 0 | spot | 0-0 | lost | 0 | - | 3600.2 |" in told
    assert "| paid | 1.00 EUR for 60 min of spot and 0 s of on-demand |" in told
    assert f"| 2026-01-01T00:00:00 | run | spot | {made.reason} | " in told
    assert f"| 2026-01-01T01:06:40 | run | spot | {again.reason} | " in told
    assert "work seconds 6300" in told


def test_what_a_recipe_raised_stays_in_its_cell():
    book = Logbook(make_spec(policy={"max_failures": 1}))
    plan = book.plan()
    failure = {"type": "ValueError", "message": "a | b\nand\n| c |", "traceback": ""}
    book.report(plan, LOST, attempt_id=book.claim(plan))
    plan = book.plan()
    book.report(plan, FAILED, attempt_id=book.claim(plan), failure=failure)
    assert book.decide().action == "failed"
    (row,) = (line for line in told_of(book).splitlines() if "| failed | - |" in line)
    assert "a \\| b and \\| c \\|" in row


def test_of_very_many_decisions_the_newest_are_shown():
    book = Logbook(make_spec(policy={"max_lost_in_place": 999}))
    for _ in range(60):
        book.attempt(LOST)
    told = told_of(book)
    assert told.count("| run | spot |") == 50
    assert "10 earlier decisions are in the log" in told


def test_a_run_that_has_decided_nothing_has_no_tables():
    assert told_of(Logbook(make_spec())).strip() == "**r**: step 0 of 100; nothing decided yet"
