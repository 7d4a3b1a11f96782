"""Noise of kernels: what replays by fresh processes mean for a replay that differs from its witness."""

from __future__ import annotations

import math
import random

import pytest
import torch

from segue.checkpoints.format.digests import Digests
from segue.continuity.naming import METRIC, UNREGISTERED
from segue.continuity.noise import (
    LARGEST,
    LEAST,
    MOST,
    NONE,
    REPLAYS,
    SAFETY_FACTOR,
    UNIT,
    Noise,
    known_noise,
    may_be_rare,
    needs_more,
    noise_of,
    noise_of_attempts,
    tolerances,
    unreproducible_of,
)
from segue.continuity.verdict import judge
from segue.records import Finding, StateMark, Verdict, VerdictKind, WitnessRow
from segue.runlog.entries import DrillEntry, VerdictEntry
from tests.continuity.noise.windows import FAULTS, Windows, judged, older_weights
from tests.continuity.test_verdict import row
from tests.support.histories import ENVIRONMENT, Logbook, make_spec

STEPS = range(11, 19)
_MEASURED = 5
"""How often the noise is measured anew."""


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def rows(*, seed: int | None = None, eps: float = 0.0, **changes: object) -> list[WitnessRow]:
    """A window, with relative noise of this size, or with these values in its last row."""
    draw = random.Random(seed)
    noisy = [
        {name: value * (1 + eps * draw.uniform(-1, 1)) for name, value in (("loss", 0.5), ("grad_norm", 2.0))}
        for _ in STEPS
    ]
    made = [row(step, **fields) for step, fields in zip(STEPS, noisy, strict=True)]
    return [*made[:-1], made[-1].model_copy(update=changes)]


def mark(digest: str, *, norm: float = 1.0, plain: str = "p") -> dict[str, StateMark]:
    return {"extra.average": StateMark(digest=digest, plain=plain, norm=norm)}


def test_where_fresh_processes_agree_with_the_attempt_the_difference_is_a_loss():
    for lost in (rows(loss=0.500001), rows(state=mark("b"))):
        witness = rows(state=mark("a")) if lost[-1].state else rows()
        assert noise_of(witness, lost, [lost]) == NONE
        assert noise_of(witness, lost, [lost], is_attempt_fresh=True) == NONE


def test_a_witness_that_is_off_by_some_units_in_the_last_place_was_the_odd_one():
    odd = [*rows()[:-1], rows(loss=0.5000001)[-1]]
    assert noise_of(odd, rows(), [rows()], is_attempt_fresh=True).floats == pytest.approx({"loss": 2e-7}, rel=0.01)
    grown = [odd[0], *odd[1:-1], rows(loss=0.51)[-1]]
    assert noise_of(grown, rows(), [rows()]) == NONE


def test_where_fresh_processes_agree_on_something_else_than_the_witness_it_is_a_loss():
    other = rows(loss=0.51)
    assert noise_of(rows(), rows(loss=0.50001), [other, other]) == NONE


def test_where_witness_and_attempt_are_off_by_rounding_from_what_fresh_processes_agree_on_it_is_noise():
    odd, other = rows(loss=0.5000001), rows(grad_norm=2.000001)
    assert noise_of(odd, other, [rows(), rows()]).floats.keys() == {"loss", "grad_norm"}
    assert noise_of(rows(loss=0.51), other, [rows(), rows()]) == NONE


def test_one_replay_says_nothing():
    assert noise_of(rows(), rows(loss=0.5000001), [rows()]) == NONE


@pytest.mark.parametrize(("loss", "is_noise"), [(0.500004, True), (0.51, False)])
def test_a_tiny_difference_of_one_attempt_is_noise_where_two_others_repeat_the_witness(loss, is_noise):
    found = noise_of(rows(), rows(loss=loss), [rows(), rows()])
    assert bool(found.floats) is is_noise
    kind = VerdictKind.EQUIVALENT if is_noise else VerdictKind.BROKEN
    assert judged(tuple(rows()), tuple(rows(loss=loss)), found).kind is kind


