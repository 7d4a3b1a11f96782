"""The name of a difference: the root cause, not what follows from it, and always with a fix."""

from __future__ import annotations

import pytest

from segue.continuity.agreement import EXACT_CHANNELS, TOLERANCES
from segue.continuity.naming import CARRIED, METRIC, OUTSIDE, UNREGISTERED, explained, fix_of
from segue.continuity.recipe_diff import CHANGEABLE, COMPARED, SURROUNDINGS
from segue.records import Finding

COUNTER = Finding(component=UNREGISTERED, channel="untracked", sentence="loss.calls: was 8, now 0", fix="register it")
OF_DATA = Finding(component=UNREGISTERED, channel="untracked", sentence="data.dataset.pointer: was 8, now 0", fix="x")
TOTAL = Finding(
    component=UNREGISTERED,
    channel=CARRIED,
    sentence="total (local variable in train): was 9.5, now 0.0",
    fix="write this",
)
FILE = Finding(component=SURROUNDINGS, channel="setup", sentence="file scale.txt is changed")


def named(channel, *, component="some part", step=11, untracked=(), noted=()):
    first = Finding(component=component, channel=channel, step=step, sentence="it differs")
    (found,) = explained((first,), untracked=untracked, noted=noted, compared=("model", "optimizer"))
    assert found.fix
    return found


def test_a_loss_that_differs_is_named_after_what_changed_outside_the_checkpoint():
    found = named("loss", untracked=[COUNTER], noted=[FILE])
    assert (found.component, found.fix) == (UNREGISTERED, "register it")
    assert "loss.calls" in found.sentence
    assert "scale.txt" in found.sentence
    assert named("loss", noted=[FILE]).component == SURROUNDINGS


@pytest.mark.parametrize("channel", ["loss", "grad_norm", "lr", "param_norm", "state", "loss_scale", METRIC])
def test_a_value_that_decides_what_follows_is_named_before_all_else(channel):
    found = named(channel, untracked=[COUNTER, TOTAL], noted=[FILE])
    assert (found.component, found.fix) == (UNREGISTERED, "write this")
    assert found.sentence.startswith("total (local variable in train): was 9.5, now 0.0. In the replay, it differs")
    assert found.sentence.index("loss.calls") < found.sentence.index("scale.txt")


def test_samples_in_another_order_are_not_named_after_a_value_that_the_loop_carries():
    assert named("batch_fingerprint", untracked=[TOTAL]).component == "some part"


def test_without_a_candidate_the_finding_says_what_was_compared_and_is_equal():
    found = named("loss")
    assert found.component == OUTSIDE
    assert "model, optimizer" in found.sentence


@pytest.mark.parametrize("channel", ["param_norm", "lr", "loss_scale", "batch_fingerprint"])
def test_a_channel_with_a_cause_of_its_own_keeps_it_unless_something_near_it_changed(channel):
    assert named(
        channel, untracked=[Finding(component=UNREGISTERED, channel="x", sentence="evaluate.n: 1")]
    ).component == ("some part")


def test_a_learning_rate_that_differs_keeps_its_name_and_gets_the_fix_of_what_was_lost_elsewhere():
    found = named("lr", component="scheduler", untracked=[OF_DATA.model_copy(update={"fix": "track the pointer"})])
    assert found.component == "scheduler"
    assert found.fix.startswith("change learning rates through the scheduler alone")
    assert found.fix.endswith("; track the pointer")


def test_samples_are_named_after_the_data_set_first():
    found = named("input_fingerprint", untracked=[COUNTER, OF_DATA])
    assert found.component == UNREGISTERED
    assert found.sentence.index("data.dataset.pointer") < found.sentence.index("loss.calls")


def test_a_draw_before_the_first_step_is_a_cause_and_a_stream_that_differs_later_is_not():
    assert named("streams", component="rng.python", step=None, untracked=[COUNTER]).component == "rng.python"
    assert named("streams", component="rng.python", untracked=[COUNTER]).component == UNREGISTERED


@pytest.mark.parametrize(
    ("component", "channel"),
    [
        *((component, "setup") for component in (*COMPARED, *CHANGEABLE, SURROUNDINGS)),
        *(("x", channel) for channel in (*EXACT_CHANNELS, *TOLERANCES, "digest", "state", METRIC)),
        ("rng.torch", "streams"),
        ("never seen before", "never seen before"),
    ],
)
def test_every_finding_has_a_fix(component, channel):
    assert fix_of(component, channel)
