"""A resume on another type of device: what it may change, and what stays exact."""

from __future__ import annotations

import pytest

from segue.checkpoints.format.digests import Digests
from segue.continuity.verdict import judge
from segue.records import StateMark, VerdictKind
from tests.continuity.test_verdict import row

STEPS = range(11, 19)
ON_CPU = Digests(components={"model": "1", "rng.torch": "1"}, tensors={})
ON_GPU = Digests(components={"model": "1", "rng.torch": "1", "rng.cuda": "1"}, tensors={})
MARK = {"model": StateMark(digest="a", plain="p", norm=1.0)}


def judged(*, committed=ON_GPU, restored=ON_GPU, changes=("device",), **changed):
    witness = [row(step, loss_scale=1024.0, state=MARK) for step in STEPS]
    replay = [*witness[:-1], witness[-1].model_copy(update=changed)]
    return judge(committed=committed, restored=restored, witness=witness, replay=replay, environment_changes=changes)


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"loss": 0.50001}, VerdictKind.EQUIVALENT),
        ({"loss": 0.51}, VerdictKind.UNVERIFIED),  # Another mask of dropout.
        ({"grad_norm": 2.1}, VerdictKind.UNVERIFIED),
        ({"param_norm": 7.5}, VerdictKind.UNVERIFIED),
        ({"loss_scale": 512.0}, VerdictKind.UNVERIFIED),
        ({"state": {"model": StateMark(digest="b", plain="p", norm=1.5)}}, VerdictKind.UNVERIFIED),
        ({"batch_fingerprint": "other"}, VerdictKind.BROKEN),
        ({"input_fingerprint": "other"}, VerdictKind.BROKEN),
        ({"lr": (0.02,)}, VerdictKind.BROKEN),
        ({"loss": 0.51, "lr": (0.02,)}, VerdictKind.BROKEN),
    ],
)
def test_numbers_of_another_device_prove_nothing_and_samples_and_rates_stay_exact(changed, kind):
    assert judged(**changed).kind is kind
    if kind is VerdictKind.UNVERIFIED:
        assert judged(changes=(), **changed).kind is VerdictKind.BROKEN, "on the same device it is a loss"


@pytest.mark.parametrize(
    ("committed", "restored", "kind"),
    [(ON_GPU, ON_CPU, VerdictKind.UNVERIFIED), (ON_CPU, ON_GPU, VerdictKind.EQUIVALENT)],
)
def test_streams_that_only_one_device_has_are_no_loss_and_are_said(committed, restored, kind):
    found = judged(committed=committed, restored=restored)
    assert found.kind is kind
    if kind is VerdictKind.UNVERIFIED:
        (finding,) = found.findings
        assert (finding.component, finding.channel) == ("rng.cuda", "device")
        assert "the same type of device" in finding.fix
    lost = Digests(components=restored.components | {"model": "2"}, tensors={})
    assert judged(committed=committed, restored=lost).kind is VerdictKind.BROKEN


@pytest.mark.parametrize(("after", "kind"), [(2.015625, VerdictKind.EQUIVALENT), (2.03125, VerdictKind.BROKEN)])
def test_a_norm_in_bf16_may_differ_by_one_of_its_units_in_another_environment(after, kind):
    assert judged(changes=("threads",), grad_norm=after).kind is kind
    assert judged(changes=("threads",), grad_norm=after + 0.001).kind is VerdictKind.BROKEN, "no number of bf16"


def test_streams_that_the_same_device_lost_are_a_loss():
    assert judged(restored=ON_CPU, changes=("threads",)).kind is VerdictKind.BROKEN