@pytest.mark.parametrize("eps", [1e-7, 1e-5, 1e-3])
def test_replays_that_differ_by_rounding_are_noise_and_the_witness_within_it_is_equivalent(eps):
    fresh = [rows(seed=seed, eps=eps) for seed in range(3)]
    witness, attempt = rows(seed=8, eps=eps), rows(seed=9, eps=eps)
    found = noise_of(witness, attempt, fresh, is_attempt_fresh=True)
    assert found.floats.keys() == {"loss", "grad_norm"}
    verdict = judged(tuple(witness), tuple(attempt), found)
    assert (verdict.kind, verdict.noise) == (VerdictKind.EQUIVALENT, found.floats)
    assert "not deterministic" in verdict.sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"loss": 0.7},
        {"param_norm": 7.1},
        {"lr": (0.005,)},
        {"batch_fingerprint": "other"},
        {"input_fingerprint": "other"},
        {"loss_scale": 2.0},
    ],
)
def test_a_loss_of_state_is_broken_under_noise(changes):
    noise = Noise({"loss": 1e-4, "grad_norm": 1e-4})
    assert judged(tuple(rows()), tuple(rows(**changes)), noise).kind is VerdictKind.BROKEN


def test_the_streams_are_exact_under_noise():
    before, after = rows(streams={"rng.torch": "a"}), rows(streams={"rng.torch": "b"})
    assert judged(tuple(before), tuple(after), Noise({"loss": 1e-4})).kind is VerdictKind.BROKEN


@pytest.mark.parametrize(
    ("after", "kind"),
    [
        (mark("b", norm=1.0001), VerdictKind.EQUIVALENT),
        (mark("b", norm=1.1), VerdictKind.BROKEN),
        (mark("b", plain="q"), VerdictKind.BROKEN),
    ],
)
def test_parts_of_the_state_have_the_tolerance_of_their_own_noise(after, kind):
    noise = Noise({"state.extra.average": 1e-4, "state.optimizer": 1.0})
    assert judged(tuple(rows(state=mark("a"))), tuple(rows(state=after)), noise).kind is kind


def test_other_values_of_the_same_norm_are_noise_too():
    fresh = [rows(state=mark(name)) for name in "bcd"]
    found = noise_of(rows(state=mark("a")), rows(state=mark("e")), fresh, is_attempt_fresh=True)
    assert found.floats == {"state.extra.average": 0.0}


@pytest.mark.parametrize(("channel", "fix"), [("input_fingerprint", "times"), ("batch_fingerprint", "shuffle")])
def test_content_that_is_another_in_each_process_is_unverified_and_says_what_to_do(channel, fix):
    witness, attempt, *fresh = (rows(**{channel: name}) for name in "abcd")
    found = noise_of(witness, attempt, fresh)
    verdict = judged(tuple(witness), tuple(attempt), found)
    assert verdict.kind is VerdictKind.UNVERIFIED
    assert fix in verdict.findings[0].fix
    assert unreproducible_of(verdict) == verdict.findings[0]


def test_a_step_that_was_not_made_is_unverified_where_each_process_has_another_batch():
    witness, *fresh = (rows(input_fingerprint=name) for name in "abc")
    assert noise_of(witness, rows()[:-1], fresh, is_whole=False).unreproducible is not None


def test_where_a_fresh_process_gets_the_content_of_the_witness_the_attempt_has_lost_it():
    found = noise_of(rows(), rows(input_fingerprint="a"), [rows(), rows(input_fingerprint="b")])
    assert found == NONE


def test_differences_beyond_rounding_are_not_reproducible_and_unverified():
    fresh = [rows(loss=loss) for loss in (0.4, 0.55, 0.6)]
    witness, attempt = rows(loss=0.5), rows(loss=0.45)
    found = noise_of(witness, attempt, fresh)
    verdict = judged(tuple(witness), tuple(attempt), found)
    assert verdict.kind is VerdictKind.UNVERIFIED
    assert "seed the recipe's own generators" in verdict.findings[0].fix


