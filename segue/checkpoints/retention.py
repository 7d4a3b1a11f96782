"""Selects the checkpoints to keep and the checkpoints to prune. The functions are pure."""

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
    """Return the log slots of the checkpoints to keep.

    The result has the newest `keep` checkpoints, the checkpoint with the best metric, and the last verified parent. The
    result also has the newest older checkpoint that shares no shard with the newest checkpoint. All quarantined
    checkpoints are kept as evidence. A verified parent is kept until a later parent is verified. If all later
    checkpoints are bad, this parent is the last good state.
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
    """Return the checkpoint with the best finite metric. Return None if no checkpoint has a finite metric."""
    rated = [(c.manifest.metric, c) for c in usable if c.manifest.metric is not None]
    sign = 1 if best == "min" else -1
    # Of equal metrics the newest checkpoint is chosen, because it was trained on more data.
    ranked = ((sign * metric, -c.ref.slot, c) for metric, c in rated if math.isfinite(metric))
    return min(ranked, key=lambda item: item[:2], default=(0, 0, None))[2]


def _independent_of_newest(usable: Sequence[Checkpoint]) -> frozenset[int]:
    """Return the slot of the newest older checkpoint that shares no shard with the newest checkpoint.

    A damaged shard damages all checkpoints that use the shard.
    """
    if not usable:
        return frozenset()
    needed = {shard.key for shard in usable[-1].manifest.shards}
    independent = [c.ref.slot for c in usable if needed.isdisjoint(shard.key for shard in c.manifest.shards)]
    return frozenset(independent[-1:])


def slots_to_prune(checkpoints: Sequence[Checkpoint], *, kept: Collection[int]) -> tuple[int, ...]:
    """Return the slots of all checkpoints to prune, the oldest checkpoint first."""
    return tuple(c.ref.slot for c in checkpoints if c.ref.slot not in kept and not c.is_pruned)
