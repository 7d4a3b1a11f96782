"""What a manifest may claim: it comes from storage that others may write, and is read before anything is verified."""

from __future__ import annotations

import os

from segue.errors import MachineTooSmallError, MalformedCheckpointError
from segue.records import Manifest, Shard
from segue.stores.base import is_key

MOST_TENSORS = 1_000_000
MOST_SHARDS = 100_000
MOST_INDEX_BYTES = 2**30
CHUNK_RANGE_BYTES = (2**16, 2**30)


def refuse_absurd(manifest: Manifest) -> None:
    """Check a manifest's numbers before any memory is asked for on its word.

    Raises:
        MalformedCheckpointError: no checkpoint of this run on this machine can be like that.
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
            raise _malformed(shard.key, "has another number of checksums than chunks")
        if shard.key.endswith(".json") and shard.size_bytes > MOST_INDEX_BYTES:
            raise _malformed(shard.key, f"claims {shard.size_bytes} bytes, more than {MOST_INDEX_BYTES}")


def refuse_larger_than_memory(shard: Shard) -> None:
    """Check that a shard, which really has that size, can be read here at all.

    Raises:
        MachineTooSmallError: it cannot. The checkpoint is as whole as it was: it is not set aside.
    """
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if shard.size_bytes > memory_bytes:
        raise MachineTooSmallError(key=shard.key, needed_bytes=shard.size_bytes, memory_bytes=memory_bytes)


def _malformed(key: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key=key, why=why)
