"""Reads stored checkpoints as snapshots, and computes the digests that the live state of one rank must have.

A tensor that several ranks stored in slices is assembled to a whole tensor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch

from segue.checkpoints.format.digests import Digests, TensorDigest, owners
from segue.checkpoints.format.dtensor import partly_read, view_of_slice
from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.index import untrusted
from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.names import rank_of
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.format.state_tree import decode_tree
from segue.checkpoints.loading.live_digest import digest
from segue.checkpoints.loading.read import Stored, read_stored
from segue.errors import MalformedCheckpointError
from segue.records import Manifest
from segue.stores.base import Store


def read_checkpoint(store: Store, *, run_id: str, manifest: Manifest, fast: Store | None = None) -> Snapshot:
    """Return the verified snapshot of a manifest. The snapshot is read from `fast` if this store has a valid copy.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: the checkpoint cannot be
            used. The message gives the reason.
        StoreReadError: the store could not be read. The checkpoint may or may not be damaged.
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
    """Return the digests that the live state of this rank must have. Any number of ranks may have stored the state."""
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


_MOST_SLICES = 1024
"""Maximum number of slices of a tensor. No run has more ranks than this number."""

_Stored = tuple[TensorSlice, torch.Tensor]


def whole_tensors(tensors: Mapping[str, torch.Tensor], slices: Mapping[str, TensorSlice]) -> dict[str, torch.Tensor]:
    """Return all tensors by their names in the state, and assemble the tensors that were stored as slices.

    A slice on the meta device was not read. If a slice was not read, the result contains only the other slices of the
    tensor.

    Raises:
        MalformedCheckpointError: the slices of a tensor overlap, or do not cover the tensor.
    """
    found = {name: tensor for name, tensor in tensors.items() if name not in slices}
    stored: dict[str, list[_Stored]] = defaultdict(list)
    for name, tensor_slice in slices.items():
        if name not in tensors:
            raise _malformed(tensor_slice.tensor, f"its slice {name} is missing")
        stored[tensor_slice.tensor].append((tensor_slice, tensors[name]))
    for name, its_slices in stored.items():
        if name in found:
            raise _malformed(name, "it is stored both whole and in slices")
        found[name] = _assembled(name, its_slices)
    return found


def _assembled(name: str, stored: Sequence[_Stored]) -> torch.Tensor:
    if len(stored) > _MOST_SLICES:
        raise _malformed(name, f"it has {len(stored)} slices, more than {_MOST_SLICES}")
    shape, dtype = stored[0][0].shape, stored[0][1].dtype
    for tensor_slice, values in stored:
        if tensor_slice.shape != shape or values.dtype != dtype or values.dim() != len(shape):
            raise _malformed(name, "its slices disagree about the shape or type of the tensor")
        ends = zip(tensor_slice.offsets, values.shape, shape, strict=True)
        if any(start + length > size for start, length, size in ends):
            raise _malformed(name, "a slice lies outside the tensor")
    if sum(values.numel() for _, values in stored) != math.prod(shape) or any(
        _overlap(a, b) for a, b in combinations(stored, 2)
    ):
        raise _malformed(name, "its slices overlap or leave a gap")
    if any(values.is_meta for _, values in stored):
        # Other ranks have read the other slices.
        read = {tensor_slice.offsets: values for tensor_slice, values in stored if not values.is_meta}
        return partly_read(shape, dtype, read)
    whole = torch.empty(shape, dtype=dtype)
    for tensor_slice, values in stored:
        view_of_slice(whole, tensor_slice, tuple(values.shape)).copy_(values)
    return whole


def _overlap(one: _Stored, other: _Stored) -> bool:
    sides = zip(one[0].offsets, one[1].shape, other[0].offsets, other[1].shape, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in sides)


def _malformed(name: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key="manifest", why=f"tensor {name} cannot be assembled: {why}")
