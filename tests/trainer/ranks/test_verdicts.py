"""The verdict after a change of the number of ranks: what must agree then, and what is no evidence."""

from __future__ import annotations

import pytest

from segue.checkpoints.format.digests import Digests
from segue.continuity.verdict import judge
from segue.records import VerdictKind, WitnessRow

SAME = Digests(components={"model": "1"}, tensors={})


def row(step, **changes):
    fields = {
        "step": step,
        "loss": 0.5,
        "grad_norm": 2.0,
        "param_norm": 7.0,
        "lr": (0.01,),
        "batch_fingerprint": f"batch{step}",
        "input_fingerprint": f"input{step}",
    }
    return WitnessRow(**(fields | changes))


def verdict(*replay, restored=SAME, changes=("world_size",)):
    return judge(
        committed=SAME, restored=restored, witness=[row(11), row(12)], replay=replay, environment_changes=changes
    )


def test_rows_that_agree_are_equivalent():
    found = verdict(row(11), row(12))
    assert (found.kind, found.rows_compared) == (VerdictKind.EQUIVALENT, 2)


def test_fingerprints_of_batch_shares_differ_with_the_number_of_ranks_and_that_is_no_finding():
    assert verdict(row(11, input_fingerprint="other"), row(12)).kind is VerdictKind.EQUIVALENT
    found = verdict(row(11, input_fingerprint="other"), row(12), changes=("threads",))
    assert found.kind is VerdictKind.BROKEN


@pytest.mark.parametrize(
    ("channel", "value", "kind"),
    [
        ("batch_fingerprint", "other", VerdictKind.BROKEN),
        ("lr", (0.02,), VerdictKind.BROKEN),
        ("loss_scale", 2.0, VerdictKind.UNVERIFIED),
        ("loss", 0.5 * (1 + 0.9e-4), VerdictKind.EQUIVALENT),
        ("loss", 0.6, VerdictKind.UNVERIFIED),
        ("grad_norm", 3.0, VerdictKind.UNVERIFIED),
        ("param_norm", 9.0, VerdictKind.UNVERIFIED),
        ("loss", float("nan"), VerdictKind.UNVERIFIED),
    ],
)
def test_a_ranks_own_random_draws_may_differ_and_data_order_and_schedule_may_not(channel, value, kind):
    found = verdict(row(11), row(12, **{channel: value}))
    assert found.kind is kind
    assert [finding.channel for finding in found.findings] == [channel] * (kind is not VerdictKind.EQUIVALENT)


@pytest.mark.parametrize(("channel", "value"), [("batch_fingerprint", "other"), ("lr", (0.02,))])
def test_a_loss_that_may_differ_does_not_hide_a_difference_in_a_later_step(channel, value):
    found = verdict(row(11, loss=0.6), row(12, loss=0.7, **{channel: value}))
    assert found.kind is VerdictKind.BROKEN
    assert (found.findings[0].channel, found.findings[0].step) == (channel, 12)


def test_a_loss_scale_that_depends_on_other_gradients_is_no_evidence():
    assert verdict(row(11, grad_norm=3.0), row(12, loss_scale=2.0)).kind is VerdictKind.UNVERIFIED


def test_a_lost_component_is_broken_for_any_number_of_ranks():
    lost = Digests(components={"model": "x"}, tensors={})
    assert verdict(row(11), row(12), restored=lost).kind is VerdictKind.BROKEN
