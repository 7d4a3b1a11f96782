"""After a broken resume: try again, then one older checkpoint, then stop and name the component. The same for a broken
rehearsal, and for a run that is started again after it.
"""

from __future__ import annotations

import pytest

from segue.policy.broken_resumes import SET_ASIDE, to_set_aside
from segue.policy.decide import decide
from segue.records import Finding, StopReason, Verdict, VerdictKind
from segue.runlog.entries import DrillEntry, OpenEntry
from tests.support.histories import Logbook, make_spec

EXACT, BROKEN, UNVERIFIED = VerdictKind.EXACT, VerdictKind.BROKEN, VerdictKind.UNVERIFIED
NOTICE = StopReason.NOTICE
FINDING = Finding(component="unregistered state", channel="loss", sentence="the loss differs.", fix="register it")


def book_with(*steps: int) -> Logbook:
    """A run whose attempts committed at these steps, each after a notice."""
    book = Logbook(make_spec())
    for step in steps:
        book.attempt(NOTICE, commit=step)
    return book


def test_a_first_broken_resume_is_tried_again_from_the_same_checkpoint():
    book = book_with(10, 20)
    before = book.resume(BROKEN)
    made = book.ask()
    assert (made.action, made.plan.parent, made.plan.at_most) == ("run", before.parent, None)
    assert (made.plan.segment, made.plan.attempt) == (before.segment, before.attempt + 1)
    assert made.reason.startswith("second resume from step 20, because the first was broken: optimizer state differs.")


def test_after_a_second_one_an_older_checkpoint_is_taken_and_no_newer():
    book = book_with(10, 20)
    book.resume(BROKEN)
    book.resume(BROKEN)
    made = book.ask()
    assert (made.action, made.plan.parent.step) == ("run", 10)
    assert made.plan.at_most == made.plan.parent
    assert "resume from step 10 instead of step 20, from which 2 resumes were broken" in made.reason


@pytest.mark.parametrize(("steps", "broken"), [((10, 20), 3), ((20,), 2)])
def test_when_the_older_one_does_not_help_or_there_is_none_the_run_stops_and_names_the_component(steps, broken):
    book = book_with(*steps)
    for _ in range(broken):
        assert book.ask().action == "run"
        book.resume(BROKEN)
    made = book.ask()
    assert (made.action, made.reason) == ("broken", "optimizer state differs.")


def test_a_resume_with_a_changed_setup_is_not_tried_again():
    book = book_with(10, 20)
    book.resume(BROKEN, channel="setup")
    assert book.ask().action == "broken"


def test_broken_resumes_are_not_failures_of_the_recipe():
    book = Logbook(make_spec(policy={"max_failures": 1}))
    book.attempt(NOTICE, commit=10)
    book.resume(BROKEN)
    assert book.ask().action == "run"
    book.attempt(StopReason.FAILED)
    assert book.ask().action == "failed"


@pytest.mark.parametrize(("kind", "rows", "resets"), [(EXACT, 8, True), (UNVERIFIED, 8, True), (UNVERIFIED, 0, False)])
def test_a_resume_that_compared_nothing_says_nothing_about_the_broken_ones_before(kind, rows, resets):
    book = book_with(10, 20)
    book.resume(BROKEN)
    book.resume(kind, rows=rows)
    assert bool(book.history.broken_resumes) is not resets


def test_a_checkpoint_is_set_aside_once_an_older_one_was_resumed_well():
    book = book_with(10, 20)
    book.resume(BROKEN)
    book.resume(BROKEN)
    assert to_set_aside(book.history) is None
    book.resume(EXACT)
    faulty = to_set_aside(book.history)
    assert faulty.ref.step == 20
    book.quarantine(faulty.ref)
    assert to_set_aside(book.history) is None
    made = book.ask()
    assert (made.action, made.plan.parent.step, made.plan.at_most) == ("run", 10, None)


@pytest.mark.parametrize("kinds", [(BROKEN, EXACT), (BROKEN, BROKEN, BROKEN), (BROKEN, BROKEN, UNVERIFIED)])
def test_nothing_is_set_aside_without_proof(kinds):
    book = book_with(10, 20)
    for kind in kinds:
        book.resume(kind)
    assert to_set_aside(book.history) is None


def test_a_checkpoint_that_was_resumed_well_in_the_end_is_kept():
    book = book_with(10, 20)
    for kind in (BROKEN, BROKEN, EXACT):
        book.resume(kind)
    good = book.resume(EXACT)
    assert good.parent.step == 20  # It was not set aside, and the resume was good this time.
    assert to_set_aside(book.history) is None


def test_a_commit_overcomes_the_broken_resumes_before_it():
    book = book_with(10, 20)
    book.resume(BROKEN)
    book.resume(UNVERIFIED, rows=0, commit=30)
    made = book.ask()
    assert (made.plan.parent.step, made.plan.at_most) == (30, None)


def test_a_run_whose_checkpoints_are_set_aside_again_and_again_ends():
    book = book_with(10)
    for step in (20, 30, 40):
        book.attempt(NOTICE, commit=step)
        for kind in (BROKEN, BROKEN, EXACT):
            book.resume(kind)
        faulty = to_set_aside(book.history)
        assert faulty.ref.step == step
        book.quarantine(faulty.ref, reason=SET_ASIDE)
    book.attempt(NOTICE, commit=50)
    book.resume(BROKEN)
    assert book.ask().action == "broken"


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
