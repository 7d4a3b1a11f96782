"""Reads stored checkpoints as snapshots, and computes the digests that the live state of one rank must have."""

from __future__ import annotations

import torch

from segue.checkpoints.format.digests import Digests, TensorDigest, owners
from segue.checkpoints.format.dtensor import view_of_slice
from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.names import rank_of
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.format.untrusted import untrusted
from segue.checkpoints.loading.assemble import whole_tensors
from segue.checkpoints.loading.live_digest import digest
from segue.checkpoints.loading.read import Stored, read_stored
from segue.records import Manifest
from segue.stores.base import Store


def read_checkpoint(store: Store, *, run_id: str, manifest: Manifest, fast: Store | None = None) -> Snapshot:
    """Return the verified snapshot of a manifest. The snapshot is read from `fast` if this store has a valid copy.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: the checkpoint cannot be
            used. The message gives the reason.
        StoreReadError: the store could not be read. It is therefore not known whether the checkpoint is good.
    """
    tiers = [store] if fast is None else [fast, store]
    return snapshot_of(read_stored(tiers, run_id=run_id, manifest=manifest))


@paused_collector()
def snapshot_of(stored: Stored) -> Snapshot:
    """Return stored bytes as tensors. Only tensors that were stored in slices are copied.

    Raises:
        MalformedCheckpointError: the state refers to a missing tensor.
    """
    with untrusted("manifest", what="its state"):
        tensors = _tensors_of(stored)
    tensors = whole_tensors(tensors, stored.slices)
    with untrusted("manifest", what="its state"):
        for skeleton in stored.skeletons.values():
            decode_tree(skeleton, tensors)
    return Snapshot(skeletons=stored.skeletons, tensors=tensors)


def _tensors_of(stored: Stored) -> dict[str, torch.Tensor]:
    tensors = {
        name: torch.frombuffer(data, dtype=getattr(torch, placed.spec.dtype)).view(placed.spec.shape)
        if placed.size_bytes
        else torch.empty(placed.spec.shape, dtype=getattr(torch, placed.spec.dtype))
        for name, (placed, data) in stored.tensors.items()
    }
    return tensors | {
        name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
        for name, (dtype, shape, _) in stored.unread.items()
    }


def committed_as(live: Snapshot, stored: Snapshot) -> Digests:
    """Return the digests that the live state of this rank must have, from a checkpoint of any number of ranks."""
    # Each rank compares its own state. If the number of ranks changed, some ranks have no streams in the checkpoint.
    names = [
        name
        for name in stored.skeletons
        if name in live.skeletons or not (name.startswith("rng.") or rank_of(name, stored.skeletons) is not None)
    ]
    tensors = {}
    for name, tensor in live.tensors.items():
        live_slice = live.slices.get(name)
        found = stored.tensors.get(live_slice.tensor if live_slice else name)
        if found is not None and live_slice:
            tensors[name] = view_of_slice(found, live_slice, tuple(tensor.shape)).contiguous()
        elif found is not None:
            tensors[name] = found
    sliced = {live_slice.tensor for live_slice in live.slices.values()}
    absent = stored.tensors.keys() - tensors.keys() - sliced
    owned = {name for name, owner in owners(stored.tensors, stored.skeletons) if owner in names}
    tensors |= {name: stored.tensors[name] for name in absent & owned}
    unread = {name: tensor for name, tensor in tensors.items() if tensor.is_meta}
    known = {
        name: TensorDigest(str(t.dtype).removeprefix("torch."), tuple(t.shape), "not read")
        for name, t in unread.items()
    }
    return digest(Snapshot({name: stored.skeletons[name] for name in names}, tensors), known=known)
