"""Measures the noise of kernels that are not deterministic, and judges differences between replays. The module is pure.

A replay that differs from its witness proves a loss of state only if replays agree with each other. Therefore several
fresh processes replay the witness steps from one checkpoint. The differences between their replays are the noise of the
recipe.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from segue.continuity.differences import (
    CONTENT,
    FLOATS,
    STATE,
    are_equal,
    content_difference,
    differences,
    drift,
    is_other_content,
    kind_of,
    pairs_of,
    relative,
    spread,
)
from segue.records import Environment, Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.history import History

REPLAYS = 4
"""Number of replays from which noise is measured. Two replays are too few: in 162,000 simulated comparisons, a third
replay differed by up to 29 times the difference between two replays. A fifth replay differed by at most 8 times the
largest difference among four replays."""
_OF_FEW = 3.0
"""Factor by which noise is multiplied if it was measured from fewer than four processes. In simulations, a third replay
differed by up to 29 times the difference between two replays."""
SAFETY_FACTOR = 10.0
"""Factor by which the tolerance of a channel exceeds the largest difference among the replays."""
_LIMITED_STEPS = 8
"""Number of steps for which `LARGEST` holds. Later in an audit, weights may differ by more, in proportion to the steps:
at every step, Adam makes a full step even from a gradient that is only a rounding error."""
STATE_FACTOR = 30.0
"""Factor by which the tolerance of a part of the state exceeds the largest difference among the replays. The state is
compared only after one step, so its noise is known less well than the noise of other channels."""

LARGEST = {"loss": 5e-3, "grad_norm": 5e-2, "param_norm": 1e-3, STATE: 5e-2}
"""Largest relative difference between two replays that kernels may cause: several units of bf16. If two replays differ
by more, the recipe itself draws, reads or computes something different in each process."""
RARE = {"loss": 1e-5, "grad_norm": 1e-4, "param_norm": 1e-3, STATE: 1e-3}
"""Largest relative difference that kernels may cause if one replay differs while two other replays agree. Weights may
differ by more than losses. An optimizer that divides by the size of gradients makes full steps even from gradients that
are only rounding errors."""

LEAST = {"loss": 1e-6, "grad_norm": 1e-5, "param_norm": 1e-4, STATE: 1e-4}
"""Smallest tolerance of each channel if a recipe is known to have noise, because some channels may not have shown the
noise yet."""

MOST = {"loss": 5e-2, "grad_norm": 0.5, "param_norm": 1e-2, STATE: 0.5}
"""Largest tolerance of each channel."""

UNIT = 2.0**-23
"""Distance from 1 to the next float32 number. The distance is 2**-7 for bf16, and 2**-10 for float16 and TF32."""
_COARSE_UNITS = {"loss": 2.0, "grad_norm": 4.0, STATE: 0.125}
"""Number of units of a coarse number format by which one rounding may change a value. A loss near its minimum and its
gradient are differences of larger terms. Rounding changes a mean over a batch in the state by a fraction of a unit."""

_UNITS = 4
"""Maximum number of units in the last place of float32 by which rounding may change a value, if a recipe has noise. For
a type with fewer bits than float32, the maximum is one unit in the last place of this type."""
_BFLOAT16_BITS, _FLOAT16_BITS, _FLOAT32_BITS = 8, 11, 24

FIX = "set deterministic = true in the run spec, if every resume must be equal bit for bit"
NOT_REPRODUCIBLE = "recipe"
"""The component name that findings use for a recipe that is not reproducible."""

_ADVICE = {
    "batch_fingerprint": "draws different samples: seed its sampler or shuffle in build, from the config",
    "streams": "draws a different number of random values: make build and the data set draw the same numbers each time",
    "input_fingerprint": "gets a batch with different content: seed the generator of the data set in build, and keep "
    "times, process ids and other values of the process out of the batch",
    "lr": "has a different learning rate: compute it from the step, not from the time",
    "loss_scale": "has a different loss scale: compute the loss only from the batch and the RNG streams of torch",
}
_OF_FLOATS = (
    "computes another {channel}: seed the recipe's own generators (dropout, noise, augmentation) in build, and add "
    "these generators to Recipe.extra"
)


@dataclass(frozen=True)
class Noise:
    """The known differences between replays from one state."""

    floats: Mapping[str, float] = field(default_factory=dict)
    """Largest relative difference by channel. The mapping is empty if no difference is known."""
    unreproducible: Finding | None = None
    """A finding about the recipe if two fresh processes differ by more than rounding. Otherwise the value is None."""

    def __or__(self, other: Noise) -> Noise:
        names = dict.fromkeys([*self.floats, *other.floats])
        floats = {name: max(self.floats.get(name, 0.0), other.floats.get(name, 0.0)) for name in names}
        return Noise(floats, self.unreproducible or other.unreproducible)


NONE = Noise()


def needs_more(
    fresh: Sequence[Sequence[WitnessRow]], *, attempt: Sequence[WitnessRow] | None, is_attempt_fresh: bool = False
) -> bool:
    """Whether another fresh replay is needed.

    The result is False if two replays are equal or the maximum number of replays has been reached.
    """
    known = [*fresh, *([attempt] if attempt is not None else [])]
    if any(are_equal(one, other) for one, other in combinations(known, 2)):
        return False
    return len(known if is_attempt_fresh else fresh) < REPLAYS


def noise_of(
    witness: Sequence[WitnessRow],
    attempt: Sequence[WitnessRow],
    fresh: Sequence[Sequence[WitnessRow]],
    *,
    is_attempt_fresh: bool = False,
    is_whole: bool = True,
    is_noisy: bool = False,
    is_lost: bool = False,
    unit: float = UNIT,
) -> Noise:
    """Return the noise that explains why `attempt` differs from its witness.

    The result is empty if the difference is a loss of state. `fresh` contains replays of the same steps by fresh
    processes. With `is_attempt_fresh`, the replay of the attempt is one of the fresh replays, as in a rehearsal.
    Without `is_attempt_fresh`, only `fresh` contains fresh replays, because a fault of the attempt would seem to be
    noise. `is_noisy` means that earlier replays of the run have shown noise. `is_lost` means that values outside the
    checkpoint have changed. With `is_lost`, even a small difference from the witness proves a loss if the replays agree
    with each other. `unit` is the largest relative rounding of the number formats of the recipe. `unit` is needed
    because one of dozens of replays may round a value between two bf16 numbers differently. Four replays may not show
    this.
    """
    if is_lost:
        unit = UNIT  # The lost values are known, so the difference need not be explained by a rare rounding.
    replays = [attempt, *fresh] if is_attempt_fresh else list(fresh)
    known = [attempt, *fresh] if is_whole else list(fresh)
    if any(are_equal(one, other) for one, other in combinations(known, 2)) and not spread(replays):
        # The replays agree with each other. If they also agree with the witness up to a few units in the last place,
        # rounding differences are noise. If they do not, state is lost.
        usual = fresh[0]
        is_odd = not is_lost and (is_noisy or _begins_as_rounding(usual, witness))
        unit = unit if is_noisy else UNIT
        is_sound = are_equal(usual, witness) or (is_odd and bool(_rare(usual, witness, unit).floats))
        return _rare(usual, witness, unit) | _rare(usual, attempt, unit) if is_sound else NONE
    if len(replays) < 2 or _is_lost_alike(witness, [attempt, *fresh]):
        return NONE
    floats = _at_least(spread(replays), unit)
    is_far = _is_far(witness, replays, floats) or _is_far(witness, [attempt], floats)
    unlike = content_difference(replays)
    if unlike is not None:
        channel, step = unlike
        # If one replay has the content of the witness, the other replay has lost content.
        is_everywhere = all(content_difference([witness, replay]) for replay in replays)
        return Noise(unreproducible=_finding(channel, step)) if is_everywhere and not is_far else NONE
    weights = drift(replays, steps=_LIMITED_STEPS)
    too_large = _too_large(floats | ({"param_norm": weights} if weights else {}), witness, unit)
    if too_large is None:
        return Noise(floats)
    if is_far:
        return NONE
    return Noise(unreproducible=_finding(too_large, attempt[0].step if attempt else witness[0].step))


def noise_of_attempts(
    witness: Sequence[WitnessRow],
    attempt: Sequence[WitnessRow],
    earlier: Sequence[Sequence[WitnessRow]],
    *,
    is_lost: bool = False,
) -> Noise:
    """Return the noise between earlier attempts from the same checkpoint.

    The result is empty if there are no earlier attempts, or if all of them agree. The caller uses this function for a
    program or a recipe with several ranks, because no other process can replay their steps.
    """
    if not earlier:
        return NONE
    found = noise_of(witness, attempt, earlier, is_attempt_fresh=True, is_lost=is_lost)
    factor = 1.0 if len(earlier) + 1 >= REPLAYS else _OF_FEW
    return Noise({name: factor * value for name, value in found.floats.items()}, found.unreproducible)


def may_be_rare(
    witness: Sequence[WitnessRow],
    attempt: Sequence[WitnessRow],
    fresh: Sequence[Sequence[WitnessRow]],
    *,
    unit: float = UNIT,
) -> bool:
    """Whether the replays agree with each other and differ from the witness by at most rare noise.

    Two threads may add numbers in the same order hundreds of times, and then in another order. The caller of `noise_of`
    sets `is_noisy` if the recipe has kernels that add numbers in a varying order.
    """
    agreed = next((one for one, other in combinations([attempt, *fresh], 2) if are_equal(one, other)), None)
    return agreed is not None and not spread(fresh) and bool(_rare(agreed, witness, unit).floats)


def unreproducible_of(verdict: Verdict) -> Finding | None:
    """Return the verdict's finding that the recipe is not reproducible.

    Return None if the verdict has no finding about reproducibility.
    """
    names = (*CONTENT, *FLOATS, STATE)
    found = (each for each in verdict.findings if each.component == NOT_REPRODUCIBLE and kind_of(each.channel) in names)
    return next(found, None)


def known_noise(history: History, environment: Environment) -> Noise:
    """Return the noise that rehearsals and resumes of this run measured in an equal environment."""
    measured = [(entry.checkpoint, entry.verdict) for entry in history.drills]
    measured += [(entry.parent, entry.verdict) for entry in history.resumes]
    found = NONE
    for ref, verdict in measured:
        is_of_use = bool(verdict.noise) and verdict.kind is not VerdictKind.BROKEN and not verdict.environment_changes
        checkpoint = history.checkpoint(ref) if is_of_use else None
        if checkpoint is not None and not checkpoint.manifest.environment.differs_from(environment):
            found |= Noise(verdict.noise)
    return found


def tolerances(noise: Mapping[str, float], rows: Sequence[WitnessRow]) -> dict[str, float]:
    """Return the largest relative difference from `rows` that noise explains, by channel.

    The result is empty if there is no noise.
    """
    if not noise:
        return {}
    names = dict.fromkeys([*FLOATS, STATE, *noise])
    found = {name: max(_factor(name) * noise.get(name, 0.0), LEAST[kind_of(name)]) for name in names}
    return {name: max(min(value, MOST[kind_of(name)]), _rounding(name, rows)) for name, value in found.items()}


def rounding_of(values: Sequence[float | None]) -> float:
    """Return the relative change that rounding may cause in the given values.

    A loss or norm in bf16 has only eight significant bits.
    """
    used = [_significant_bits(value) for value in values if value is not None]
    bits = min(max([*used, _BFLOAT16_BITS] if used else [_FLOAT32_BITS]), _FLOAT32_BITS)
    units = _UNITS if bits > _FLOAT16_BITS else 1
    return float(units * 2.0 ** (1 - bits))


def in_words(noise: Mapping[str, float]) -> str:
    """Describe the noise in words."""
    parts = ", ".join(f"{name} {value:.1e}" for name, value in noise.items())
    return f"kernels are not deterministic: replays from one state may differ by up to {parts}"


def _at_least(floats: dict[str, float], unit: float) -> dict[str, float]:
    """Raise the noise to at least the effect of one rounding, if the number format is coarser than float32."""
    if not floats or unit <= UNIT:
        return floats
    names = dict.fromkeys([*floats, "loss", "grad_norm"])
    return {name: max(floats.get(name, 0.0), _coarse(name, unit) / _factor(name)) for name in names}


def _coarse(channel: str, unit: float) -> float:
    """Return the relative change of a channel by one rounding in a number format that is coarser than float32."""
    return unit * _COARSE_UNITS.get(kind_of(channel), 0.0) if unit > UNIT else 0.0


def _rare(usual: Sequence[WitnessRow], odd: Sequence[WitnessRow], unit: float) -> Noise:
    """Return the differences of the replay `odd` from the replay `usual`.

    Two processes computed the replay `usual`. The result is empty if the differences are larger than rounding errors.
    """
    away = differences(usual, odd)
    largest = {name: max(value, _coarse(name, unit)) for name, value in RARE.items()}
    is_tiny = all(value <= largest[kind_of(name)] for name, value in away.items())
    return Noise(away) if is_tiny and content_difference([usual, odd]) is None else NONE


def _is_far(
    witness: Sequence[WitnessRow], replays: Sequence[Sequence[WitnessRow]], floats: Mapping[str, float]
) -> bool:
    """Whether each replay differs more from the witness than the replays differ from each other."""
    away = [differences(witness, replay) for replay in replays]
    return any(min(each.get(name, 0.0) for each in away) > SAFETY_FACTOR * floats.get(name, 0.0) for name in FLOATS)


def _is_lost_alike(witness: Sequence[WitnessRow], replays: Sequence[Sequence[WitnessRow]]) -> bool:
    """Whether at some step all replays have the same content and the witness has different content."""
    for row in witness:
        made = [other for replay in replays for other in replay if other.step == row.step]
        for channel in (*CONTENT, STATE):
            is_alike = not any(is_other_content(channel, one, other) for one, other in combinations(made, 2))
            if len(made) > 1 and is_alike and is_other_content(channel, row, made[0]):
                return True
    return False


def _begins_as_rounding(one: Sequence[WitnessRow], other: Sequence[WitnessRow]) -> bool:
    """Whether the first difference is only a few units in the last place of a float.

    A difference of a few units does not show that state was lost.
    """
    for before, after in pairs_of(one, other):
        away = {name: relative(getattr(before, name), getattr(after, name)) for name in FLOATS}
        found = [value for value in away.values() if value is not None]
        if found:
            return all(value <= _rounding(name, [before, after]) for name, value in away.items() if value is not None)
    return False


def _finding(channel: str, step: int) -> Finding:
    what = _ADVICE.get(channel) or _OF_FLOATS.format(channel=channel)
    said, _, fix = what.partition(": ")
    sentence = f"the recipe is not reproducible: from the same checkpoint each process {said} (step {step}, {channel})"
    return Finding(component=NOT_REPRODUCIBLE, channel=channel, step=step, sentence=sentence, fix=fix)


def _too_large(floats: Mapping[str, float], rows: Sequence[WitnessRow], unit: float) -> str | None:
    return next((name for name, value in floats.items() if value > _bound(name, rows, unit)), None)


def _bound(channel: str, rows: Sequence[WitnessRow], unit: float) -> float:
    return max(LARGEST[kind_of(channel)], _rounding(channel, rows), _coarse(channel, unit))


def _factor(channel: str) -> float:
    return STATE_FACTOR if kind_of(channel) == STATE else SAFETY_FACTOR


def _rounding(channel: str, rows: Sequence[WitnessRow]) -> float:
    return rounding_of([getattr(row, channel) for row in rows] if channel in FLOATS else [])


def _significant_bits(value: float) -> int:
    if not math.isfinite(value) or not value:
        return 1
    mantissa = abs(value).as_integer_ratio()[0]
    return (mantissa // (mantissa & -mantissa)).bit_length()
