"""A snapshot: all state at one safe point as a skeleton and tensors, with its digests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from segue.checkpoints.format.digests import Digests, TensorDigest, digests_of, hash_bytes, owners
from segue.checkpoints.format.dtensor import cut_out, is_sharded, local_part, slice_of
from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.state_tree import Json, decode_tree, encode_tree
from segue.checkpoints.loading.assemble import whole_tensors
from segue.checkpoints.loading.read import Stored, read_stored
from segue.checkpoints.saving.partition import slice_name
from segue.errors import MalformedCheckpointError
from segue.records import Manifest
from segue.stores.base import Store


@dataclass(frozen=True)
class Snapshot:
    """State as data. `tensors` are contiguous and on the CPU."""

    skeletons: dict[str, Json]
    tensors: dict[str, torch.Tensor]
    pieces: dict[str, TensorSlice] = field(default_factory=dict)
    """Those of the tensors that are parts of larger ones, the rest of which other ranks hold."""

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def take(components: Mapping[str, Any], *, copy: bool = True) -> Snapshot:
    """Copy the state trees of all components. Blocks for about one memory copy.

    With `copy=False` CPU tensors are the live ones: only for digests taken before anything moves on.

    Raises:
        UnsupportedStateError: a component holds something that is not data.
    """
    live: dict[str, torch.Tensor] = {}
    skeletons = {name: encode_tree(tree, path=name, tensors=live) for name, tree in components.items()}
    tensors, pieces = {}, {}
    for name, tensor in live.items():
        own_name = name
        if is_sharded(tensor):
            piece = slice_of(name, tensor)
            own_name = slice_name(piece)
            pieces[own_name] = piece
        tensors[own_name] = _on_cpu(local_part(tensor), copy=copy)
    return Snapshot(skeletons, tensors, pieces)


def digest(snapshot: Snapshot) -> Digests:
    """Digests of every tensor and of every component as a whole."""
    tensors = {
        name: TensorDigest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hash_bytes(raw_bytes(tensor)))
        for name, tensor in snapshot.tensors.items()
    }
    return digests_of(as_json(snapshot.skeletons), tensors)


def committed_as(live: Snapshot, stored: Snapshot) -> Digests:
    """What the live state of one rank should be, from a checkpoint that any number of ranks stored."""
    streams = ("rng.",)  # Each rank compares its own.
    names = [name for name in stored.skeletons if name in live.skeletons or not name.startswith(streams)]
    tensors = {}
    for name, tensor in live.tensors.items():
        piece = live.pieces.get(name)
        found = stored.tensors.get(piece.tensor if piece else name)
        if found is not None:
            tensors[name] = cut_out(found, piece, tuple(tensor.shape)).contiguous() if piece else found
    whole = {piece.tensor for piece in live.pieces.values()}
    absent = stored.tensors.keys() - tensors.keys() - whole
    owned = {name for name, owner in owners(stored.tensors, stored.skeletons) if owner in names}
    tensors |= {name: stored.tensors[name] for name in absent & owned}
    return digest(Snapshot({name: stored.skeletons[name] for name in names}, tensors))


def as_json(skeletons: Mapping[str, Json]) -> dict[str, bytes]:
    """Each component's skeleton, as it is stored and hashed."""
    return {name: json.dumps(skeleton).encode() for name, skeleton in skeletons.items()}


def read_checkpoint(store: Store, *, run_id: str, manifest: Manifest, fast: Store | None = None) -> Snapshot:
    """The snapshot that a manifest names, every byte of it verified; from `fast` where that has it whole.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: it cannot be used;
            names the damage.
        StoreReadError: the store could not be read; nothing is known about the checkpoint.
    """
    tiers = [store] if fast is None else [fast, store]
    return snapshot_of(read_stored(tiers, run_id=run_id, manifest=manifest))


@paused_collector()
def snapshot_of(stored: Stored) -> Snapshot:
    """Stored bytes as tensors, without a copy but of those that were stored in pieces.

    Raises:
        MalformedCheckpointError: the state refers to what is not there.
    """
    tensors = {
        name: torch.frombuffer(data, dtype=getattr(torch, placed.spec.dtype)).view(placed.spec.shape)
        if placed.size_bytes
        else torch.empty(placed.spec.shape, dtype=getattr(torch, placed.spec.dtype))
        for name, (placed, data) in stored.tensors.items()
    }
    tensors = whole_tensors(tensors, stored.pieces)
    try:
        for skeleton in stored.skeletons.values():
            decode_tree(skeleton, tensors)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MalformedCheckpointError(key="manifest", why=f"state cannot be decoded ({error!r})") from None
    return Snapshot(skeletons=stored.skeletons, tensors=tensors)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    flat = tensor.detach().reshape(-1)
    # A single element counts as contiguous with any stride, and has no bytes to view with any but one.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data


def _on_cpu(tensor: torch.Tensor, *, copy: bool) -> torch.Tensor:
    # memory_format: a channels-last tensor counts as contiguous in its own format, but its bytes
    # would then depend on strides that the shape does not tell.
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not copy:
        return tensor
    moved = tensor.to("cpu")
    if moved.is_contiguous() and moved.data_ptr() != tensor.data_ptr():
        return moved
    return moved.clone(memory_format=torch.contiguous_format)