def test_a_loss_far_beyond_what_processes_differ_in_is_broken():
    fresh = [rows(loss=loss) for loss in (0.5, 0.506, 0.51)]
    assert noise_of(rows(loss=0.5), rows(loss=5.0), fresh) == NONE


def test_a_loss_in_bf16_may_differ_in_its_last_place():
    unit = 2.0**-8
    fresh = [rows(loss=0.5 + unit), rows(loss=0.5, grad_norm=2.0000001)]
    found = noise_of(rows(), rows(), fresh, is_attempt_fresh=True)
    assert found.floats["loss"] > LARGEST["loss"]
    assert judged(tuple(rows()), tuple(rows(loss=0.5 + 2 * unit)), found).kind is VerdictKind.EQUIVALENT
    assert tolerances({"grad_norm": 1e-3}, rows())["loss"] == 2.0**-7
    assert tolerances({"grad_norm": 1e-3}, [row(11, loss=0.1)])["loss"] == LEAST["loss"]


def test_without_noise_there_are_no_tolerances_and_with_it_some_units_at_least():
    assert tolerances({}, rows()) == {}
    found = tolerances({"grad_norm": 1e-3}, [row(11, loss=math.pi, grad_norm=math.e, param_norm=math.pi)])
    assert found["grad_norm"] == SAFETY_FACTOR * 1e-3
    assert found["loss"] == LEAST["loss"]


def test_more_processes_are_asked_until_two_agree_or_there_are_enough():
    noisy = [rows(seed=seed, eps=1e-6) for seed in range(REPLAYS)]
    for is_fresh in (True, False):
        for count in range(REPLAYS - (1 if is_fresh else 0)):
            assert needs_more(noisy[1 : 1 + count], attempt=noisy[0], is_attempt_fresh=is_fresh)
        assert not needs_more([rows()], attempt=rows(), is_attempt_fresh=is_fresh)
    assert not needs_more(noisy[1:], attempt=noisy[0], is_attempt_fresh=True)
    assert not needs_more(noisy, attempt=rows(seed=99, eps=1e-6))
    assert not needs_more([rows(), rows()], attempt=None)


def test_replays_that_agree_a_little_away_from_the_witness_may_be_rare_noise():
    near, far = rows(loss=0.5 * (1 + 5e-6)), rows(loss=0.5 * (1 + 5e-5))
    assert may_be_rare(near, rows(), [rows()])
    assert not may_be_rare(far, rows(), [rows()]), "no rounding is so large"
    assert not may_be_rare(rows(), rows(seed=1, eps=1e-6), [rows()]), "the attempt is the odd one, and it is known why"
    assert not may_be_rare(near, rows(seed=1, eps=1e-6), [rows(seed=2, eps=1e-6)]), "nothing agrees"
    assert not may_be_rare(rows(streams={"rng.torch": "other"}), rows(), [rows()]), "content is no rounding"


