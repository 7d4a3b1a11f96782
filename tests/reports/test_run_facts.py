"""The line about the resume rehearsal on the page of a run and in its status."""

from __future__ import annotations

import pytest

from segue.records import Finding, StopReason, Verdict, VerdictKind
from segue.reports.run_facts import rehearsal_text
from segue.runlog.entries import DrillEntry
from tests.support.histories import Logbook, make_spec

LOST = Finding(component="loss", channel="loss", step=11, sentence="the loss differs", fix="register it")


def rehearsed(verdict: Verdict) -> Logbook:
    book = Logbook(make_spec())
    ref = book.commit(book.claim(book.plan()), 10)
    book.write(DrillEntry, checkpoint=ref, verdict=verdict, seconds=3.2)
    return book


def text(book: Logbook) -> str | None:
    return rehearsal_text(book.spec, book.history)


def test_before_its_verdict_it_says_what_it_waits_for():
    book = Logbook(make_spec())
    assert text(book) is None, "nothing is planned yet"
    book.claim(book.decide().plan)
    assert text(book) == "begins after the first sealed checkpoint"


def test_a_run_that_does_not_rehearse_has_no_line():
    book = Logbook(make_spec(continuity={"rehearsal": "off"}))
    book.claim(book.decide().plan)
    assert text(book) is None


def test_the_verdict_has_its_step_its_time_and_the_fix():
    assert text(rehearsed(Verdict(kind=VerdictKind.EXACT, components_compared=5, rows_compared=8))) == (
        "exact: 5 components and 8 steps compared (from step 10, 3 s)"
    )
    broken = rehearsed(Verdict(kind=VerdictKind.BROKEN, findings=(LOST,)))
    assert text(broken) == "broken: the loss differs. Fix: register it (from step 10, 3 s)"


def test_noise_is_said_once_with_the_fix():
    said = text(rehearsed(Verdict(kind=VerdictKind.EQUIVALENT, rows_compared=8, noise={"loss": 2e-7})))
    assert "replays from one state may differ by up to loss 2.0e-07. Fix: set deterministic = true" in said


@pytest.mark.parametrize(("rehearsal", "action"), [("stop", "broken"), ("warn", "finished")])
def test_a_broken_rehearsal_is_asked_before_a_run_counts_as_finished(rehearsal, action):
    book = Logbook(make_spec(steps=100, continuity={"rehearsal": rehearsal}))
    plan = book.decide().plan
    name = book.claim(plan)
    ref = book.commit(name, 100)
    book.write(DrillEntry, checkpoint=ref, verdict=Verdict(kind=VerdictKind.BROKEN, findings=(LOST,)), seconds=1.0)
    assert book.history.is_finished(book.spec) is (action == "finished")
    book.report(plan, StopReason.FINISHED, attempt_id=name, to_step=100)
    assert book.ask().action == action
