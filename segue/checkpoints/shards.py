"""Shards: a checkpoint's bytes in the stores, checksummed by chunk when written, verified while read.

A checkpoint is one image of tensors for each rank and, beside it, an index: the state without its tensors, and type,
shape and digest of each tensor. No torch here: the writer process writes them too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import crc32c

from segue import layout
from segue.checkpoints.digests import Digests, TensorDigest, digests_of, hash_bytes
from segue.checkpoints.image import ImageLayout, MalformedImageError, Piece, Placed, read_layout
from segue.checkpoints.incremental import Base, unchanged_since, without
from segue.checkpoints.limits import refuse_absurd, refuse_larger_than_memory
from segue.errors import (
    CheckpointError,
    CorruptShardError,
    MalformedCheckpointError,
    MissingObjectError,
    MissingShardError,
    TruncatedShardError,
)
from segue.records import Manifest, Shard
from segue.stores.base import Store, StoreReadError, StoreWriteError
from segue.stores.direct import page_buffer

log = logging.getLogger(__name__)

CHUNK_BYTES = 8 * 2**20
_READERS = 4
_WORTH_KEEPING_SHARE = 0.9


@dataclass(frozen=True)
class Written:
    """What a manifest says about bytes that are durable now."""

    shards: tuple[Shard, ...]
    """Its own first, then those of earlier checkpoints that it refers to."""
    components: dict[str, str]
    tensor_count: int
    new_bytes: int
    saves_since_full: int
    """How many saves ago everything was stored anew; 0 for now."""

    def to_json(self) -> dict[str, Any]:
        """As plain data, for another process."""
        return asdict(self) | {"shards": [shard.model_dump(mode="json") for shard in self.shards]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """What `to_json` gave."""
        return cls(**(dict(data) | {"shards": tuple(Shard.model_validate(shard) for shard in data["shards"])}))


@dataclass(frozen=True)
class Stored:
    """A checkpoint read back, every byte of it verified; `tensors` are the bytes of each."""

    skeletons: dict[str, Any]
    tensors: Mapping[str, tuple[Placed, memoryview]]
    digests: Digests
    base: Base
    pieces: Mapping[str, Piece] = field(default_factory=dict)
    """Those of the tensors that are parts of larger ones, each written by another rank."""


def write_checkpoint(
    tiers: Sequence[Store],
    *,
    run_id: str,
    attempt_id: str,
    step: int,
    image: memoryview,
    image_layout: ImageLayout,
    skeletons: Mapping[str, bytes],
    base: Base | None = None,
    rank: int = 0,
) -> tuple[Written, Base]:
    """Make a staged state durable under its attempt's folder, and say where it lies and what it is.

    The last of `tiers` is the durable one. Those before it are faster and may fail: that is logged, and the save goes
    on. `skeletons` are JSON. With `base`, tensors that are as they were there are referred to; the second value is what
    a later save may refer to, once this one is committed. After a crash in between, the bytes lie there and nothing
    refers to them.

    Raises:
        StoreWriteError: the durable tier did not take them; calling again is safe.
    """
    image_name = layout.shard_name(attempt_id, step, rank)
    with ThreadPoolExecutor(1, thread_name_prefix="segue-digest") as beside:
        # Beside the image's write, which takes longer: hashing is far faster than any disk.
        hashing = beside.submit(_digests, image, image_layout, skeletons)
        same: frozenset[str] = frozenset()
        if base is not None:
            same = unchanged_since(base, hashing.result().tensors, image_layout)
        if same:
            image, _ = without(same, image, image_layout)

        def describe() -> tuple[Digests, Shard, dict[str, Shard], memoryview]:
            digests, own = hashing.result(), _shard(image_name, image, checksums(image))
            homes = {n: base.homes[n] if base is not None and n in same else own for n in digests.tensors}
            return (
                digests,
                own,
                homes,
                memoryview(_index(skeletons, digests, homes=homes, own=own, pieces=image_layout.pieces)),
            )

        describing = beside.submit(describe)
        _put(tiers, f"{run_id}/{image_name}", image)
        digests, own, homes, index = describing.result()
    index_name = layout.state_name(attempt_id, step, rank)
    _put(tiers, f"{run_id}/{index_name}", index)
    shards = (own, _shard(index_name, index, checksums(index)))
    earlier = {shard.key: shard for shard in homes.values() if shard is not own}
    since_full = base.saves_since_full + 1 if base is not None and same else 0
    written = Written(
        shards=(*shards, *earlier.values()),
        components=dict(digests.components),
        tensor_count=len(digests.tensors),
        new_bytes=sum(shard.size_bytes for shard in shards),
        saves_since_full=since_full,
    )
    return written, Base(digests.tensors, homes, since_full)


def checksums(blob: bytes | memoryview) -> tuple[int, ...]:
    """crc32c of each chunk."""
    view = memoryview(blob)
    return tuple(crc32c.crc32c(view[start : start + CHUNK_BYTES]) for start in range(0, len(view), CHUNK_BYTES))


def read_stored(tiers: Sequence[Store], *, run_id: str, manifest: Manifest) -> Stored:
    """The state that a manifest names, every byte of it verified, from the first tier that has it whole.

    Raises:
        MissingShardError, TruncatedShardError, CorruptShardError, MalformedCheckpointError: it cannot be used;
            names the damage.
        StoreReadError: the store did not say; nothing is known about the checkpoint.
    """
    refuse_absurd(manifest)
    skeletons: dict[str, Any] = {}
    expected: dict[str, TensorDigest] = {}
    homes: dict[str, Shard] = {}
    pieces: dict[str, Piece] = {}
    images = {shard.key: shard for shard in manifest.shards if shard.key.endswith(".safetensors")}
    for shard in (shard for shard in manifest.shards if shard.key not in images):
        blob = _read_from_first(tiers, run_id, shard)
        try:
            index = json.loads(bytes(blob))
            skeletons = index["skeletons"] | skeletons  # Rank 0's comes first, and counts.
            for name, (dtype, shape, digest, number) in index["tensors"].items():
                expected[name] = TensorDigest(dtype, tuple(shape), digest)
                homes[name] = images[index["images"][number]]
            pieces |= {name: _piece(*piece) for name, piece in index.get("pieces", {}).items()}
        except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError) as error:
            raise MalformedCheckpointError(key=shard.key, why=f"cannot be parsed ({error!r})") from None
    tensors: dict[str, tuple[Placed, memoryview]] = {}
    for shard in images.values():
        blob = _read_from_first(tiers, run_id, shard)
        try:
            placed = read_layout(blob).placed
        except MalformedImageError as error:
            raise MalformedCheckpointError(key=shard.key, why=f"cannot be parsed ({error})") from None
        wanted = {name: p for name, p in placed.items() if homes.get(name) is shard}
        tensors |= {name: (p, part) for name, p, part in _parts(blob, wanted)}
    _check_tensors(tensors, expected, key=manifest.shards[0].key if manifest.shards else "manifest")
    if skeletons.keys() != manifest.components.keys():
        odd = sorted(skeletons.keys() ^ manifest.components.keys())
        raise MalformedCheckpointError(key="manifest", why=f"components differ from the stored state's: {odd}")
    digests = Digests(components=manifest.components, tensors=expected)
    return Stored(skeletons, tensors, digests, Base(expected, homes, manifest.saves_since_full), pieces)


def _piece(tensor: str, shape: list[int], offsets: list[int]) -> Piece:
    if not all(type(number) is int and number >= 0 for number in (*shape, *offsets)) or len(shape) != len(offsets):
        raise ValueError("a piece's place is not made of whole numbers")
    if type(tensor) is not str:
        raise TypeError("a piece's tensor is not a name")
    return Piece(tensor, tuple(shape), tuple(offsets))


def _parts(blob: memoryview, wanted: Mapping[str, Placed]) -> Iterator[tuple[str, Placed, memoryview]]:
    """The bytes of some tensors of an image, which is let go of where little of it is wanted."""
    few = sum(p.size_bytes for p in wanted.values()) < _WORTH_KEEPING_SHARE * len(blob)
    for name, placed in wanted.items():
        part = blob[placed.start : placed.start + placed.size_bytes]
        yield name, placed, memoryview(bytearray(part)) if few else part


def _put(tiers: Sequence[Store], key: str, data: memoryview) -> None:
    for store in tiers[:-1]:
        try:
            store.put(key, data)
        except StoreWriteError as error:
            log.warning("fast tier left out of this save reason=%s", error)
    tiers[-1].put(key, data)


def _digests(image: memoryview, image_layout: ImageLayout, skeletons: Mapping[str, bytes]) -> Digests:
    tensors = {
        name: TensorDigest(spec.dtype, spec.shape, hash_bytes(image[start : start + size_bytes]))
        for name, (spec, start, size_bytes) in image_layout.placed.items()
    }
    return digests_of(skeletons, tensors)


def _index(
    skeletons: Mapping[str, bytes],
    digests: Digests,
    *,
    homes: Mapping[str, Shard],
    own: Shard,
    pieces: Mapping[str, Piece],
) -> bytes:
    images = {key: number for number, key in enumerate(dict.fromkeys([own.key, *(s.key for s in homes.values())]))}
    rows = {name: (*digest, images[homes[name].key]) for name, digest in digests.tensors.items()}
    states = b",".join(json.dumps(name).encode() + b":" + skeleton for name, skeleton in skeletons.items())
    content = {"images": list(images), "tensors": rows} | ({"pieces": pieces} if pieces else {})
    lists = json.dumps(content, separators=(",", ":")).encode()
    return b'{"skeletons":{' + states + b"}," + lists[1:]


def _shard(name: str, blob: memoryview, sums: tuple[int, ...]) -> Shard:
    return Shard(key=name, size_bytes=len(blob), chunk_bytes=CHUNK_BYTES, chunk_crc32c=sums)


def _read_from_first(tiers: Sequence[Store], run_id: str, shard: Shard) -> memoryview:
    for store in tiers[:-1]:
        try:
            return _read_verified(store, run_id, shard)
        except (CheckpointError, StoreReadError) as error:
            log.info("fast tier has no whole copy, taking the durable one key=%s reason=%s", shard.key, error)
    return _read_verified(tiers[-1], run_id, shard)


def _read_verified(store: Store, run_id: str, shard: Shard) -> memoryview:
    key = f"{run_id}/{shard.key}"
    try:
        # Before anything is allocated: a manifest may claim any size, an object only what somebody stored.
        found_bytes = store.size(key)
        if found_bytes != shard.size_bytes:
            raise TruncatedShardError(key=shard.key, expected_bytes=shard.size_bytes, found_bytes=found_bytes)
        refuse_larger_than_memory(shard)
        blob = page_buffer(shard.size_bytes)

        def read(number: int) -> None:
            _read_chunk(store, key, shard, number, blob)

        with ThreadPoolExecutor(_READERS, thread_name_prefix="segue-read") as readers:
            for _ in readers.map(read, range(len(shard.chunk_crc32c))):
                pass
    except MissingObjectError:
        raise MissingShardError(key=shard.key) from None
    return blob


def _read_chunk(store: Store, key: str, shard: Shard, number: int, blob: memoryview) -> None:
    start = number * shard.chunk_bytes
    chunk = blob[start : start + shard.chunk_bytes]
    count = store.read_into(key, start, chunk)
    found = crc32c.crc32c(chunk[:count])
    expected = shard.chunk_crc32c[number]
    if count != len(chunk) or found != expected:
        raise CorruptShardError(key=shard.key, chunk=number, expected=expected, found=found)


def _check_tensors(
    found: Mapping[str, tuple[Placed, memoryview]], expected: Mapping[str, TensorDigest], *, key: str
) -> None:
    if found.keys() != expected.keys():
        odd = sorted(found.keys() ^ expected.keys())[:3]
        raise MalformedCheckpointError(key=key, why=f"tensors differ from the index's, e.g. {odd}")
    for name, (placed, _) in found.items():
        dtype, shape, _ = expected[name]
        if placed.spec != (dtype, shape):
            raise MalformedCheckpointError(key=key, why=f"tensor {name} is not the index's {dtype}{list(shape)}")
