"""What ranks agree on at a safe point, and what they put together after a step. Pure but for the gathering."""

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
_WORD = struct.Struct("<B??16sd")
_SHARE = struct.Struct("<dddd16s")
_SAME_RELATIVE = 1e-6


class Outcome(NamedTuple):
    """Numbers of one step, in full precision."""

    loss: float
    grad_norm: float
    param_norm: float
    lr: tuple[float, ...]
    loss_scale: float | None


class Word(NamedTuple):
    """What a rank has to say at a safe point; of all of them, what is to be done there."""

    stop: StopReason | None = None
    save: bool = False
    is_busy: bool = False
    """Whether there is no room for a save just now."""
    notice: tuple[str, float] | None = None
    """Its kind, and the seconds left."""

    def pack(self) -> bytes:
        kind, seconds_left = self.notice or ("", 0.0)
        return _WORD.pack(_STOPS.index(self.stop), self.save, self.is_busy, kind.encode()[:16], seconds_left)

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        stop, save, is_busy, kind, seconds_left = _WORD.unpack(data)
        name = kind.rstrip(b"\0").decode()
        return cls(_STOPS[stop], save, is_busy, (name, seconds_left) if name else None)


def merged(words: Sequence[Word]) -> Word:
    """One word for all: the leader's, but a notice at any rank stops all, and one without room keeps all from saving.

    Of several notices the one that leaves least time counts.
    """
    leader = words[0]
    notices = [word.notice for word in words if word.notice is not None]
    stop = leader.stop
    if stop is None and notices:
        stop = StopReason.NOTICE
    return Word(
        stop=stop,
        save=leader.save and stop is None,
        is_busy=any(word.is_busy for word in words),
        notice=min(notices, key=lambda notice: notice[1], default=None),
    )


def agree(ranks: Ranks, word: Word) -> Word:
    """The word of all ranks; every one must call it at every safe point."""
    return merged([Word.unpack(data) for data in ranks.gather(word.pack())])


def put_together(ranks: Ranks, outcome: Outcome, *, weight: float, fingerprint: str) -> tuple[Outcome, str]:
    """Outcome and input fingerprint of the whole batch, from those of each rank's part of it.

    The loss is the mean over the batch where each rank's is the mean over its part. Summed in the order of the ranks,
    so that the same parts give the same bits.

    Raises:
        RankDriftError: gradients or weights are not the same on all ranks after the step.
    """
    if ranks.count == 1:
        return outcome, fingerprint
    own = _SHARE.pack(outcome.loss, weight, outcome.grad_norm, outcome.param_norm, fingerprint.encode())
    parts = [_SHARE.unpack(data) for data in ranks.gather(own)]
    _refuse_drift(parts)
    whole = sum(part[0] * part[1] for part in parts if part[1]) / ranks.count
    seen = xxhash.xxh3_64()
    for part in parts:
        if part[1]:
            seen.update(part[4])
    return outcome._replace(loss=whole), seen.hexdigest()


def _refuse_drift(parts: Sequence[tuple[Any, ...]]) -> None:
    for channel, at in (("gradient", 2), ("parameter", 3)):
        leads = parts[0][at]
        for rank, part in enumerate(parts):
            both_nan = math.isnan(leads) and math.isnan(part[at])
            if not both_nan and not math.isclose(leads, part[at], rel_tol=_SAME_RELATIVE):
                raise RankDriftError(rank=rank, channel=channel, here=part[at], leads=leads)
