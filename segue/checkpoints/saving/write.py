"""Writes shards to the stores, with a checksum for each chunk. The module `loading.read` verifies the checksums.

Each rank writes one shard file and one index. The shard file contains the tensors. The index contains the rest of the
state, and the type, shape and digest of each tensor. This module does not import torch, because the writer process runs
it.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import crc32c
import xxhash

from segue.checkpoints.format.digests import Digests, TensorDigest, digests_of, hash_bytes
from segue.checkpoints.format.index import Base
from segue.checkpoints.format.layout import ShardLayout, TensorSlice, layout_of
from segue.checkpoints.saving.tracing import span
from segue.checkpoints.saving.written import PreparedCommit, Save, Written
from segue.runlog import keys
from segue.shard import Shard
from segue.stores.base import Store, StoreWriteError
from segue.stores.direct_io import page_buffer

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 2**20
_PIECE_BYTES = 256 * 2**10
"""Number of bytes that are hashed and then summed while they are in the cache of the processor."""


def write_checkpoint(
    tiers: Sequence[Store],
    save: Save,
    *,
    shard_file: memoryview,
    shard_layout: ShardLayout,
    skeletons: Mapping[str, bytes],
    base: Base | None = None,
    rank: int = 0,
    try_number: int = 1,
    partition_hash: str = "",
) -> tuple[Written, Base]:
    """Write a staged state to the folder of its attempt. Return the values for a manifest, and a base for later saves.

    The last store in `tiers` is the durable store. The earlier stores in `tiers` are faster. If a write to an earlier
    store fails, the failure is logged, and the save continues. `skeletons` contains JSON. `try_number` is the number of
    writer processes that have tried this save. If `base` is given, the save does not write unchanged tensors again, but
    refers to these tensors in the base. The returned base may be used after this save is committed. If `save.facts` is
    not empty, the prepared commit is stored last. After a crash before the prepared commit, the bytes are in the store,
    but no record refers to them.

    Raises:
        StoreWriteError: the durable store could not be written. It is safe to call the function again.
    """
    where = save.attempt_id, save.step, rank
    shard_name = keys.shard_name(*where, try_number=try_number)
    with ThreadPoolExecutor(1, thread_name_prefix="segue-digest") as hasher:
        # Hashing runs in parallel with the write of the shard file, which takes longer.
        hashing = hasher.submit(_digests, shard_file, shard_layout, skeletons, is_whole=base is None)
        same: frozenset[str] = frozenset()
        if base is not None:
            same = unchanged_since(base, hashing.result()[0].tensors, shard_layout)
        if same:
            shard_file, _ = without(same, shard_file, shard_layout)

        def describe() -> tuple[Digests, Shard, dict[str, Shard], memoryview]:
            digests, sums = hashing.result()
            own = _shard(shard_name, shard_file, sums, is_signed=save.is_signed)
            homes = {n: base.homes[n] if base is not None and n in same else own for n in digests.tensors}
            index = _index(skeletons, digests, homes=homes, own=own, slices=shard_layout.slices)
            return digests, own, homes, memoryview(index)

        describing = hasher.submit(describe)
        _put(tiers, f"{save.run_id}/{shard_name}", shard_file)
        digests, own, homes, index = describing.result()
    index_name = keys.state_name(*where, try_number=try_number)
    _put(tiers, f"{save.run_id}/{index_name}", index)
    shards = (own, _shard(index_name, index, is_signed=save.is_signed))
    earlier = {shard.key: shard for shard in homes.values() if shard is not own}
    since_full = base.saves_since_full + 1 if base is not None and same else 0
    written = Written(
        shards=(*shards, *earlier.values()),
        components=dict(digests.components),
        tensor_count=len(digests.tensors),
        new_bytes=sum(shard.size_bytes for shard in shards),
        saves_since_full=since_full,
    )
    if save.facts:
        prepared = PreparedCommit(save.facts, written, partition_hash)
        tiers[-1].put(f"{save.run_id}/{keys.prepared_name(*where)}", prepared.encode())
    return written, Base(digests.tensors, homes, since_full)


def checksums(blob: bytes | memoryview) -> tuple[int, ...]:
    """Return the crc32c checksum of each chunk."""
    return _Checksums(memoryview(blob)).whole()


def hashes(blob: memoryview) -> tuple[str, ...]:
    """Return the SHA-256 of each chunk."""
    starts = range(0, len(blob), CHUNK_BYTES)
    return tuple(hashlib.sha256(blob[start : start + CHUNK_BYTES]).hexdigest() for start in starts)


def _put(tiers: Sequence[Store], key: str, data: memoryview) -> None:
    for store in tiers[:-1]:
        try:
            store.put(key, data)
        except StoreWriteError as error:
            log.warning("fast folder skipped for this save reason=%s", error)
    with span("put", bytes=len(data)):
        tiers[-1].put(key, data)


def _digests(
    shard_file: memoryview, shard_layout: ShardLayout, skeletons: Mapping[str, bytes], *, is_whole: bool
) -> tuple[Digests, tuple[int, ...] | None]:
    """Return the digests of the state and, if the whole state is stored, the checksums of the chunks.

    Both are computed in one pass, because a second pass would read all bytes from memory again.
    """
    summed = _Checksums(shard_file) if is_whole else None
    with span("hash", bytes=len(shard_file)):
        tensors = {
            name: TensorDigest(*spec, _hash(shard_file[start : start + size_bytes], start, summed))
            for name, (spec, start, size_bytes) in shard_layout.placed.items()
        }
    return digests_of(skeletons, tensors), None if summed is None else summed.whole()


def _hash(data: memoryview, start: int, summed: _Checksums | None) -> str:
    if summed is None or len(data) <= _PIECE_BYTES:
        digest = hash_bytes(data)
        if summed is not None and start + len(data) - summed.position >= _PIECE_BYTES:
            summed.up_to(start + len(data))
        return digest
    hasher = xxhash.xxh3_128()
    for piece in range(0, len(data), _PIECE_BYTES):
        view = data[piece : piece + _PIECE_BYTES]
        hasher.update(view)
        summed.up_to(start + piece + len(view))
    return str(hasher.hexdigest())


class _Checksums:
    """The crc32c checksums of the chunks of a blob, from its start up to a position that only grows."""

    def __init__(self, blob: memoryview) -> None:
        self._blob, self.position = blob, 0
        self._found: list[int] = []

    def up_to(self, stop: int) -> None:
        while self.position < stop:
            start = self.position
            end = min(stop, start - start % CHUNK_BYTES + CHUNK_BYTES)
            before = self._found.pop() if start % CHUNK_BYTES else 0
            self._found.append(crc32c.crc32c(self._blob[start:end], before))
            self.position = end

    def whole(self) -> tuple[int, ...]:
        self.up_to(len(self._blob))
        return tuple(self._found)


def _index(
    skeletons: Mapping[str, bytes],
    digests: Digests,
    *,
    homes: Mapping[str, Shard],
    own: Shard,
    slices: Mapping[str, TensorSlice],
) -> bytes:
    keys_of_files = dict.fromkeys([own.key, *(shard.key for shard in homes.values())])
    numbers = {key: number for number, key in enumerate(keys_of_files)}
    rows = {name: (*digest, numbers[homes[name].key]) for name, digest in digests.tensors.items()}
    states = b",".join(json.dumps(name).encode() + b":" + skeleton for name, skeleton in skeletons.items())
    content = {"images": list(numbers), "tensors": rows} | ({"pieces": slices} if slices else {})
    lists = json.dumps(content, separators=(",", ":")).encode()
    return b'{"skeletons":{' + states + b"}," + lists[1:]


def _shard(name: str, blob: memoryview, sums: tuple[int, ...] | None = None, *, is_signed: bool) -> Shard:
    sums = checksums(blob) if sums is None else sums
    sha256 = hashes(blob) if is_signed else ()
    return Shard(key=name, size_bytes=len(blob), chunk_bytes=CHUNK_BYTES, chunk_crc32c=sums, chunk_sha256=sha256)


_MOST_KEPT = 2
_WORTH_SHARE = 0.9
"""If at least this share of bytes has changed, a save stores all tensors, so that it needs no earlier shard file."""


class Bases:
    """The newest saves by step. A later save can refer only to these saves."""

    def __init__(self) -> None:
        self._kept: dict[int, Base] = {}

    def keep(self, step: int, base: Base) -> None:
        self._kept.pop(step, None)
        self._kept[step] = base
        for oldest in list(self._kept)[:-_MOST_KEPT]:
            del self._kept[oldest]

    def get(self, step: int | None) -> Base | None:
        """Return the base of this step. Return None if `step` is None or unknown; the save is then a full save."""
        return None if step is None else self._kept.get(step)


def unchanged_since(base: Base, tensors: Mapping[str, TensorDigest], shard_layout: ShardLayout) -> frozenset[str]:
    """Return the tensors that need not be stored again. Return none if this would save too few bytes."""
    same = frozenset(name for name, digest in tensors.items() if base.tensors.get(name) == digest)
    same_bytes = sum(shard_layout.placed[name].size_bytes for name in same)
    total_bytes = sum(placed.size_bytes for placed in shard_layout.placed.values())
    return same if total_bytes - same_bytes < _WORTH_SHARE * total_bytes else frozenset()


def without(names: frozenset[str], shard_file: memoryview, shard_layout: ShardLayout) -> tuple[memoryview, ShardLayout]:
    """Return a copy of the shard file without the tensors in `names`, and the layout of the copy."""
    kept = {name: placed for name, placed in shard_layout.placed.items() if name not in names}
    thin_layout = layout_of({name: placed.spec for name, placed in kept.items()})
    thin = page_buffer(thin_layout.size_bytes)
    thin[: len(thin_layout.head)] = thin_layout.head
    for name, (_, start, size_bytes) in thin_layout.placed.items():
        source = kept[name].start
        thin[start : start + size_bytes] = shard_file[source : source + size_bytes]
    return thin, thin_layout
