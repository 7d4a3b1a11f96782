"""The page of a run: what a person on call reads first, and that nothing on it is cut off."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.records import Capacity, Heartbeat, StopReason, Verdict, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.page import Picture, RunView, decision_lines, facts, finding_lines, headline, page
from segue.reports.summary import live_of
from segue.runlog.entries import VerdictEntry
from tests.support.histories import START, Logbook, make_spec

LOST, FAILED = StopReason.LOST, StopReason.FAILED
WIDEST_TABLE_CHARACTERS = 110
"""What fits into the page of an artifact at 1440 pixels."""


def logbook(*, deadline_in: float | None = 86400, **fields: object) -> Logbook:
    common = {"policy": {"step_seconds": 60}, "pools": {"currency": "EUR"}} | fields
    return Logbook(make_spec(deadline_in=deadline_in, **common))


def view_of(book: Logbook, *, beat: Heartbeat | None = None, **fields: object) -> RunView:
    cost = cost_report(book.spec, book.history, live=live_of(beat, book.history))
    return RunView(book.spec, book.history, cost, book.now, beat=beat, **fields)


def beat_of(name: str, *, step: int, at: float, **fields: object) -> Heartbeat:
    common = {"attempt_id": name, "counter": 9, "phase": "training", "trainer_pid": 1, "step_seconds": 60.0}
    return Heartbeat(step=step, beat_at=START + timedelta(seconds=at), **common | fields)


def test_while_a_segment_trains_the_headline_shows_punctuality_step_end_and_pool():
    book = logbook()
    name = book.claim(book.decide().plan)
    book.seconds = 3600
    view = view_of(book, beat=beat_of(name, step=50, at=3598))
    assert headline(view) == (
        "**r is on time by about 22.1 h**; step 50 of 100 (50%); expected to finish at about 2026-01-01 01:52 UTC; "
        "training on spot (segment/spot)."
    )
    assert facts(view) == {
        "deadline": "2026-01-02 00:00 UTC",
        "speed": "0.0167 steps/s (60 s a step)",
        "paid": "0.9994 EUR; saved 2.00 EUR (67%) against on-demand alone",
        "last heartbeat": "2 s ago, segment 0 attempt 1 on h",
        "last resume": "none judged yet",
        "rehearsal": "begins after the first sealed checkpoint",
        "last decision": book.history.decisions[-1].reason,
        "as of": "2026-01-01 01:00:00 UTC",
    }
    assert "| 0 | spot | 0-50 | (training) | - | - | 3598.0 |" in page(view)


def test_troubles_come_before_all_other_facts():
    book = logbook()
    name = book.claim(book.decide().plan)
    book.seconds = 100
    beat = beat_of(name, step=1, at=10, trouble="no space left on device")
    shown = facts(view_of(book, beat=beat, store_trouble="the parent cannot read the store since 00:01:00"))
    assert list(shown)[:2] == ["STORE TROUBLE", "SAVES FAIL"]
    assert shown["SAVES FAIL"] == "no space left on device"
    assert ", LATE: one is due every 2 s" in shown["last heartbeat"]


def test_a_run_without_a_machine_shows_what_it_waits_for():
    book = logbook()
    book.decide()
    view = view_of(book, waiting="waiting for spot capacity (segment/spot): the pool spot is paused")
    assert headline(view).endswith("; no machine yet on spot (segment/spot).")
    assert next(iter(facts(view))) == "waits for"
    assert "last heartbeat" not in facts(view)


def test_the_last_page_of_a_run_shows_how_it_ended():
    book = logbook(deadline_in=600)
    plan = book.decide().plan
    name = book.claim(plan)
    book.commit(name, 100)
    book.seconds = 700
    book.report(plan, StopReason.FINISHED, attempt_id=name, to_step=100)
    assert book.decide().action == "finished"
    assert headline(view_of(book)) == (
        "**r was late by 100 s**; step 100 of 100 (100%); finished at 2026-01-01 00:11 UTC."
    )
    assert "as of" not in facts(view_of(book))


def test_a_run_that_failed_does_not_say_that_it_is_on_time():
    book = logbook(policy={"max_failures": 1, "step_seconds": 60})
    plan = book.plan()
    book.report(plan, FAILED, attempt_id=book.claim(plan))
    assert book.decide().action == "failed"
    assert headline(view_of(book)) == "**r ended before its goal**; step 0 of 100 (0%); failed."


def test_a_run_without_decisions_has_no_tables():
    view = view_of(logbook(deadline_in=None, policy={}))
    assert headline(view) == "**r has no deadline**; step 0 of 100 (0%); between two segments."
    assert "|" not in page(view)
    assert facts(view)["paid"] == "nothing yet"


def test_words_come_first_and_the_picture_last():
    book = logbook()
    plan = book.decide().plan
    name = book.claim(plan)
    kept = book.commit(name, 50)
    done = {"seconds": 3600.25, "train_steps": 50, "train_seconds": 3000, "to_step": 50, "checkpoint": kept}
    book.report(plan, LOST, attempt_id=name, **done)
    text = page(view_of(book), picture=Picture("data:image/png;base64,AAAA", book.now))
    places = [
        text.index(mark)
        for mark in ("**r is ", "* paid", "### Segments", "### Preemptions and lost", "### Checkpoints")
    ]
    places += [
        text.index(mark)
        for mark in ("### Cost", "### Decisions", "### Plot, drawn at 00:00:00 UTC\n\n![the run](data:")
    ]
    assert places == sorted(places)
    assert text.endswith("AAAA)")
    assert "| 0 | spot | 0-50 | lost | 0 | - | 3600.2 |" in text
    assert "| 50 | seg000-a1-e1 | step 0 | 0 B | - | kept |" in text


def test_no_row_of_a_table_is_wider_than_the_page_and_long_reasons_are_lists():
    book = logbook(policy={"max_lost_in_place": 99, "step_seconds": 60}, steps=1_000_000)
    for number in range(1, 70):
        book.attempt(LOST, commit=10_000 * number, lost_steps=123_456, to_step=10_000 * number, seconds=36_000)
    book.decide()
    rows = [line for line in page(view_of(book)).splitlines() if line.startswith("|")]
    assert max(map(len, rows)) <= WIDEST_TABLE_CHARACTERS
    assert len(page(view_of(book))) < 20_000


def test_an_attempt_without_capacity_has_no_steps():
    book = logbook()
    book.not_started()
    assert "| 0 | spot | - | no capacity | 0 | - | 0.0 |" in page(view_of(book))


def test_findings_name_segment_and_verdict_and_an_exact_resume_needs_no_words():
    book = logbook()
    book.attempt(LOST, commit=10)
    book.resume(VerdictKind.EXACT, commit=20)
    book.resume(VerdictKind.BROKEN)
    assert finding_lines(book.history) == ["segment 2 attempt 1, broken: optimizer state differs."]


def test_a_resume_without_a_step_to_compare_says_so_once():
    book = logbook()
    book.attempt(LOST, commit=10)
    plan = book.plan()
    verdict = Verdict(kind=VerdictKind.UNVERIFIED, components_compared=15)
    book.write(VerdictEntry, attempt_id=book.claim(plan), parent=plan.parent, verdict=verdict)
    (line,) = finding_lines(book.history)
    said = "15 components compared, but no step: the previous attempt recorded no step after the checkpoint, or"
    assert line.startswith(f"segment 1 attempt 1, unverified: {said}")


def test_the_text_of_an_exception_stays_in_one_line():
    book = logbook(policy={"max_failures": 1})
    book.attempt(LOST)
    plan = book.plan()
    failure = {"type": "ValueError", "message": "a | b\nand\n| c |", "traceback": ""}
    book.report(plan, FAILED, attempt_id=book.claim(plan), failure=failure)
    assert book.decide().action == "failed"
    (line,) = (line for line in page(view_of(book)).splitlines() if "**failed**" in line)
    assert "a | b and | c |" in line


def test_a_decision_shows_when_what_why_and_its_slack():
    book = logbook()
    made = book.decide()
    (line,) = decision_lines(book.history)
    assert line.startswith("01-01 00:00:00 **spot**: ")
    assert made.reason.removeprefix("spot, ") in line
    assert line.endswith("(work left 105 min)")


def test_only_the_newest_of_many_decisions_are_shown_and_the_rest_is_counted():
    book = logbook(policy={"max_lost_in_place": 999})
    for _ in range(60):
        book.attempt(LOST)
    text = page(view_of(book))
    assert text.count("**spot**: ") == 30
    assert "30 earlier ones: `segue status r --json`." in text


@pytest.mark.parametrize(
    ("price", "said"),
    [
        (1.0, "saved nothing against"),
        (0.5, "saved 0.8333 EUR (50%) against"),
        (1.2, "paid 0.3334 EUR (20%) more than on-demand alone"),
    ],
)
def test_savings_are_never_minus_zero_percent(price, said):
    book = logbook(pools={"currency": "EUR", "spot_price": price, "on_demand_price": 1.0})
    plan = book.plan(Capacity.SPOT)
    name = book.claim(plan)
    book.commit(name, 100)
    book.report(plan, LOST, attempt_id=name, seconds=6000.1, train_steps=100, train_seconds=6000.0, to_step=100)
    assert said in facts(view_of(book))["paid"]
