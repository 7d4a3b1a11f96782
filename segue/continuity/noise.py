"""Kernels that are not deterministic: how much replays from one state differ, and what that means. Pure.

A replay that differs from its witness proves a loss of state only if replays agree among themselves. Fresh processes
therefore replay the same steps from the same checkpoint, and the differences between them are the noise of the recipe.
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
    is_other_content,
    kind_of,
    pairs_of,
    relative,
    spread,
)
from segue.records import Environment, Finding, Verdict, VerdictKind, WitnessRow
from segue.runlog.history import History

REPLAYS = 4
"""Replays from which noise is measured. Two are too few: in 162,000 comparisons of simulated replays a further replay
differed by up to 29 times the difference between two replays, and by at most 8 times the largest difference among
four."""
_OF_FEW = 3.0
"""Multiple of a difference that fewer replays show: a third replay differed by up to 29 times as much as those two."""
SAFETY_FACTOR = 10.0
"""Tolerance of a channel, as a multiple of the largest difference among the replays."""
STATE_FACTOR = 30.0
"""The same multiple for parts of the state: they are compared after one step of a window, so their noise is less
known."""

LARGEST = {"loss": 5e-3, "grad_norm": 5e-2, "param_norm": 1e-3, STATE: 5e-2}
"""Largest relative difference between two replays that may come from kernels: some units of bf16. Above it, the recipe
itself draws, reads or computes something different in each process."""
RARE = {"loss": 1e-5, "grad_norm": 1e-4, "param_norm": 1e-3, STATE: 1e-3}
"""The same limit for one replay that differs while two others agree. Weights differ by more than losses: an optimizer
that divides by the size of gradients makes whole steps from gradients that are only rounding, as before a BatchNorm."""

LEAST = {"loss": 1e-6, "grad_norm": 1e-5, "param_norm": 1e-4, STATE: 1e-4}
"""Smallest tolerances of a recipe that is known to have noise: some channels may not have shown their noise yet."""

MOST = {"loss": 5e-2, "grad_norm": 0.5, "param_norm": 1e-2, STATE: 0.5}
"""Largest tolerances."""

UNIT = 2.0**-23
"""Distance of 1 to the next number of float32; of bf16 it is 2**-7, of float16 and TF32 2**-10."""
_COARSE_UNITS = {"loss": 2.0, "grad_norm": 4.0, STATE: 0.125}
"""By how many units of a coarse format one rounding may change a value. A loss near its minimum, and its gradient, are
differences of larger terms. A value that is kept of a batch, such as its mean, differs by a part of a unit."""

_UNITS = 4
"""Differences up to so many units in the last place of float32 are rounding, once a recipe is known to have noise. For
a coarser type, it is one unit."""
_BFLOAT16_BITS, _FLOAT16_BITS, _FLOAT32_BITS = 8, 11, 24

FIX = "set deterministic = true in the run spec, if every resume must be equal bit for bit"
NOT_REPRODUCIBLE = "recipe"
"""The component of everything that a recipe does differently each time."""

_ADVICE = {
    "batch_fingerprint": "draws other samples: seed its sampler or shuffle in build, from the config",
    "streams": "leaves the random streams elsewhere: let build and the data set draw the same numbers each time",
    "input_fingerprint": "gets a batch with other content: seed the generator of the data set in build, and leave "
    "times, process ids and other values of the process out of the batch",
    "lr": "has another learning rate: compute it from the step, not from the time",
    "loss_scale": "has another loss scale: let the loss depend on the batch and the streams of torch alone",
}
_OF_FLOATS = (
    "computes another {channel}: seed generators of the recipe's own (dropout, noise, augmentation) in build, and add "
    "them to Recipe.extra"
)


@dataclass(frozen=True)
class Noise:
    """The known differences between replays from one state."""

    floats: Mapping[str, float] = field(default_factory=dict)
    """Largest relative difference by channel; empty: none was seen."""
    unreproducible: Finding | None = None
    """The part of the recipe that two fresh processes do differently, if the difference is more than rounding."""

    def __or__(self, other: Noise) -> Noise:
        names = dict.fromkeys([*self.floats, *other.floats])
        floats = {name: max(self.floats.get(name, 0.0), other.floats.get(name, 0.0)) for name in names}
        return Noise(floats, self.unreproducible or other.unreproducible)


NONE = Noise()


def needs_more(
    fresh: Sequence[Sequence[WitnessRow]], *, attempt: Sequence[WitnessRow] | None, is_attempt_fresh: bool = False
) -> bool:
    """Whether another fresh process would show more: not once two replays are equal, and only up to a limit."""
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
    """The noise that explains why `attempt` differs from its witness; empty if the difference is a loss of state.

    `fresh` are replays of the same steps by fresh processes. With `is_attempt_fresh`, the attempt's replay is one of
    them, as in a rehearsal. The replay of an attempt that trains does not count: a fault of that attempt would be taken
    for noise. With `is_noisy`, earlier replays of the run have shown noise; with `is_lost`, values outside the
    checkpoint have changed, so that replays that agree with each other but not with the witness prove a loss, however
    small. `unit` is the largest relative rounding of the formats that the recipe computes in: a value at the edge of
    two numbers of bf16 falls to another side in one of dozens of replays, so four replays do not show how far that
    goes.
    """
    if is_lost:
        unit = UNIT  # The lost values are known; a rare rounding need not explain the difference.
    replays = [attempt, *fresh] if is_attempt_fresh else list(fresh)
    known = [attempt, *fresh] if is_whole else list(fresh)
    if any(are_equal(one, other) for one, other in combinations(known, 2)) and not spread(replays):
        # The replays agree with each other. If they agree with the witness, up to a few units in the last place, then
        # differences by rounding are noise; otherwise state is lost.
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
        # If a replay has the content of the witness, the other replay has lost it.
        is_everywhere = all(content_difference([witness, replay]) for replay in replays)
        return Noise(unreproducible=_finding(channel, step)) if is_everywhere and not is_far else NONE
    too_large = _too_large(floats, witness, unit)
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
    """The noise that earlier attempts from the same checkpoint show, if no other process can replay, as for a program
    or several ranks. Empty without an earlier attempt, or if all agree."""
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
    """Whether replays agree on values that are no further from the witness than rare noise.

    Two threads may add in the same order hundreds of times. Then only one fact distinguishes a loss from noise: whether
    the recipe has such kernels. If it has, the caller sets `is_noisy`.
    """
    agreed = next((one for one, other in combinations([attempt, *fresh], 2) if are_equal(one, other)), None)
    return agreed is not None and not spread(fresh) and bool(_rare(agreed, witness, unit).floats)


def unreproducible_of(verdict: Verdict) -> Finding | None:
    """The part of the recipe that each process does differently, by a verdict; None if the verdict found none."""
    names = (*CONTENT, *FLOATS, STATE)
    found = (each for each in verdict.findings if each.component == NOT_REPRODUCIBLE and kind_of(each.channel) in names)
    return next(found, None)


def known_noise(history: History, environment: Environment) -> Noise:
    """The noise that rehearsals and resumes of this run measured in an environment equal to this one."""
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
    """The largest relative difference from `rows` that noise explains, by channel; empty without noise."""
    if not noise:
        return {}
    names = dict.fromkeys([*FLOATS, STATE, *noise])
    found = {name: max(_factor(name) * noise.get(name, 0.0), LEAST[kind_of(name)]) for name in names}
    return {name: max(min(value, MOST[kind_of(name)]), _rounding(name, rows)) for name, value in found.items()}


def rounding_of(values: Sequence[float | None]) -> float:
    """The relative change of these values that rounding may cause: a loss or norm in bf16 has only eight bits."""
    used = [_significant_bits(value) for value in values if value is not None]
    bits = min(max([*used, _BFLOAT16_BITS] if used else [_FLOAT32_BITS]), _FLOAT32_BITS)
    units = _UNITS if bits > _FLOAT16_BITS else 1
    return float(units * 2.0 ** (1 - bits))


def in_words(noise: Mapping[str, float]) -> str:
    """The noise in words, for a person."""
    parts = ", ".join(f"{name} {value:.1e}" for name, value in noise.items())
    return f"kernels are not deterministic: replays from one state may differ by up to {parts}"


def _at_least(floats: dict[str, float], unit: float) -> dict[str, float]:
    """The noise of a recipe that computes in a coarser format than float32: at least the effect of one rounding."""
    if not floats or unit <= UNIT:
        return floats
    names = dict.fromkeys([*floats, "loss", "grad_norm"])
    return {name: max(floats.get(name, 0.0), _coarse(name, unit) / _factor(name)) for name in names}


def _coarse(channel: str, unit: float) -> float:
    """The relative change that one rounding may cause, if the format is coarser than float32."""
    return unit * _COARSE_UNITS.get(kind_of(channel), 0.0) if unit > UNIT else 0.0


def _rare(usual: Sequence[WitnessRow], odd: Sequence[WitnessRow], unit: float) -> Noise:
    """The differences of one window from another on which two processes agree; empty if they are more than rounding."""
    away = differences(usual, odd)
    largest = {name: max(value, _coarse(name, unit)) for name, value in RARE.items()}
    is_tiny = all(value <= largest[kind_of(name)] for name, value in away.items())
    return Noise(away) if is_tiny and content_difference([usual, odd]) is None else NONE


def _is_far(
    witness: Sequence[WitnessRow], replays: Sequence[Sequence[WitnessRow]], floats: Mapping[str, float]
) -> bool:
    """Whether even the closest replay differs more from the witness than replays differ from each other."""
    away = [differences(witness, replay) for replay in replays]
    return any(min(each.get(name, 0.0) for each in away) > SAFETY_FACTOR * floats.get(name, 0.0) for name in FLOATS)


def _is_lost_alike(witness: Sequence[WitnessRow], replays: Sequence[Sequence[WitnessRow]]) -> bool:
    """Whether all replays have the same content at some step, and the witness has other content there."""
    for row in witness:
        made = [other for replay in replays for other in replay if other.step == row.step]
        for channel in (*CONTENT, STATE):
            is_alike = not any(is_other_content(channel, one, other) for one, other in combinations(made, 2))
            if len(made) > 1 and is_alike and is_other_content(channel, row, made[0]):
                return True
    return False


def _begins_as_rounding(one: Sequence[WitnessRow], other: Sequence[WitnessRow]) -> bool:
    """Whether the first difference is in a float, by some units in its last place: no loss of state begins so."""
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
