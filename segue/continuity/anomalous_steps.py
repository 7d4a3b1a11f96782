"""Finds anomalous steps from their rows. An anomaly is a number that is not finite, or a spike of the loss.

The module is pure, so all ranks and all replays get equal results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

from segue.continuity.witness import StepRow
from segue.records import Anomaly, Skip
from segue.spec import AnomalySpec

LEAST_LOSS_SCALE = 1e-4
"""Smallest loss scale.

If the scale is smaller, the scaler has skipped so many steps that no scale helps. fairseq has the same limit.
"""

MOST_SAMPLE_IDS = 1024
"""Maximum number of sample ids in the record of an anomaly. Every start reads all anomalies from the run's log."""

_MAD_TO_DEVIATION = 1.4826
_LEAST_SPREAD = 0.01
"""Smallest standard deviation, as a share of the median.

Because of this lower limit of the deviation, a small change after a constant loss is not a spike.
"""


class Symptom(NamedTuple):
    """The anomaly of a step."""

    kind: Literal["non_finite", "spike"]
    channel: Literal["loss", "grad_norm", "param_norm", "loss_scale"]
    value: float
    limit: float | None = None

    def on(self, batch: Skip, *, step: int, sample_ids: Sequence[int]) -> Anomaly:
        """Return the anomaly as a record, with the batch of the step."""
        return Anomaly(step=step, batch=batch, sample_ids=tuple(sample_ids[:MOST_SAMPLE_IDS]), **self._asdict())


def is_finite(row: StepRow) -> bool:
    """Whether all numbers of a step without a loss scaler are finite.

    The result may also be False if the sum of the numbers is too large for a float.
    """
    return row.loss_scale is None and math.isfinite(row.loss + (row.grad_norm or 0.0) + (row.param_norm or 0.0))


def symptom(row: StepRow, *, spec: AnomalySpec, recent_losses: Sequence[float]) -> Symptom | None:
    """Return the anomaly of a step, or None if the step has no anomaly or the spec turns the check off.

    `recent_losses` contains the losses of at most `spike_window_steps` previous steps. The function detects spikes only
    if `recent_losses` is full.
    """
    if not is_finite(row) and spec.non_finite != "off":
        found = _not_finite(row)
        if found is not None:
            return found
    if spec.spikes != "off" and len(recent_losses) >= spec.spike_window_steps:
        limit = spike_limit(recent_losses, factor=spec.spike_factor)
        if limit is not None and row.loss > limit:
            return Symptom("spike", "loss", row.loss, limit)
    return None


def spike_limit(losses: Sequence[float], *, factor: float) -> float | None:
    """Return the highest loss that the next step can have without a spike.

    The limit is computed from the median and the median absolute deviation. Return None if all losses are zero.
    """
    level = median(losses)
    deviation = _MAD_TO_DEVIATION * median([abs(loss - level) for loss in losses])
    spread = max(deviation, _LEAST_SPREAD * abs(level))
    return level + factor * spread if spread else None


def with_loss(recent_losses: tuple[float, ...], loss: float, *, spec: AnomalySpec) -> tuple[float, ...]:
    """Return the recent losses and the new loss. The result is empty if the spec turns the spike check off."""
    if spec.spikes == "off" or not math.isfinite(loss):
        return () if spec.spikes == "off" else recent_losses
    return (*recent_losses, loss)[-spec.spike_window_steps :]


def _not_finite(row: StepRow) -> Symptom | None:
    # Causes come before effects. A loss scaler skips steps with such gradients, so they are then not an anomaly.
    watched: list[tuple[Literal["loss", "grad_norm", "param_norm"], float | None]] = [("loss", row.loss)]
    if row.loss_scale is None:
        watched.append(("grad_norm", row.grad_norm))
    watched.append(("param_norm", row.param_norm))
    for channel, value in watched:
        if value is not None and not math.isfinite(value):
            return Symptom("non_finite", channel, value)
    if row.loss_scale is not None and row.loss_scale < LEAST_LOSS_SCALE and not math.isfinite(row.grad_norm or 0.0):
        return Symptom("non_finite", "loss_scale", row.loss_scale, LEAST_LOSS_SCALE)
    return None
