"""Retention: which checkpoints to keep and which to prune. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Literal

from segue.records import CheckpointRef
from segue.runlog.history import Checkpoint


def slots_to_keep(
    checkpoints: Sequence[Checkpoint],
    *,
    keep: int,
    best: Literal["min", "max"],
    verified_parents: Sequence[CheckpointRef],
) -> frozenset[int]:
    """Log slots to keep: the newest `keep`, the best by metric, the last verified parent, the newest independent one.

    Quarantined checkpoints are evidence and always kept. A verified parent is kept until a later one is verified: if
    all checkpoints after the parent prove bad, the parent is the last state known to be good.
    """
    usable = [c for c in checkpoints if c.quarantined is None and not c.is_pruned]
    kept = {checkpoint.ref.slot for checkpoint in usable[-keep:]}
    kept |= {checkpoint.ref.slot for checkpoint in checkpoints if checkpoint.quarantined is not None}
    winner = best_of(usable, best)
    if winner is not None:
        kept.add(winner.ref.slot)
    kept |= _independent_of_newest(usable)
    if verified_parents:
        kept.add(verified_parents[-1].slot)
    return frozenset(kept)


def best_of(usable: Sequence[Checkpoint], best: Literal["min", "max"]) -> Checkpoint | None:
    """The checkpoint with the best finite metric; None if none has one."""
    rated = [(c.manifest.metric, c) for c in usable if c.manifest.metric is not None]
    sign = 1 if best == "min" else -1
    # On a tie the newest wins: it has seen more data.
    ranked = ((sign * metric, -c.ref.slot, c) for metric, c in rated if math.isfinite(metric))
    return min(ranked, key=lambda item: item[:2], default=(0, 0, None))[2]


def _independent_of_newest(usable: Sequence[Checkpoint]) -> frozenset[int]:
    """The newest that shares no shard with the very newest: a bad byte damages all checkpoints with its shard."""
    if not usable:
        return frozenset()
    needed = {shard.key for shard in usable[-1].manifest.shards}
    independent = [c.ref.slot for c in usable if needed.isdisjoint(shard.key for shard in c.manifest.shards)]
    return frozenset(independent[-1:])


def slots_to_prune(checkpoints: Sequence[Checkpoint], *, kept: Collection[int]) -> tuple[int, ...]:
    """The slots of the other checkpoints, oldest first."""
    return tuple(c.ref.slot for c in checkpoints if c.ref.slot not in kept and not c.is_pruned)
