"""Reads shards. Each chunk of a shard is verified while the next chunks are read. This module does not import torch."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeVar

import crc32c

from segue.checkpoints.format.digests import Digests, TensorDigest, digests_of
from segue.checkpoints.format.gc_pause import paused_collector
from segue.checkpoints.format.index import Base, Index, untrusted
from segue.checkpoints.format.layout import (
    LENGTH_BYTES,
    MalformedShardError,
    Placed,
    TensorSlice,
    TensorSpec,
    head_bytes,
    read_layout,
)
from segue.checkpoints.format.limits import refuse_absurd, refuse_larger_than_memory, refuse_more_than
from segue.errors import (
    CheckpointError,
    CorruptShardError,
    ForgedShardError,
    MalformedCheckpointError,
    MissingObjectError,
    MissingShardError,
    TruncatedShardError,
)
from segue.records import Manifest
from segue.shard import Shard
from segue.stores.base import Store, StoreReadError, ways_to
from segue.stores.direct_io import page_buffer

log = logging.getLogger(__name__)

_READERS = 4
_READS = 4
"""Number of reads after which a chunk with a wrong checksum or hash counts as damaged."""
_WORTH_KEEPING_SHARE = 0.9

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Stored:
    """A checkpoint that was read and verified. `tensors` contains the bytes of each tensor."""

    skeletons: dict[str, Any]
    tensors: Mapping[str, tuple[Placed, memoryview]]
    digests: Digests
    base: Base
    slices: Mapping[str, TensorSlice] = field(default_factory=dict)
    """For each tensor that is a slice: the position of the slice in the larger tensor."""
    unread: Mapping[str, TensorDigest] = field(default_factory=dict)
    """The slices that only other ranks read, by name."""


class Selection(Protocol):
    """The part of a checkpoint that one rank of several ranks needs."""

    def others(self, slices: Mapping[str, TensorSlice], shapes: Mapping[str, tuple[int, ...]]) -> Collection[str]:
        """Return the names of the stored slices that only other ranks need."""


@paused_collector()
def read_stored(
    tiers: Sequence[Store],
    *,
    run_id: str,
    manifest: Manifest,
    own: Selection | None = None,
    memory_bytes: int | None = None,
) -> Stored:
    """Return the verified state of a manifest. The state is read from the first store in `tiers` that has a valid copy.

    If `own` is given, this rank skips the chunks that contain only slices of other ranks. The bytes that this rank
    reads must then fit into `memory_bytes`. A `memory_bytes` of None sets no extra limit.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: the checkpoint cannot be
            used. The message gives the reason.
        StoreReadError: the store could not be read. The checkpoint may or may not be damaged.
        MachineTooSmallError: the bytes do not fit into the memory. Only the index was read.
    """
    shard_files = _shard_files(manifest)
    index = read_index(tiers, run_id=run_id, manifest=manifest)
    skeletons, expected, homes, slices = index.skeletons, index.tensors, index.homes, index.slices
    shapes = {name: expected[name].shape for name in slices if name in expected}
    unread = (
        frozenset(own.others(slices, shapes)) if own is not None and shapes.keys() == slices.keys() else frozenset()
    )
    if own is not None:
        needed_bytes = manifest.size_bytes - sum(TensorSpec(*expected[name][:2]).size_bytes for name in unread)
        refuse_more_than(memory_bytes, needed_bytes, key=f"the checkpoint of step {manifest.step}")
    tensors: dict[str, tuple[Placed, memoryview]] = {}
    for shard in shard_files.values():
        memory, placed = _from_first(tiers, run_id, shard, partial(_placed, unread=unread))
        wanted = {name: p for name, p in placed.items() if homes.get(name) is shard and name not in unread}
        tensors |= {name: (p, data) for name, p, data in _tensors_of(memory, wanted)}
    read = {name: digest for name, digest in expected.items() if name not in unread}
    _check_tensors(tensors, read, key=manifest.shards[0].key if manifest.shards else "manifest")
    if skeletons.keys() != manifest.components.keys():
        odd = sorted(skeletons.keys() ^ manifest.components.keys())
        raise MalformedCheckpointError(
            key="manifest", why=f"its components differ from those of the stored state: {odd}"
        )
    with untrusted("manifest", what="its state"):
        # The digests in the manifest are not used, because an older version hashed mappings in another order.
        digests = digests_of({name: json.dumps(tree).encode() for name, tree in skeletons.items()}, expected)
    base = Base(expected, homes, manifest.saves_since_full)
    return Stored(skeletons, tensors, digests, base, slices, {name: expected[name] for name in unread})


def read_index(tiers: Sequence[Store], *, run_id: str, manifest: Manifest) -> Index:
    """Return the index of the checkpoint of a manifest: the JSON skeleton of each component, and the shard file of each
    tensor.

    The tensors themselves are not read.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: the checkpoint is damaged.
        StoreReadError: the store could not be read.
    """
    refuse_absurd(manifest)
    index, shard_files = Index(), _shard_files(manifest)
    for shard in (shard for shard in manifest.shards if shard.key not in shard_files):
        data = bytes(_from_first(tiers, run_id, shard, _Arriving.whole)[0])
        index.add(data, key=shard.key, shard_files=shard_files)
    return index


def _shard_files(manifest: Manifest) -> dict[str, Shard]:
    return {shard.key: shard for shard in manifest.shards if shard.key.endswith(".safetensors")}


class _Arriving:
    """A shard that is being read into memory. Only the requested bytes use memory."""

    def __init__(self, readers: ThreadPoolExecutor, store: Store, key: str, shard: Shard, *, reads: int) -> None:
        self.shard, self._memory = shard, page_buffer(shard.size_bytes)
        ways = partial(ways_to, store, reads=reads)
        self._readers, self._read = readers, partial(_read_chunk, ways, key, shard)
        self._chunks: dict[int, Future[None]] = {}

    def ask_for(self, start: int, stop: int) -> None:
        """Request these bytes of the shard. The request is extended to whole chunks."""
        size = self.shard.chunk_bytes
        for number in range(start // size, -(-stop // size)):
            if number not in self._chunks:
                self._chunks[number] = self._readers.submit(self._read, number, self._memory)

    def up_to(self, size_bytes: int) -> memoryview:
        """Wait until the first `size_bytes` bytes are read and verified. Return the memory of the shard."""
        self.ask_for(0, size_bytes)
        for number in range(-(-size_bytes // self.shard.chunk_bytes)):
            self._chunks[number].result()
        return self._memory

    def whole(self) -> memoryview:
        """Wait until the whole shard is read and verified. Return the memory of the shard."""
        return self.up_to(self.shard.size_bytes)

    def asked_for(self) -> memoryview:
        """Wait until all requested bytes are read and verified. Return the memory of the shard."""
        for chunk in self._chunks.values():
            chunk.result()
        return self._memory

    def cancel(self) -> None:
        """Stop reading chunks."""
        for chunk in self._chunks.values():
            chunk.cancel()


def _placed(arriving: _Arriving, *, unread: Collection[str]) -> Mapping[str, Placed]:
    """Return the position of each tensor in a shard file, from the header of the file.

    The function requests the bytes of all tensors that are not in `unread`.
    """
    if not unread:
        arriving.ask_for(0, arriving.shard.size_bytes)
    try:
        placed = read_layout(arriving.up_to(head_bytes(arriving.up_to(LENGTH_BYTES)))).placed
    except MalformedShardError as error:
        raise MalformedCheckpointError(key=arriving.shard.key, why=f"cannot be parsed ({error})") from None
    for name, (_, start, size_bytes) in placed.items():
        if name not in unread and size_bytes:
            arriving.ask_for(start, start + size_bytes)
    return placed


def _from_first(
    tiers: Sequence[Store], run_id: str, shard: Shard, use: Callable[[_Arriving], _Found]
) -> tuple[memoryview, _Found]:
    for store in tiers[:-1]:
        try:
            return _read(store, run_id, shard, use, reads=1)
        except (CheckpointError, StoreReadError) as error:
            log.info("fast folder has no valid copy, reading from the store key=%s reason=%s", shard.key, error)
    return _read(tiers[-1], run_id, shard, use, reads=_READS)


def _read(
    store: Store, run_id: str, shard: Shard, use: Callable[[_Arriving], _Found], *, reads: int
) -> tuple[memoryview, _Found]:
    """Read a shard from one store.

    A chunk with a wrong checksum is read up to `reads` times. Further reads avoid the page cache or use new
    connections.
    """
    key = f"{run_id}/{shard.key}"
    try:
        # The size of the object is checked before memory is allocated, because the size in a manifest may be forged.
        _require_size(store, key, shard, reads=reads)
        refuse_larger_than_memory(shard)
        with ThreadPoolExecutor(_READERS, thread_name_prefix="segue-read") as readers:
            arriving = _Arriving(readers, store, key, shard, reads=reads)
            try:
                found = use(arriving)
                return arriving.asked_for(), found
            finally:
                arriving.cancel()
    except MissingObjectError:
        raise MissingShardError(key=shard.key) from None


def _require_size(store: Store, key: str, shard: Shard, *, reads: int) -> None:
    found_bytes = 0
    for way in ways_to(store, reads=reads):
        found_bytes = way.size(key)
        if found_bytes == shard.size_bytes:
            return
    raise TruncatedShardError(key=shard.key, expected_bytes=shard.size_bytes, found_bytes=found_bytes)


def _read_chunk(ways: Callable[[], Iterable[Store]], key: str, shard: Shard, number: int, memory: memoryview) -> None:
    damage: CheckpointError | None = None
    for way in ways():
        try:
            _read_chunk_once(way, key, shard, number, memory)
        except CheckpointError as error:
            damage = error
            log.warning("chunk failed its check key=%s number=%d reason=%s", key, number, type(error).__name__)
        else:
            return
    assert damage is not None, "there is a store to read"
    raise damage


def _read_chunk_once(store: Store, key: str, shard: Shard, number: int, memory: memoryview) -> None:
    start = number * shard.chunk_bytes
    chunk = memory[start : start + shard.chunk_bytes]
    count = store.read_into(key, start, chunk)
    found = crc32c.crc32c(chunk[:count])
    expected = shard.chunk_crc32c[number]
    if count != len(chunk) or found != expected:
        raise CorruptShardError(key=shard.key, chunk=number, expected=expected, found=found)
    if shard.chunk_sha256:
        signed, sha256 = shard.chunk_sha256[number], hashlib.sha256(chunk).hexdigest()
        if signed != sha256:
            raise ForgedShardError(key=shard.key, chunk=number, expected=signed, found=sha256)


def _tensors_of(memory: memoryview, wanted: Mapping[str, Placed]) -> Iterator[tuple[str, Placed, memoryview]]:
    """Return the bytes of the wanted tensors of a shard file.

    If the wanted tensors are a small part of the file, the function copies them, so that the file's memory can be
    freed.
    """
    few = sum(p.size_bytes for p in wanted.values()) < _WORTH_KEEPING_SHARE * len(memory)
    for name, placed in wanted.items():
        data = memory[placed.start : placed.start + placed.size_bytes]
        yield name, placed, memoryview(bytearray(data)) if few else data


def _check_tensors(
    found: Mapping[str, tuple[Placed, memoryview]], expected: Mapping[str, TensorDigest], *, key: str
) -> None:
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())[:3]
        raise MalformedCheckpointError(key=key, why=f"its tensors differ from those of the index, e.g. {odd}")
    for name, (placed, _) in found.items():
        dtype, shape, _ = expected[name]
        if placed.spec != (dtype, shape):
            raise MalformedCheckpointError(
                key=key,
                why=f"the index says that tensor {name} is {dtype}{list(shape)}, but the shard has another "
                "type or shape",
            )
