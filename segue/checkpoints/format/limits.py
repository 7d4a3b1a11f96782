"""Limits of a manifest: it comes from storage that others may write, and is read before anything is verified.

Saves keep to the same limits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from segue.checkpoints.format.layout import MOST_TENSORS, ShardLayout
from segue.errors import MachineTooSmallError, MalformedCheckpointError, StateTooLargeError
from segue.records import Manifest
from segue.shard import Shard
from segue.stores.base import is_key

MOST_SHARDS = 100_000
MOST_INDEX_BYTES = 2**30
CHUNK_RANGE_BYTES = (2**16, 2**30)
_ROW_BYTES = 128
"""Most bytes that a tensor, component or shard file adds to the index besides names, shapes and skeletons."""


def refuse_absurd(manifest: Manifest) -> None:
    """Check a manifest's numbers before they decide how much memory is allocated.

    Raises:
        MalformedCheckpointError: no checkpoint can have such numbers.
    """
    if manifest.tensor_count > MOST_TENSORS:
        raise _malformed("manifest", f"claims {manifest.tensor_count} tensors, more than {MOST_TENSORS}")
    if len(manifest.shards) > MOST_SHARDS:
        raise _malformed("manifest", f"claims {len(manifest.shards)} shards, more than {MOST_SHARDS}")
    low, high = CHUNK_RANGE_BYTES
    for shard in manifest.shards:
        if not is_key(shard.key):
            raise _malformed(shard.key, "points outside the run's folder")
        if not low <= shard.chunk_bytes <= high:
            raise _malformed(shard.key, f"claims chunks of {shard.chunk_bytes} bytes, not {low} to {high}")
        if len(shard.chunk_crc32c) != -(-shard.size_bytes // shard.chunk_bytes):
            raise _malformed(shard.key, "has a different number of checksums than chunks")
        if shard.chunk_sha256 and len(shard.chunk_sha256) != len(shard.chunk_crc32c):
            raise _malformed(shard.key, "has a different number of hashes than chunks")
        if shard.key.endswith(".json") and shard.size_bytes > MOST_INDEX_BYTES:
            raise _malformed(shard.key, f"claims {shard.size_bytes} bytes, more than {MOST_INDEX_BYTES}")


def refuse_too_large_index(skeletons: Mapping[str, bytes], shard_layout: ShardLayout) -> None:
    """Check that a state's index can be read back, before anything is written.

    Raises:
        StateTooLargeError: the index cannot be read back.
    """
    # Names and shapes take the same space in the shard file's header as in the index.
    rows_bytes = _ROW_BYTES * (len(skeletons) + len(shard_layout.placed)) + len(shard_layout.head)
    index_bytes = rows_bytes + sum(map(len, skeletons.values()))
    if index_bytes > MOST_INDEX_BYTES:
        what, fix = "bytes of the state outside its tensors", "keep long lists of numbers as tensors or arrays."
        raise StateTooLargeError(what=what, found=index_bytes, most=MOST_INDEX_BYTES, fix=fix)


def refuse_larger_than_memory(shard: Shard) -> None:
    """Check that a shard of this verified size fits into this machine's memory.

    Raises:
        MachineTooSmallError: the shard does not fit. The checkpoint is sound, so it is not quarantined.
    """
    refuse_more_than(_machine_bytes(), shard.size_bytes, key=shard.key)


def refuse_more_than(memory_bytes: int | None, needed_bytes: int, *, key: str) -> None:
    """Check, before a byte is read, that the bytes to be read fit into a memory limit; None means no limit.

    A process that exceeds the limit is killed by the kernel, attempt after attempt, and nobody learns why.

    Raises:
        MachineTooSmallError: the bytes do not fit.
    """
    memory_bytes = min(_machine_bytes(), memory_bytes) if memory_bytes is not None else _machine_bytes()
    if needed_bytes > memory_bytes:
        raise MachineTooSmallError(key=key, needed_bytes=needed_bytes, memory_bytes=memory_bytes)


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _malformed(key: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key=key, why=why)
