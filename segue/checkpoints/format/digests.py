"""Computes digests.

A digest is a short hash of each component and each tensor of a state. This module does not import torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import xxhash


class TensorDigest(NamedTuple):
    """The type, shape and hash of one tensor of the state."""

    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True)
class Digests:
    """The digests of one state, by component and by tensor."""

    components: Mapping[str, str]
    tensors: Mapping[str, TensorDigest]


def hash_bytes(data: bytes | memoryview) -> str:
    """Return a 128-bit xxh3 hash. The hash detects accidental changes but not forgery."""
    return xxhash.xxh3_128_hexdigest(data)


def digests_of(skeletons: Mapping[str, bytes], tensors: Mapping[str, TensorDigest]) -> Digests:
    """Return the digests of the components.

    Each digest covers the component's skeleton (JSON) and the digests of the component's tensors. The order of the
    items in a mapping does not change the digest, because an order that comes from a set differs between processes.
    """
    hashers = {name: xxhash.xxh3_128(_in_one_order(skeleton)) for name, skeleton in skeletons.items()}
    for name, owner in owners(tensors, skeletons):
        dtype, shape, digest = tensors[name]
        hashers[owner].update(f"{name}:{dtype}{list(shape)}{digest}".encode())
    return Digests(components={name: hasher.hexdigest() for name, hasher in hashers.items()}, tensors=tensors)


_UNORDERED = ("$tensors", "$pairs", "$counter")
"""Tags of mappings that the skeleton stores as lists of items."""


def _in_one_order(skeleton: bytes) -> bytes:
    if b"{" not in skeleton:
        return skeleton
    return json.dumps(_sorted(json.loads(skeleton)), sort_keys=True, separators=(",", ":")).encode()


def _sorted(tree: Any) -> Any:
    if isinstance(tree, list):
        return [_sorted(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    found = {key: _sorted(value) for key, value in tree.items()}
    for tag in _UNORDERED:
        if tag in found and len(found) == 1:
            # A $tensors node has a path and names; the other nodes have pairs of key and value.
            path, items = found[tag] if tag == "$tensors" else ("", found[tag])
            found = {tag: [path, sorted(items, key=repr)]}
    return found


def owners(tensor_names: Iterable[str], components: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Return each tensor name with the name of its component, sorted by tensor name.

    The component of a tensor is the component with the longest name that is a prefix of the tensor's name.
    """
    longest_first = sorted(components, key=len, reverse=True)
    for name in sorted(tensor_names):
        yield name, next(c for c in longest_first if name == c or name.startswith(f"{c}."))
