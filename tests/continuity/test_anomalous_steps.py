"""Which numbers of a step are bad: one row for each side of each boundary."""

from __future__ import annotations

import math

import pytest

from segue.continuity.anomalous_steps import LEAST_LOSS_SCALE, MOST_SAMPLE_IDS, spike_limit, symptom, with_loss
from segue.records import Anomaly, Skip, WitnessRow
from segue.spec import AnomalySpec

NAN, INF = math.nan, math.inf
DEFAULT = AnomalySpec()
SPIKES = AnomalySpec(spikes="rollback", spike_window_steps=8, spike_factor=3.0)
CALM = (1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0)
"""Median 1.5, median absolute deviation 0.5."""
LIMIT = 1.5 + 3.0 * 1.4826 * 0.5


def row(**changes):
    fields = {
        "step": 5,
        "loss": 0.5,
        "grad_norm": 2.0,
        "param_norm": 7.0,
        "lr": (0.01,),
        "batch_fingerprint": "b",
        "input_fingerprint": "i",
    }
    return WitnessRow(**(fields | changes))


def seen(*, spec=DEFAULT, recent=(), **changes):
    found = symptom(row(**changes), spec=spec, recent_losses=recent)
    return found and (found.kind, found.channel)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("channel", ["loss", "grad_norm", "param_norm"])
def test_every_number_that_is_not_finite_is_named_by_its_channel(channel, value):
    assert seen(**{channel: value}) == ("non_finite", channel)


@pytest.mark.parametrize("value", [0.0, -1e300, 1e300])
@pytest.mark.parametrize("channel", ["loss", "grad_norm", "param_norm"])
def test_what_is_finite_is_no_anomaly_however_large(channel, value):
    assert seen(**{channel: value}) is None


def test_the_first_channel_in_the_order_of_cause_and_effect_is_named():
    assert seen(loss=NAN, grad_norm=NAN, param_norm=NAN) == ("non_finite", "loss")
    assert seen(grad_norm=INF, param_norm=NAN) == ("non_finite", "grad_norm")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"grad_norm": INF}, None),
        ({"grad_norm": NAN}, None),
        ({"loss": INF, "grad_norm": NAN}, ("non_finite", "loss")),
        ({"grad_norm": NAN, "param_norm": NAN}, ("non_finite", "param_norm")),
    ],
)
def test_with_a_scaler_gradients_may_overflow_and_losses_and_weights_may_not(changes, found):
    assert seen(loss_scale=65536.0, **changes) == found


@pytest.mark.parametrize(
    ("scale", "grad_norm", "found"),
    [
        (LEAST_LOSS_SCALE, INF, None),
        (LEAST_LOSS_SCALE * 0.99, INF, ("non_finite", "loss_scale")),
        (0.0, NAN, ("non_finite", "loss_scale")),
        (LEAST_LOSS_SCALE * 0.99, 1.0, None),
    ],
)
def test_a_scale_has_collapsed_when_it_is_tiny_and_gradients_still_overflow(scale, grad_norm, found):
    assert seen(loss_scale=scale, grad_norm=grad_norm) == found


def test_what_is_off_is_not_looked_for():
    off = AnomalySpec(non_finite="off")
    assert seen(spec=off, loss=NAN, grad_norm=NAN, param_norm=NAN) is None
    assert seen(recent=CALM * 8, loss=1e9) is None
    both = AnomalySpec(non_finite="off", spikes="skip", spike_window_steps=8)
    assert seen(spec=both, recent=CALM, loss=INF) == ("spike", "loss")
    assert seen(spec=both, recent=CALM, loss=NAN) is None


def test_the_limit_is_so_many_robust_deviations_above_the_median():
    assert spike_limit(CALM, factor=3.0) == pytest.approx(LIMIT)
    assert spike_limit((*CALM[:-1], 1e9), factor=3.0) == pytest.approx(LIMIT)


@pytest.mark.parametrize(("level", "limit"), [(2.0, 2.06), (-2.0, -1.94), (0.0, None)])
def test_a_loss_that_does_not_move_has_a_hundredth_of_its_level_as_its_spread(level, limit):
    found = spike_limit((level,) * 8, factor=3.0)
    assert found == (None if limit is None else pytest.approx(limit))


@pytest.mark.parametrize(("loss", "found"), [(LIMIT - 1e-9, None), (LIMIT + 1e-9, ("spike", "loss")), (-1e9, None)])
def test_only_a_loss_above_the_limit_is_a_spike(loss, found):
    assert seen(spec=SPIKES, recent=CALM, loss=loss) == found


@pytest.mark.parametrize(("count", "found"), [(7, None), (8, ("spike", "loss"))])
def test_spikes_are_judged_once_the_window_is_full(count, found):
    assert seen(spec=SPIKES, recent=CALM[:count], loss=1e9) == found


def test_the_window_holds_the_newest_finite_losses_and_nothing_where_nobody_looks():
    assert with_loss(CALM[:3], 9.0, spec=SPIKES) == (1.0, 2.0, 1.0, 9.0)
    assert with_loss(CALM, 9.0, spec=SPIKES) == (*CALM[1:], 9.0)
    assert with_loss(CALM, NAN, spec=SPIKES) == CALM
    assert with_loss(CALM, 9.0, spec=DEFAULT) == ()


@pytest.mark.parametrize("value", [NAN, INF])
def test_an_anomaly_survives_the_log(value):
    found = symptom(row(loss=value), spec=DEFAULT, recent_losses=())
    anomaly = found.on(Skip(samples_seen=40, sample_count=2000), step=5, sample_ids=range(2000))
    read = Anomaly.model_validate_json(anomaly.model_dump_json())
    assert (repr(read), len(read.sample_ids)) == (repr(anomaly), MOST_SAMPLE_IDS)
    assert read.sentence == f"loss was {value} at step 5, samples 40 to 2039 of the order"


def test_a_sentence_names_the_limit_that_was_passed():
    batch = Skip(samples_seen=0, sample_count=1)
    spike = Anomaly(step=9, kind="spike", channel="loss", value=12.5, limit=3.0, batch=batch, sample_ids=(7,))
    assert spike.sentence == "loss was 12.5 (above 3) at step 9, samples 0 to 0 of the order"
    scale = Anomaly(step=9, kind="non_finite", channel="loss_scale", value=1e-5, limit=1e-4, batch=batch)
    assert scale.sentence.startswith("loss_scale was 1e-05 (below 0.0001) at step 9")
