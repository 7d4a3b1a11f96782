"""Defines limits for the numbers in a manifest.

Untrusted parties may write to the storage, and segue reads a manifest before segue verifies it. Saves and reads obey
the same limits.
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
"""Maximum number of bytes per tensor, component or shard file in the index, besides names, shapes and skeletons."""


def refuse_absurd(manifest: Manifest) -> None:
    """Check the numbers in a manifest before memory is allocated for them.

    Raises:
        MalformedCheckpointError: a number is larger than in any valid checkpoint.
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
    """Check, before any bytes are written, that the index of a state is small enough to be read back.

    Raises:
        StateTooLargeError: the index is too large.
    """
    # Names and shapes have the same size in the header of the shard file as in the index.
    rows_bytes = _ROW_BYTES * (len(skeletons) + len(shard_layout.placed)) + len(shard_layout.head)
    index_bytes = rows_bytes + sum(map(len, skeletons.values()))
    if index_bytes > MOST_INDEX_BYTES:
        what, fix = "bytes of the state outside its tensors", "store long lists of numbers as tensors or arrays."
        raise StateTooLargeError(what=what, found=index_bytes, most=MOST_INDEX_BYTES, fix=fix)


def refuse_larger_than_memory(shard: Shard) -> None:
    """Check that a shard, whose size was verified, fits into the memory of this machine.

    Raises:
        MachineTooSmallError: the shard does not fit into the memory. The checkpoint is not damaged, so it is not
            quarantined.
    """
    refuse_more_than(_machine_bytes(), shard.size_bytes, key=shard.key)


def refuse_more_than(memory_bytes: int | None, needed_bytes: int, *, key: str) -> None:
    """Check, before the read, that the needed bytes fit into the memory. A `memory_bytes` of None sets no extra limit.

    Without this check, the kernel would kill the process in each attempt, and no report would name the reason.

    Raises:
        MachineTooSmallError: the bytes do not fit into the memory limit.
    """
    memory_bytes = min(_machine_bytes(), memory_bytes) if memory_bytes is not None else _machine_bytes()
    if needed_bytes > memory_bytes:
        raise MachineTooSmallError(key=key, needed_bytes=needed_bytes, memory_bytes=memory_bytes)


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _malformed(key: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key=key, why=why)
