"""Shards: a checkpoint's bytes in the store, checksummed by chunk when written, verified while read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import crc32c
import safetensors
import safetensors.torch
import torch

from segue import layout
from segue.checkpoints.codec import decode_tree
from segue.checkpoints.snapshot import Snapshot
from segue.errors import (
    BadKeyError,
    CorruptShardError,
    MalformedCheckpointError,
    MissingObjectError,
    MissingShardError,
    TruncatedShardError,
)
from segue.records import Manifest, Shard, TensorInfo
from segue.stores.base import Store, checked_key

CHUNK_BYTES = 8 * 2**20


def write_shards(store: Store, *, run_id: str, attempt_id: str, step: int, snapshot: Snapshot) -> tuple[Shard, ...]:
    """Make a snapshot durable under its attempt's folder and say where it lies.

    After a crash in between, the bytes lie there and nothing refers to them.

    Raises:
        StoreWriteError: the store did not take them; calling again is safe.
    """
    blobs = {
        layout.shard_name(attempt_id, step, 0): safetensors.torch.save(snapshot.tensors),
        layout.state_name(attempt_id, step, 0): json.dumps(snapshot.skeletons).encode(),
    }
    shards = []
    for name, blob in blobs.items():
        store.put(f"{run_id}/{name}", blob)
        shards.append(Shard(key=name, size_bytes=len(blob), chunk_bytes=CHUNK_BYTES, chunk_crc32c=checksums(blob)))
    return tuple(shards)


def checksums(blob: bytes) -> tuple[int, ...]:
    """crc32c of each chunk."""
    view = memoryview(blob)
    return tuple(crc32c.crc32c(view[start : start + CHUNK_BYTES]) for start in range(0, len(blob), CHUNK_BYTES))


def read_checkpoint(store: Store, *, run_id: str, manifest: Manifest) -> Snapshot:
    """The snapshot that a manifest names, every byte of it verified.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: it cannot be used;
            names the damage.
        StoreReadError: the store did not say; nothing is known about the checkpoint.
    """
    tensors: dict[str, torch.Tensor] = {}
    skeletons: dict[str, Any] = {}
    for shard in manifest.shards:
        blob = _read_verified(store, run_id, shard)
        try:
            if shard.key.endswith(".safetensors"):
                tensors |= safetensors.torch.load(blob)
            else:
                skeletons |= json.loads(blob)
        except (safetensors.SafetensorError, ValueError, TypeError, RecursionError) as error:
            raise MalformedCheckpointError(key=shard.key, why=f"cannot be parsed ({error})") from None
    _check_tensors(tensors, manifest.tensors, key=manifest.shards[0].key if manifest.shards else "manifest")
    if skeletons.keys() != manifest.components.keys():
        odd = sorted(skeletons.keys() ^ manifest.components.keys())
        raise MalformedCheckpointError(key="manifest", why=f"components differ from the stored state's: {odd}")
    try:
        for skeleton in skeletons.values():
            decode_tree(skeleton, tensors)
    except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise MalformedCheckpointError(key="manifest", why=f"state cannot be decoded ({error!r})") from None
    return Snapshot(skeletons=skeletons, tensors=tensors)


def _read_verified(store: Store, run_id: str, shard: Shard) -> bytes:
    try:
        key = checked_key(f"{run_id}/{shard.key}")
    except BadKeyError:
        raise MalformedCheckpointError(key=shard.key, why="points outside the run's folder") from None
    if len(shard.chunk_crc32c) != -(-shard.size_bytes // shard.chunk_bytes):
        raise MalformedCheckpointError(key=shard.key, why="has another number of checksums than chunks")
    try:
        found_bytes = store.size(key)
        if found_bytes != shard.size_bytes:
            raise TruncatedShardError(key=shard.key, expected_bytes=shard.size_bytes, found_bytes=found_bytes)
        blob = bytearray(shard.size_bytes)
        for number, start in enumerate(range(0, shard.size_bytes, shard.chunk_bytes)):
            chunk = store.get_range(key, start, min(shard.chunk_bytes, shard.size_bytes - start))
            found = crc32c.crc32c(chunk)
            if found != shard.chunk_crc32c[number]:
                expected = shard.chunk_crc32c[number]
                raise CorruptShardError(key=shard.key, chunk=number, expected=expected, found=found)
            blob[start : start + len(chunk)] = chunk
    except MissingObjectError:
        raise MissingShardError(key=shard.key) from None
    return bytes(blob)


def _check_tensors(found: Mapping[str, torch.Tensor], expected: Mapping[str, TensorInfo], *, key: str) -> None:
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())[:3]
        raise MalformedCheckpointError(key=key, why=f"tensors differ from the manifest's, e.g. {odd}")
    for name, tensor in found.items():
        info = expected[name]
        if (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) != (info.dtype, info.shape):
            raise MalformedCheckpointError(key=key, why=f"tensor {name} is not the manifest's {info.dtype}{info.shape}")
