"""What a verification may claim: each outcome has its own conditions, and its own remedy."""

from __future__ import annotations

import pytest

from segue.records import Capacity, Finding, StopReason, Verdict, VerdictKind
from segue.verification.drill_comparison import ENDED_EARLY, NOTHING_RECORDED
from segue.verification.verifications import Outcome
from tests.support.histories import ENVIRONMENT
from tests.verification.drills import EXACT, KILL, NOTICE, STATE, UNVERIFIED, Pair, sound

BROKEN = Verdict(
    kind=VerdictKind.BROKEN,
    findings=(Finding(component="optimizer", channel="digest", sentence="optimizer was not restored: all differ"),),
)


@pytest.fixture
def pair() -> Pair:
    pair = Pair()
    pair.undisturbed.finish()
    return pair


def test_identical_states_after_each_kind_of_disturbance_pass(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=40, hit=KILL)
    pair.disturbed.attempt(StopReason.NOTICE, commit=70, verdict=EXACT, hit=NOTICE, is_sealed=False)
    pair.disturbed.finish(verdict=UNVERIFIED)
    found = pair.judge([KILL, NOTICE])
    assert (found.outcome, found.verdict, found.identical) == (Outcome.PASSED, VerdictKind.EXACT, True)
    assert (found.kills, found.notices, found.preemptions, found.is_conclusive) == (1, 1, 0, True)
    assert [(one.after, one.step, one.excuse) for one in found.resumes] == [
        ("kill", 40, None),
        ("notice", 70, NOTHING_RECORDED),
    ]
    assert found.reason.startswith("after 1 kill and 1 notice the final state is identical")
    assert found.reason.endswith("; 1 of 2 resumes were replayed")
    assert found.seconds == 4 * 60
    assert found.problems == ()


def test_a_final_state_that_differs_is_not_continuous_though_every_resume_is_exact(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=EXACT, state=STATE | {"rng.torch": "zz", "extra.ema": "new"})
    found = pair.judge()
    assert (found.outcome, found.differing) == (Outcome.NOT_CONTINUOUS, ("extra.ema", "rng.torch"))
    assert [problem.component for problem in found.problems] == ["extra.ema", "rng.torch"]
    assert all(problem.fix.endswith(".") for problem in found.problems)


def test_a_broken_resume_is_not_continuous_and_names_the_component_once(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.attempt(StopReason.FAILED, commit=50, verdict=BROKEN)
    pair.disturbed.end("broken", "optimizer was not restored")
    found = pair.judge()
    assert (found.outcome, found.verdict, found.identical) == (
        Outcome.NOT_CONTINUOUS,
        VerdictKind.BROKEN,
        False,
    )
    assert "the resume from step 50 after a kill is broken: optimizer was not restored" in found.reason
    (problem,) = found.problems
    assert (problem.component, "Recipe.extra" in problem.fix) == ("optimizer", True)


def test_states_that_differ_on_machines_that_differ_prove_nothing(pair):
    other = ENVIRONMENT.model_copy(update={"threads": 2})
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    equivalent = EXACT.model_copy(update={"kind": VerdictKind.EQUIVALENT, "environment_changes": ("threads",)})
    pair.disturbed.finish(verdict=equivalent, state=STATE | {"model": "zz"}, environment=other)
    found = pair.judge()
    assert (found.outcome, found.verdict) == (Outcome.NOT_PROVEN, VerdictKind.EQUIVALENT)
    assert "machines that differ in threads" in found.reason
    assert "one spot pool of equal machines" in found.problems[0].fix


def test_equal_states_with_an_equivalent_resume_pass_and_say_so(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    equivalent = EXACT.model_copy(update={"kind": VerdictKind.EQUIVALENT, "environment_changes": ("processor",)})
    pair.disturbed.finish(verdict=equivalent)
    found = pair.judge()
    assert (found.outcome, found.verdict) == (Outcome.PASSED, VerdictKind.EQUIVALENT)
    assert found.reason.endswith("only within tolerances, because the machines differ in processor")


@pytest.mark.parametrize("kinds", [[KILL, NOTICE], [NOTICE]])
def test_without_a_hit_of_each_kind_nothing_is_proven(pair, kinds):
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=EXACT)
    found = pair.judge(kinds)
    assert (found.outcome, found.reason) == (Outcome.NOT_PROVEN, "no notice hit an attempt on spot")
    assert "set a higher value for `steps`" in found.problems[0].fix


def test_a_preemption_by_the_pool_is_no_disturbance_of_the_verification(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=50)
    pair.disturbed.finish(verdict=EXACT)
    found = pair.judge()
    assert (found.outcome, found.kills, found.preemptions) == (Outcome.NOT_PROVEN, 0, 1)
    assert found.resumes[0].after == "lost"


def test_an_attempt_that_was_ended_before_its_verdict_is_covered_by_the_final_state(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=40, hit=KILL)
    pair.disturbed.attempt(StopReason.LOST, commit=40, verdict=UNVERIFIED, hit=KILL)
    pair.disturbed.finish(verdict=EXACT)
    found = pair.judge()
    assert (found.outcome, found.kills) == (Outcome.PASSED, 2)
    assert [one.excuse for one in found.resumes] == [ENDED_EARLY, None]


def test_an_unverified_resume_without_an_excuse_proves_nothing(pair):
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=UNVERIFIED)
    found = pair.judge()
    assert (found.outcome, found.verdict) == (Outcome.NOT_PROVEN, VerdictKind.UNVERIFIED)
    assert "the resume from step 50 is unverified" in found.reason


