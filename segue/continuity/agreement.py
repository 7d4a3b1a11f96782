"""Compares a replayed step with its witness, channel by channel, bit for bit or within tolerances.

The module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from segue.continuity.differences import STATE
from segue.continuity.noise import rounding_of
from segue.records import StateMark

EXACT_CHANNELS = ("batch_fingerprint", "streams", "input_fingerprint", "lr", "loss_scale")
"""Channels whose values are equal on every machine, because they do not depend on the order of floating-point sums."""

TOLERANCES = {"loss": 1e-4, "grad_norm": 1e-3, "param_norm": 1e-3}
"""Largest relative difference per channel in a changed environment (fp32, at most 8 steps). See docs/continuity.md."""

STATE_TOLERANCE, _STATE_FLOOR = 5e-3, 1e-6
"""Largest relative difference between the norms of a part of the state after a replay in a changed environment."""

NO_TOLERANCES: Mapping[str, float] = MappingProxyType({})
"""The tolerances for deterministic kernels: no difference is allowed."""

FLOORS = {"loss": 1e-6, "grad_norm": 1e-6, "param_norm": 0.0}
"""Absolute differences below these values are treated as rounding errors.

For example, a loss near 0 may be a sum of larger terms with rounding errors.
"""


def compared_parts(before: dict[str, StateMark], after: dict[str, StateMark], *, exact: bool) -> list[str]:
    """Return the names of the parts of the state that both rows contain and that can be compared."""
    # The count of random numbers that a kernel draws depends on its instructions.
    return [name for name in before if name in after and (exact or not name.startswith("rng."))]


def is_same_part(name: str, before: StateMark, after: StateMark, *, exact: bool, allowed: Mapping[str, float]) -> bool:
    """Whether a part of the state is equal after the replay, up to the noise in `allowed`."""
    noise = allowed.get(f"{STATE}.{name}", allowed.get(STATE, 0.0))
    if before.digest == after.digest:
        return True
    if before.plain != after.plain or (exact and not noise):
        return False
    one, other = before.norm or 0.0, after.norm or 0.0
    if math.isclose(one, other, rel_tol=noise):
        return True
    return not exact and math.isclose(one, other, rel_tol=STATE_TOLERANCE, abs_tol=_STATE_FLOOR)


def agree(channel: str, before: object, after: object, *, exact: bool, allowed: Mapping[str, float]) -> bool:
    """Whether the values of a channel in two rows are equal, up to the noise in `allowed`.

    If `exact` is true, the noise in `allowed` is the only tolerance.
    """
    if channel in ("streams", "state") and (before is None or after is None):
        return True  # Not every row has this channel.
    if channel == "state":
        assert isinstance(before, dict)
        assert isinstance(after, dict)
        names = compared_parts(before, after, exact=exact)
        return all(is_same_part(name, before[name], after[name], exact=exact, allowed=allowed) for name in names)
    if channel in EXACT_CHANNELS or not isinstance(before, float) or not isinstance(after, float):
        return before == after
    if before == after or (math.isnan(before) and math.isnan(after)):
        return True
    if channel in allowed and math.isclose(before, after, rel_tol=allowed[channel]):
        return True
    if exact:
        return False
    # A norm of bf16 gradients is a bf16 number, and the distance between bf16 numbers is larger than the tolerance.
    tolerance = max(TOLERANCES[channel], rounding_of((before, after)))
    return math.isclose(before, after, rel_tol=tolerance, abs_tol=FLOORS[channel])
