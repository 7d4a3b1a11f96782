"""The artifact of a run: its first lines, and its tables."""

from __future__ import annotations

from segue.tasks.run_artifact import summary_lines, tables

from segue.records import StopReason
from segue.reports.cost import cost_report
from tests.support.histories import Logbook, make_spec

LOST, FAILED = StopReason.LOST, StopReason.FAILED


def lines_of(book: Logbook) -> list[str]:
    return summary_lines(book.spec, book.history, cost_report(book.spec, book.history), now=book.now)


def tables_of(book: Logbook) -> str:
    return tables(book.history, cost_report(book.spec, book.history))


def test_the_first_lines_show_step_deadline_pool_cost_verdict_and_reason():
    book = Logbook(make_spec(deadline_in=86400, policy={"step_seconds": 60}, pools={"currency": "EUR"}))
    made = book.decide()
    name = book.claim(made.plan)
    book.commit(name, 50)
    book.report(made.plan, LOST, attempt_id=name, seconds=3600, train_steps=50, train_seconds=3000)
    book.seconds = 4000
    again = book.decide()
    assert lines_of(book) == [
        "**r**: on time by about 22.0 h (deadline 2026-01-02 00:00 UTC); step 50 of 100",
        "",
        "* state: segment 1 attempt 1 on spot (pool segment/spot)",
        "* paid: 1.00 EUR for 60 min of spot and 0 s of on-demand; saved 60% of on-demand alone",
        "* last resume: none judged yet",
        f"* last decision: {again.reason}",
    ]


def test_the_tables_show_segments_cost_and_every_decision():
    book = Logbook(make_spec(deadline_in=86400, policy={"step_seconds": 60}, pools={"currency": "EUR"}))
    made = book.decide()
    name = book.claim(made.plan)
    book.commit(name, 50)
    book.report(made.plan, LOST, attempt_id=name, seconds=3600.25, train_steps=50, train_seconds=3000)
    book.seconds = 4000
    again = book.decide()
    text = tables_of(book)
    assert "| 0 | spot | 0-0 | lost | 0 | - | 3600.2 |" in text
    assert "| paid | 1.00 EUR for 60 min of spot and 0 s of on-demand |" in text
    assert f"| 2026-01-01T00:00:00 | run | spot | {made.reason} | " in text
    assert f"| 2026-01-01T01:06:40 | run | spot | {again.reason} | " in text
    assert "work seconds 6300" in text


def test_the_text_of_an_exception_stays_in_its_cell():
    book = Logbook(make_spec(policy={"max_failures": 1}))
    plan = book.plan()
    failure = {"type": "ValueError", "message": "a | b\nand\n| c |", "traceback": ""}
    book.report(plan, LOST, attempt_id=book.claim(plan))
    plan = book.plan()
    book.report(plan, FAILED, attempt_id=book.claim(plan), failure=failure)
    assert book.decide().action == "failed"
    (row,) = (line for line in tables_of(book).splitlines() if "| failed | - |" in line)
    assert "a \\| b and \\| c \\|" in row


def test_only_the_newest_of_many_decisions_are_shown():
    book = Logbook(make_spec(policy={"max_lost_in_place": 999}))
    for _ in range(60):
        book.attempt(LOST)
    text = tables_of(book)
    assert text.count("| run | spot |") == 50
    assert "10 earlier decisions are in the log" in text


def test_a_run_without_decisions_has_no_tables():
    book = Logbook(make_spec())
    assert tables_of(book).strip() == ""
    assert lines_of(book) == [
        "**r**: step 0 of 100; no deadline",
        "",
        "* state: between segments",
        "* paid: nothing yet",
        "* last resume: none judged yet",
        "* last decision: none yet",
    ]
