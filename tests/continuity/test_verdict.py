"""The verdict as a table: what differs, and what it is called."""

from __future__ import annotations

import math

import pytest

from segue.checkpoints.format.digests import Digests, TensorDigest
from segue.continuity.naming import CARRIED, OUTSIDE, UNREGISTERED
from segue.continuity.verdict import judge
from segue.continuity.witness import StepRow, Witness
from segue.records import Finding, StateMark, VerdictKind, WitnessRow

TENSORS = {
    "model.weight": TensorDigest(dtype="float32", shape=(2,), digest="a"),
    "optimizer.state.0.exp_avg": TensorDigest(dtype="float32", shape=(2,), digest="b"),
    "optimizer.state.1.exp_avg": TensorDigest(dtype="float32", shape=(2,), digest="c"),
}
SAME = Digests(components={"model": "1", "optimizer": "2", "scheduler": "3"}, tensors=TENSORS)


def row(step: int, **changes: object) -> WitnessRow:
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


def made(step: int) -> StepRow:
    return StepRow(**row(step).model_dump())


def verdict(*, replay, witness=None, restored=SAME, changes=(), **more):
    witness = [row(step) for step in range(11, 19)] if witness is None else witness
    return judge(committed=SAME, restored=restored, witness=witness, replay=replay, environment_changes=changes, **more)


def test_a_replay_of_all_rows_is_exact():
    found = verdict(replay=[row(step) for step in range(11, 19)])
    assert (found.kind, found.rows_compared, found.components_compared) == (VerdictKind.EXACT, 8, 3)


def test_no_replayed_row_is_unverified_because_not_measured_is_not_passed():
    assert verdict(replay=[]).kind is VerdictKind.UNVERIFIED
    assert verdict(replay=[row(11)], witness=[]).kind is VerdictKind.UNVERIFIED


def test_fewer_rows_prove_less_and_the_verdict_says_how_much():
    assert verdict(replay=[row(11), row(12)]).rows_compared == 2


@pytest.mark.parametrize(
    ("channel", "value", "component"),
    [
        ("batch_fingerprint", "other", "data order"),
        ("input_fingerprint", "other", "data content"),
        ("lr", (0.02,), "scheduler"),
        ("loss_scale", 2.0, "scaler"),
        ("loss", math.nextafter(0.5, 1), OUTSIDE),
        ("grad_norm", math.nextafter(2.0, 3), OUTSIDE),
        ("param_norm", math.nextafter(7.0, 8), "optimizer"),
        ("loss", math.nan, OUTSIDE),
    ],
)
def test_one_bit_in_one_channel_is_broken_and_named(channel, value, component):
    found = verdict(replay=[row(11), row(12, **{channel: value}), row(13)])
    assert found.kind is VerdictKind.BROKEN
    assert (found.findings[0].component, found.findings[0].channel, found.findings[0].step) == (component, channel, 12)


def test_the_cause_is_named_not_its_consequences():
    found = verdict(replay=[row(11, batch_fingerprint="other", input_fingerprint="other", loss=0.9, param_norm=1.0)])
    assert [finding.component for finding in found.findings] == ["data order"]


def test_a_nan_that_was_there_before_is_reproduced():
    nan = row(11, loss=math.nan, grad_norm=math.nan)
    assert verdict(witness=[nan], replay=[nan]).kind is VerdictKind.EXACT


@pytest.mark.parametrize(
    ("channel", "value", "kind"),
    [
        ("loss", 0.5 * (1 + 0.9e-4), VerdictKind.EQUIVALENT),
        ("loss", 0.5 * (1 + 1.1e-4), VerdictKind.BROKEN),
        ("grad_norm", 2.0 * (1 + 0.9e-3), VerdictKind.EQUIVALENT),
        ("grad_norm", 2.0 * (1 + 1.1e-3), VerdictKind.BROKEN),
        ("param_norm", 7.0 * (1 + 0.9e-3), VerdictKind.EQUIVALENT),
        ("param_norm", 7.0 * (1 + 1.1e-3), VerdictKind.BROKEN),
        ("lr", (0.01 * (1 + 1e-9),), VerdictKind.BROKEN),
        ("batch_fingerprint", "other", VerdictKind.BROKEN),
    ],
)
def test_in_another_environment_sums_have_tolerances_and_the_data_has_none(channel, value, kind):
    found = verdict(replay=[row(11, **{channel: value})], changes=("threads",))
    assert (found.kind, found.environment_changes) == (kind, ("threads",))


