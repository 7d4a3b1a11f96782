"""Computes the differences between two replays of the same steps, by channel. The module is pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from segue.records import StateMark, WitnessRow

CONTENT = ("batch_fingerprint", "streams", "input_fingerprint", "lr", "loss_scale")
"""Channels without rounding. A difference in one of these channels is never noise."""
FLOATS = ("loss", "grad_norm", "param_norm")
STATE = "state"
"""The channel name for the state after the last step of a witness.

The noise of the channel `state` is stored for each part of the state, e.g. `state.optimizer`.
"""


def spread(replays: Sequence[Sequence[WitnessRow]]) -> dict[str, float]:
    """Return the largest relative difference between any two replays, by channel. The result omits equal channels."""
    found: dict[str, float] = {}
    for one, other in combinations(replays, 2):
        for name, value in differences(one, other).items():
            found[name] = max(found.get(name, 0.0), value)
    return found


def differences(one: Sequence[WitnessRow], other: Sequence[WitnessRow]) -> dict[str, float]:
    """Return the largest relative difference between the rows of equal steps, by channel."""
    found: dict[str, float] = {}
    for before, after in pairs_of(one, other):
        values = [(name, relative(getattr(before, name), getattr(after, name))) for name in FLOATS]
        values += _of_states(before.state, after.state)
        for name, value in values:
            if value is not None:
                found[name] = max(found.get(name, 0.0), value)
    return found


def drift(replays: Sequence[Sequence[WitnessRow]], *, steps: int) -> float:
    """Return the largest relative difference between weights in each `steps` steps since the first step."""
    pairs = [pair for one, other in combinations(replays, 2) for pair in pairs_of(one, other)]
    before = min((row.step for row, _ in pairs), default=1) - 1
    away = ((row.step, relative(row.param_norm, other.param_norm) or 0.0) for row, other in pairs)
    return max((value / max((step - before) / steps, 1.0) for step, value in away), default=0.0)


def are_equal(one: Sequence[WitnessRow], other: Sequence[WitnessRow]) -> bool:
    """Whether the rows of equal steps are equal bit for bit."""
    return content_difference([one, other]) is None and not differences(one, other)


def content_difference(replays: Sequence[Sequence[WitnessRow]]) -> tuple[str, int] | None:
    """Return the channel and the first step in which the content of any two replays differs."""
    found = [
        (before.step, number, channel)
        for one, other in combinations(replays, 2)
        for before, after in pairs_of(one, other)
        for number, channel in enumerate((*CONTENT, STATE))
        if is_other_content(channel, before, after)
    ]
    if not found:
        return None
    step, _, channel = min(found)
    return channel, step


def is_other_content(channel: str, before: WitnessRow, after: WitnessRow) -> bool:
    """Whether two rows of one step differ in a channel without rounding, or in state values that are not floats."""
    one, other = getattr(before, channel), getattr(after, channel)
    if one is None or other is None:
        return False  # Not every row has this channel.
    if channel == STATE:
        return any(one[name].plain != other[name].plain for name in one if name in other)
    return bool(one != other)


def _of_states(
    one: Mapping[str, StateMark] | None, other: Mapping[str, StateMark] | None
) -> list[tuple[str, float | None]]:
    if one is None or other is None:
        return []
    names = [name for name in one if name in other and one[name].digest != other[name].digest]
    # Different values with equal norms differ too, although the relative difference of the norms is 0.
    return [(f"{STATE}.{name}", relative(one[name].norm or 0.0, other[name].norm or 0.0) or 0.0) for name in names]


def pairs_of(one: Sequence[WitnessRow], other: Sequence[WitnessRow]) -> list[tuple[WitnessRow, WitnessRow]]:
    """Return the pairs of rows with the same step."""
    rows = {row.step: row for row in other}
    return [(row, rows[row.step]) for row in one if row.step in rows]


def relative(before: float, after: float) -> float | None:
    """Return the relative difference of two numbers. Return None if the numbers are equal."""
    if before == after or (math.isnan(before) and math.isnan(after)):
        return None
    if not (math.isfinite(before) and math.isfinite(after)):
        return math.inf
    return abs(before - after) / max(abs(before), abs(after))


def kind_of(channel: str) -> str:
    """Return the channel name without the name of a part of the state."""
    return channel.partition(".")[0]
