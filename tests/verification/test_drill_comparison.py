"""What a drill says of its resumes: the value that was lost before what differs because of it."""

from __future__ import annotations

import pytest

from segue.continuity.naming import CARRIED, UNREGISTERED
from segue.records import Finding, Verdict, VerdictKind
from segue.verification.drill_comparison import NOTHING_RECORDED, Resume, problems_of
from tests.verification.drills import EXACT

LOST = Finding(
    component=UNREGISTERED,
    channel=CARRIED,
    sentence="total (local variable in train, train.py, line 23): was 9.5, now 0.0",
    fix="write this",
)
OTHER = Finding(
    component=UNREGISTERED, channel="lr", sentence="total: was 9.5. In the replay, the rate differs", fix="x"
)


@pytest.mark.parametrize(("kind", "findings"), [(VerdictKind.UNVERIFIED, (LOST,)), (VerdictKind.BROKEN, (OTHER, LOST))])
def test_the_variable_that_a_loop_lost_is_the_problem_and_not_the_components_that_follow_it(kind, findings):
    resume = Resume(after="kill", step=30, verdict=Verdict(kind=kind, findings=findings, rows_compared=8))
    (problem,) = problems_of((Resume(after="kill", step=10, verdict=EXACT), resume), ("model", "optimizer"))
    assert problem.component == "total"
    assert problem.sentence.startswith("total (local variable in train, train.py, line 23)")
    assert "write this" in problem.fix
    assert not resume.is_sound


def test_no_replayed_step_is_no_excuse_for_a_value_that_was_lost():
    verdict = Verdict(kind=VerdictKind.UNVERIFIED, findings=(LOST,))
    assert not Resume(after="notice", step=30, verdict=verdict, excuse=NOTHING_RECORDED).is_sound
    assert Resume(
        after="notice", step=30, verdict=Verdict(kind=VerdictKind.UNVERIFIED), excuse=NOTHING_RECORDED
    ).is_sound