def test_a_component_that_was_not_restored_is_named_with_its_tensors():
    tensors = dict(TENSORS)
    tensors["optimizer.state.1.exp_avg"] = TensorDigest(dtype="float32", shape=(2,), digest="x")
    restored = Digests(components=SAME.components | {"optimizer": "x"}, tensors=tensors)
    (finding,) = verdict(replay=[row(11)], restored=restored).findings
    assert (finding.component, finding.channel, finding.step) == ("optimizer", "digest", None)
    assert "1 of its 2 tensors differ, e.g. optimizer.state.1.exp_avg" in finding.sentence


def test_an_empty_optimizer_is_called_absent():
    tensors = {"model.weight": TENSORS["model.weight"]}
    restored = Digests(components=SAME.components | {"optimizer": "x"}, tensors=tensors)
    (finding,) = verdict(replay=[], restored=restored).findings
    assert "none of its state" in finding.sentence


def test_the_witness_gives_each_window_once_and_only_steps_in_a_row():
    witness = Witness(3)
    witness.open(10)
    for step in (11, 12):
        witness.add(made(step))
    assert witness.take_full() == []
    assert [r.step for r in witness.unsealed_rows()] == [11, 12]
    witness.add(made(14))
    assert witness.take_full() == []
    witness.add(made(13))
    assert [(step, [r.step for r in rows]) for step, rows in witness.take_full()] == [(10, [11, 12, 13])]
    assert witness.take_full() == []
    assert [r.step for r in witness.unsealed_rows()] == [11, 12, 13]


def test_a_window_cut_short_is_given_out_with_what_it_has():
    witness = Witness(8)
    witness.open(10)
    witness.add(made(11))
    assert [(step, len(rows)) for step, rows in witness.take_rest()] == [(10, 1)]
    assert witness.take_rest() == []


@pytest.mark.parametrize(
    ("channel", "before", "now", "agrees"),
    [
        ("loss", 1.9e-14, 4.0e-14, True),
        ("loss", 6.6e-6, 6.601e-6, True),
        ("loss", 6.6e-6, 8.0e-6, False),
        ("grad_norm", 1e-9, 5e-8, True),
        ("param_norm", 1e-9, 5e-9, False),
    ],
)
def test_elsewhere_what_is_left_of_larger_terms_may_differ_by_their_rounding(channel, before, now, agrees):
    found = verdict(witness=[row(11, **{channel: before})], replay=[row(11, **{channel: now})], changes=("threads",))
    assert (found.kind is VerdictKind.EQUIVALENT) is agrees
    here = verdict(witness=[row(11, **{channel: before})], replay=[row(11, **{channel: now})])
    assert here.kind is VerdictKind.BROKEN


def test_tensors_that_only_the_live_object_has_are_named():
    more = TENSORS | {"optimizer.state.2.exp_avg": TensorDigest(dtype="float32", shape=(2,), digest="d")}
    found = verdict(replay=[], restored=Digests(components=dict(SAME.components) | {"optimizer": "9"}, tensors=more))
    assert "1 tensors that the checkpoint lacks, e.g. optimizer.state.2.exp_avg" in found.findings[0].sentence


METRIC_FINDING = Finding(component="evaluate", channel="evaluate", sentence="evaluate returns 1.0, and returned 2.0")


def test_a_metric_that_differs_alone_is_unverified_and_broken_where_lost_state_explains_it():
    replay = [row(step) for step in range(11, 19)]
    alone = verdict(replay=replay, metric=(METRIC_FINDING,))
    assert (alone.kind, alone.findings[0].component) == (VerdictKind.UNVERIFIED, "evaluate")
    average = Finding(
        component="unregistered state", channel="untracked", sentence="evaluate.average: changed", fix="x"
    )
    explained = verdict(replay=replay, metric=(METRIC_FINDING,), untracked=(average,))
    assert (explained.kind, explained.findings[0].component) == (VerdictKind.BROKEN, "unregistered state")


CARRIED_FINDING = Finding(
    component=UNREGISTERED, channel=CARRIED, sentence="total (local variable): was 9", fix="do it"
)


