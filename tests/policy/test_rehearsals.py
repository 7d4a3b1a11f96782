"""What a broken rehearsal means for the run, and for the same run when it is started again."""

from __future__ import annotations

from segue.policy.decide import decide
from segue.records import Finding, StopReason, Verdict, VerdictKind
from segue.runlog.entries import DrillEntry, OpenEntry
from tests.support.histories import Logbook, make_spec

FINDING = Finding(component="unregistered state", channel="loss", sentence="the loss differs.", fix="register it")


def book_with_a_broken_rehearsal(*, at_step: int) -> Logbook:
    book = Logbook(make_spec())
    plan = book.plan()
    name = book.claim(plan)
    ref = book.commit(name, at_step)
    book.write(DrillEntry, checkpoint=ref, verdict=Verdict(kind=VerdictKind.BROKEN, findings=(FINDING,)), seconds=1.0)
    book.report(plan, StopReason.FAILED, attempt_id=name)
    assert book.decide().action == "broken"
    book.write(OpenEntry, spec=book.spec)
    return book


def test_a_run_that_is_started_again_rehearses_again():
    book = book_with_a_broken_rehearsal(at_step=60)
    assert book.ask().action == "run"


def test_a_run_whose_goal_was_committed_before_its_rehearsal_was_broken_is_never_finished():
    book = book_with_a_broken_rehearsal(at_step=100)
    again = book.ask()
    assert again.action == "broken"
    assert "begin a new run with the fixed recipe" in again.reason
    taken = book.spec.model_copy(update={"continuity": book.spec.continuity.model_copy(update={"rehearsal": "warn"})})
    assert decide(taken, book.history, now=book.now).action == "finished"
    longer = book.spec.model_copy(update={"steps": 500})
    assert decide(longer, book.history, now=book.now).action == "run", "steps are left, in which it rehearses again"