def test_a_run_that_does_not_finish_proves_nothing_and_can_go_on():
    pair = Pair()
    found = pair.judge(said="segment/typo: there is no deployment.")
    assert (found.outcome, found.is_conclusive) == (Outcome.NOT_PROVEN, False)
    assert found.reason == "the undisturbed run did not finish: segment/typo: there is no deployment"
    pair.undisturbed.attempt(StopReason.FAILED, commit=10)
    pair.undisturbed.end("failed", "ValueError: no such column")
    found = pair.judge()
    assert found.reason == "the undisturbed run did not finish: failed: ValueError: no such column"
    pair.undisturbed.finish()
    pair.disturbed.attempt(StopReason.LOST, commit=40, hit=KILL)
    pair.disturbed.attempt(StopReason.FAILED, commit=60, verdict=EXACT)
    pair.disturbed.end("failed", "ValueError: no such column")
    found = pair.judge()
    assert found.reason == "the disturbed run did not finish: failed: ValueError: no such column"
    assert not found.is_conclusive
    assert found.problems[0].fix.endswith("then start the flow run again, which continues it.")


def test_a_failed_rehearsal_is_not_continuous():
    pair = Pair()
    pair.undisturbed.attempt(StopReason.FAILED, commit=10)
    pair.undisturbed.end("broken", "resume rehearsal failed: extra.ema was not restored")
    assert pair.judge().outcome is Outcome.NOT_CONTINUOUS


def test_a_record_is_the_same_after_a_round_trip():
    assert type(sound()).model_validate_json(sound().model_dump_json()) == sound()


def test_a_run_that_never_trained_on_spot_says_how_it_would(pair):
    pair.disturbed.finish(capacity=Capacity.ON_DEMAND)
    found = pair.judge()
    assert found.outcome is Outcome.NOT_PROVEN
    assert found.problems[0].fix.startswith("the run never trained on spot; use a spot pool")


@pytest.mark.parametrize(
    ("changed", "outcome"),
    [
        ({"model": "zz"}, Outcome.PASSED),
        ({"model": "zz", "rng.torch": "zz"}, Outcome.NOT_CONTINUOUS),
    ],
)
def test_noise_of_kernels_excuses_final_weights_and_not_random_streams(pair, changed, outcome):
    noisy = EXACT.model_copy(update={"kind": VerdictKind.EQUIVALENT, "noise": {"loss": 1e-7}})
    pair.disturbed.attempt(StopReason.LOST, commit=50, hit=KILL)
    pair.disturbed.finish(verdict=noisy, state=STATE | changed)
    found = pair.judge()
    assert found.outcome is outcome
    assert ("within the noise of kernels" in found.reason) is (outcome is Outcome.PASSED)