def test_a_resume_that_lost_what_the_loop_carries_is_not_exact_although_all_that_was_compared_is():
    whole = [row(step) for step in range(11, 19)]
    found = verdict(replay=whole, untracked=(CARRIED_FINDING,))
    assert (found.kind, found.rows_compared, found.findings) == (VerdictKind.UNVERIFIED, 8, (CARRIED_FINDING,))
    assert found.sentence == (
        "unverified: exact only in what was compared (3 components and 8 steps); not restored: "
        "total (local variable): was 9. Fix: do it"
    )
    shown = CARRIED_FINDING.model_copy(update={"channel": "untracked"})
    assert verdict(replay=whole, untracked=(shown,)).kind is VerdictKind.EXACT
    assert verdict(replay=[], untracked=(CARRIED_FINDING,)).findings[0] == CARRIED_FINDING


def test_a_resume_that_is_broken_by_what_the_loop_carries_is_named_after_it():
    found = verdict(replay=[row(11, lr=(0.5,))], untracked=(CARRIED_FINDING,))
    assert (found.kind, found.findings[0].component) == (VerdictKind.BROKEN, UNREGISTERED)
    assert found.findings[0].sentence.startswith("total (local variable): was 9. In the replay, the learning rate")
    assert found.findings[-1] == CARRIED_FINDING


def test_a_row_that_differs_decides_before_what_differs_at_a_later_step():
    early = (Finding(component="rng.python", channel="streams", step=12, sentence="a stream differs"),)
    found = verdict(replay=[row(11, loss=0.6)], early=early)
    assert (found.findings[0].channel, found.findings[0].step) == ("loss", 11)
    assert verdict(replay=[row(11)], early=early).findings[0].component == "rng.python"


def marked(*, norm=2.0, plain="p", digest="d"):
    return {"extra.average": StateMark(digest=digest, plain=plain, norm=norm)}


@pytest.mark.parametrize(
    ("after", "changes", "kind"),
    [
        (marked(), (), VerdictKind.EXACT),
        (marked(digest="e"), (), VerdictKind.BROKEN),
        ({}, (), VerdictKind.EXACT),
        (marked(digest="e", norm=2.001), ("threads",), VerdictKind.EQUIVALENT),
        (marked(digest="e", norm=2.1), ("threads",), VerdictKind.BROKEN),
        (marked(digest="e", plain="q"), ("threads",), VerdictKind.BROKEN),
    ],
)
def test_the_state_after_the_replay_is_compared_bit_for_bit_or_by_its_norms(after, changes, kind):
    found = verdict(witness=[row(11, state=marked())], replay=[row(11, state=after)], changes=changes)
    assert found.kind is kind
    if kind is VerdictKind.BROKEN:
        assert (found.findings[0].component, found.findings[0].channel) == ("extra.average", "state")


@pytest.mark.parametrize("replay", [[], [row(step) for step in range(11, 19)]])
def test_a_component_that_was_not_restored_is_broken_whatever_the_rows_show(replay):
    restored = Digests(components=SAME.components | {"scheduler": "another"}, tensors=TENSORS)
    found = verdict(replay=replay, restored=restored)
    assert found.kind is VerdictKind.BROKEN
    assert found.findings[0].component == "scheduler"


def test_a_component_that_only_the_live_recipe_has_is_named_and_a_stream_of_its_own_is_not():
    restored = Digests(components=SAME.components | {"extra.ema": "9", "rng.more": "8"}, tensors=TENSORS)
    found = verdict(replay=[row(step) for step in range(11, 19)], restored=restored)
    assert found.kind is VerdictKind.BROKEN
    assert [finding.component for finding in found.findings] == ["extra.ema"]


def test_the_first_step_that_differs_is_named_in_whatever_order_the_rows_come():
    witness = [row(step) for step in (14, 11, 13, 12)]
    found = verdict(witness=witness, replay=[row(13, loss=0.6), row(11), row(12, loss=0.6), row(14, loss=0.6)])
    assert found.findings[0].step == 12


def test_a_loss_scale_has_no_tolerance_in_another_environment():
    witness = [row(11, loss_scale=1024.0)]
    for scale, kind in ((1024.0, VerdictKind.EQUIVALENT), (1024.0001, VerdictKind.BROKEN)):
        found = verdict(witness=witness, replay=[row(11, loss_scale=scale)], changes=("torch",))
        assert found.kind is kind
