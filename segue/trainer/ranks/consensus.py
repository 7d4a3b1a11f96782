"""The consensus of ranks. Ranks vote at each safe point, and combine the results of each step. All functions are pure,
except the exchange."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import xxhash

from segue.errors import RankDriftError
from segue.records import StopReason
from segue.trainer.ranks.collectives import Ranks

_STOPS = (None, StopReason.FINISHED, StopReason.BOUND, StopReason.NOTICE)
_VOTE = struct.Struct("<B???16sd")
_SAME_RELATIVE = 1e-6


class StepNumbers(NamedTuple):
    """The numbers of one step, in full precision."""

    loss: float
    grad_norm: float | None
    """Norm of the gradients; None if it was not measured, which happens only with one rank."""
    param_norm: float | None
    lr: tuple[float, ...]
    loss_scale: float | None


class Vote(NamedTuple):
    """One rank's vote at a safe point. The result of all votes has the same type."""

    stop: StopReason | None = None
    save: bool = False
    is_busy: bool = False
    """Whether no staging buffer is free for a save."""
    waits: bool = False
    """Whether a save is waiting for a staging buffer and must be made at this step."""
    notice: tuple[str, float] | None = None
    """Kind of the notice, and the seconds until the preemption."""

    def pack(self) -> bytes:
        kind, seconds_left = self.notice or ("", 0.0)
        flags = self.save, self.is_busy, self.waits
        return _VOTE.pack(_STOPS.index(self.stop), *flags, kind.encode()[:16], seconds_left)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        stop, save, is_busy, waits, kind, seconds_left = _VOTE.unpack(data)
        name = kind.rstrip(b"\0").decode()
        return cls(_STOPS[stop], save, is_busy, waits, (name, seconds_left) if name else None)


def merged(votes: Sequence[Vote]) -> Vote:
    """Return the leader's vote, with two exceptions. If any rank has a notice, all ranks stop. If any rank is busy, the
    result is busy.

    If several ranks have a notice, the notice with the least time left counts.
    """
    leader = votes[0]
    notices = [vote.notice for vote in votes if vote.notice is not None]
    stop = leader.stop
    if stop is None and notices:
        stop = StopReason.NOTICE
    return Vote(
        stop=stop,
        save=leader.save and stop is None,
        is_busy=any(vote.is_busy for vote in votes),
        waits=leader.waits and stop is None,
        notice=min(notices, key=lambda notice: notice[1], default=None),
    )


def agree(ranks: Ranks, vote: Vote) -> Vote:
    """Exchange the votes of all ranks, and return the result. Every rank must call this function at every safe
    point."""
    if ranks.count == 1:
        return merged([vote])
    return merged([Vote.unpack(data) for data in ranks.gather(vote.pack())])


def combined(
    ranks: Ranks, outcome: StepNumbers, *, weight: float, fingerprints: Sequence[str]
) -> tuple[StepNumbers, tuple[str, ...]]:
    """Combine the numbers and fingerprints of all ranks into the numbers and fingerprints of the whole batch.

    The loss of a rank is the mean over the rank's share of the batch. The combined loss is the mean over the whole
    batch. The losses are summed in the order of the ranks, so that equal shares give equal bits.

    Raises:
        RankDriftError: gradients or weights differ between ranks after the step.
    """
    if ranks.count == 1:
        return outcome, tuple(fingerprints)
    packing = struct.Struct("<dddd" + "16s" * len(fingerprints))
    encoded = (each.encode() for each in fingerprints)
    own = packing.pack(outcome.loss, weight, outcome.grad_norm, outcome.param_norm, *encoded)
    shares = [packing.unpack(data) for data in ranks.gather(own)]
    _refuse_drift(shares)
    used = [share for share in shares if share[1]]
    whole = sum(share[0] * share[1] for share in used) / ranks.count
    return outcome._replace(loss=whole), tuple(map(_one_of, *(share[4:] for share in used)))


def _one_of(*fingerprints: bytes) -> str:
    """Combine several fingerprints into one; empty if there are none."""
    seen = b"".join(fingerprints)
    return xxhash.xxh3_64_hexdigest(seen) if any(seen) else ""


def _refuse_drift(shares: Sequence[tuple[Any, ...]]) -> None:
    for channel, at in (("gradient", 2), ("parameter", 3)):
        leads = shares[0][at]
        for rank, share in enumerate(shares):
            both_nan = math.isnan(leads) and math.isnan(share[at])
            if not both_nan and not math.isclose(leads, share[at], rel_tol=_SAME_RELATIVE):
                raise RankDriftError(rank=rank, channel=channel, here=share[at], leads=leads)
