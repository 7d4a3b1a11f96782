"""Digests: a few bytes for each component and tensor of a state. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import xxhash


class TensorDigest(NamedTuple):
    """Type, shape and hash of one tensor of the state."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Digests:
    """The digests of one state, by component and by tensor."""

    components: Mapping[str, str]
    tensors: Mapping[str, TensorDigest]


def hash_bytes(data: bytes | memoryview) -> str:
    """xxh3, 128 bits: detects accidents, not forgery."""
    return xxhash.xxh3_128_hexdigest(data)


def digests_of(skeletons: Mapping[str, bytes], tensors: Mapping[str, TensorDigest]) -> Digests:
    """Digests of the components: each covers its skeleton as JSON and the digests of its tensors, by name."""
    hashers = {name: xxhash.xxh3_128(skeleton) for name, skeleton in skeletons.items()}
    for name, owner in owners(tensors, skeletons):
        dtype, shape, digest = tensors[name]
        hashers[owner].update(f"{name}:{dtype}{list(shape)}{digest}".encode())
    return Digests(components={name: hasher.hexdigest() for name, hasher in hashers.items()}, tensors=tensors)


def owners(tensor_names: Iterable[str], components: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Each tensor's name with its component: the longest name that is a prefix of its path. Sorted by tensor."""
    longest_first = sorted(components, key=len, reverse=True)
    for name in sorted(tensor_names):
        yield name, next(c for c in longest_first if name == c or name.startswith(f"{c}."))