def test_noise_that_was_measured_once_is_known_to_later_resumes_with_the_same_choice_of_kernels():
    book = Logbook(make_spec())
    name = book.claim(book.plan())
    ref = book.commit(name, 10)
    of_rehearsal, of_resume = (
        Verdict(kind=VerdictKind.EQUIVALENT, rows_compared=8, noise=noise)
        for noise in ({"loss": 1e-6, "grad_norm": 1e-5}, {"loss": 3e-6})
    )
    book.write(DrillEntry, checkpoint=ref, verdict=of_rehearsal, seconds=1.0)
    book.write(VerdictEntry, attempt_id=name, parent=ref, verdict=of_resume)
    assert known_noise(book.history, ENVIRONMENT).floats == {"loss": 3e-6, "grad_norm": 1e-5}
    assert known_noise(book.history, ENVIRONMENT.model_copy(update={"deterministic": True})) == NONE


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("eps", "found_share"),
    [
        pytest.param(1e-7, 1.0, marks=pytest.mark.soak),
        (1e-5, 1.0),
        pytest.param(1e-3, 0.9, marks=pytest.mark.soak),
    ],
)
def test_under_noise_losses_are_found_and_200_clean_resumes_give_no_alarm(eps, found_share, one_thread):
    windows = Windows(eps=eps, trained_steps=20)
    faults = FAULTS | {"older_weights": older_weights(windows)}
    found = dict.fromkeys(faults, 0)
    for _ in range(_MEASURED):
        witness, first, *fresh = (windows.rows() for _ in range(REPLAYS + 1))
        noise = noise_of(witness, first, fresh, is_attempt_fresh=True)
        assert noise.floats
        for _ in range(200 // _MEASURED):
            before, after = windows.rows(), windows.rows()
            verdict = judged(before, after, noise)
            if verdict.kind is VerdictKind.BROKEN:  # Then fresh processes are asked.
                asked = noise_of(before, after, [windows.rows() for _ in range(REPLAYS)])
                verdict = judged(before, after, noise | asked)
            assert verdict.kind is VerdictKind.EQUIVALENT, verdict.sentence
        for name, fault in faults.items():
            found[name] += judged(witness, windows.rows(fault), noise).kind is VerdictKind.BROKEN
    assert sum(found.values()) >= found_share * _MEASURED * len(faults), found


def test_what_all_replays_have_lost_alike_is_a_loss_whatever_else_differs_between_them():
    alike = [rows(batch_fingerprint="other", input_fingerprint=name) for name in "abcd"]
    assert noise_of(rows(), alike[0], alike[1:], is_attempt_fresh=True) == NONE
    rates = [rows(lr=(0.5,), loss=loss) for loss in (0.1, 0.9, 1.4, 2.0)]
    assert noise_of(rows(), rates[0], rates[1:], is_attempt_fresh=True) == NONE


def test_another_content_in_each_process_does_not_excuse_a_loss_far_from_the_witness():
    jumped = [rows(input_fingerprint=name, loss=9.7 + number / 10) for number, name in enumerate("abcd")]
    assert noise_of(rows(), jumped[0], jumped[1:], is_attempt_fresh=True) == NONE
    near = [rows(input_fingerprint=name, loss=0.45 + number / 50) for number, name in enumerate("abcd")]
    assert noise_of(rows(), near[0], near[1:], is_attempt_fresh=True).unreproducible is not None


def test_where_values_outside_the_checkpoint_are_lost_no_difference_from_agreeing_processes_is_rounding():
    odd = rows(loss=0.5000001)
    assert noise_of(odd, rows(), [rows()], is_attempt_fresh=True).floats
    assert noise_of(odd, rows(), [rows()], is_attempt_fresh=True, is_lost=True) == NONE
    assert noise_of(rows(), odd, [rows(), rows()], is_lost=True).floats, "fresh processes agree with the witness"


@pytest.mark.parametrize(
    ("steps", "at", "param_norm", "is_noise"),
    [
        (8, -1, 9e-4, True),
        (8, -1, 2e-3, False),
        (20, -1, 2e-3, True),
        (20, -1, 3e-3, False),
        (20, 0, 2e-3, False),
        (64, 0, 2e-3, False),
        (64, 7, 2e-3, False),
        (64, 31, 2e-3, True),
    ],
)
def test_weights_may_differ_by_more_in_later_steps_of_an_audit(steps, at, param_norm, is_noise):
    def replay(drift):
        made = [row(step, loss=0.5 * (1 + 1e-7 * drift)) for step in range(11, 11 + steps)]
        made[at] = made[at].model_copy(update={"param_norm": 1 + param_norm * drift})
        return made

    noise = noise_of(replay(0.1), replay(0.0), [replay(0.3), replay(0.6), replay(1.0)], is_attempt_fresh=True)
    assert bool(noise.floats) is is_noise
    assert (noise.unreproducible is None) is is_noise
    assert all(value <= MOST[name] for name, value in tolerances(noise.floats, replay(0.0)).items())


def test_weights_that_differ_alike_in_every_replay_are_no_rare_noise_however_many_steps_are_compared():
    witness = [row(step) for step in range(11, 75)]
    made = [each.model_copy(update={"param_norm": 1.007 * each.param_norm}) for each in witness]
    assert not noise_of(witness, made, [made, made], is_noisy=True).floats


@pytest.mark.parametrize("steps", [8, 16, 64])
def test_no_tolerance_accepts_everything(steps):
    found = tolerances({"loss": 1.0, "state.optimizer": 1.0}, [row(step) for step in range(11, 11 + steps)])
    assert (found["loss"], found["state.optimizer"]) == (MOST["loss"], MOST["state"])


def test_a_metric_of_lost_state_is_found_under_noise():
    verdict = judge(
        committed=Digests({"model": "1"}, {}),
        restored=Digests({"model": "1"}, {}),
        witness=rows(),
        replay=rows(),
        environment_changes=(),
        untracked=(Finding(component=UNREGISTERED, channel="untracked", sentence="evaluate.average: changed"),),
        metric=(Finding(component=METRIC, channel=METRIC, sentence="evaluate returns 0.1"),),
        noise=Noise({"loss": 1e-9}),
    )
    assert (verdict.kind, verdict.findings[0].component) == (VerdictKind.BROKEN, UNREGISTERED)


def test_in_a_coarse_format_a_rounding_that_no_replay_showed_is_noise():
    bf16 = 2.0**-7
    fresh = [rows(seed=seed, eps=1e-5) for seed in range(4)]
    witness = rows(seed=8, eps=1e-5)
    jumped = [*witness[:-1], witness[-1].model_copy(update={"loss": 0.5 * (1 + 5e-3)})]
    for unit, kind in ((UNIT, VerdictKind.BROKEN), (bf16, VerdictKind.EQUIVALENT)):
        noise = noise_of(jumped, rows(seed=9, eps=1e-5), fresh, unit=unit)
        assert judged(tuple(jumped), tuple(rows(seed=9, eps=1e-5)), noise).kind is kind
    lost = [*witness[:-1], witness[-1].model_copy(update={"loss": 0.5 * (1 + 2e-2)})]
    assert (
        judged(tuple(lost), tuple(fresh[0]), noise_of(lost, fresh[0], fresh[1:], unit=bf16)).kind is VerdictKind.BROKEN
    )
    known_loss = noise_of(jumped, rows(seed=9, eps=1e-5), fresh, unit=bf16, is_lost=True)
    assert judged(tuple(jumped), tuple(rows(seed=9, eps=1e-5)), known_loss).kind is VerdictKind.BROKEN
    once = rows(grad_norm=2.0 * (1 + 1e-3))
    assert noise_of(once, rows(), [rows()], unit=bf16) == NONE, "nothing is known of noise"
    assert noise_of(once, rows(), [rows()], unit=bf16, is_noisy=True).floats


def test_earlier_attempts_from_the_same_checkpoint_show_noise_where_no_other_process_can_replay():
    witness, first, second = (rows(seed=seed, eps=1e-5) for seed in (1, 2, 3))
    assert noise_of_attempts(witness, first, []) == NONE, "a first attempt is broken, and tried again"
    found = noise_of_attempts(witness, second, [first])
    assert judged(tuple(witness), tuple(second), found).kind is VerdictKind.EQUIVALENT
    lost = [*second[:-1], second[-1].model_copy(update={"loss": 0.6})]
    far = noise_of_attempts(witness, lost, [[*first[:-1], first[-1].model_copy(update={"loss": 0.6001})]])
    assert judged(tuple(witness), tuple(lost), far).kind is VerdictKind.BROKEN, "both have lost the same"
    assert noise_of_attempts(rows(), rows(loss=0.51), [rows(loss=0.51)]) == NONE
