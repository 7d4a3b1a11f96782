"""Computes hashes of data, to detect a changed content of a data set.

The hash of a large array covers only evenly spaced values at fixed positions. The hash may therefore miss a change of a
few rows. If training draws the changed rows, the witness shows the change.
"""

from __future__ import annotations

import re
import types
from array import array
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
import xxhash

from segue.checkpoints.format.collections import is_table
from segue.checkpoints.format.snapshot import raw_bytes
from segue.continuity.object_walk import PLAIN, Leaf
from segue.continuity.process_values import ANY_ORDER

WHOLE_BYTES = 64 * 2**20
"""Size in bytes of the largest array that is read whole, which takes about ten milliseconds."""
_BLOCK_BYTES = 16 * 2**10
_ITEMS = 10_000
_MOST_PERMUTED = 200_000
"""Maximum number of items in a collection whose items are all hashed.

Hashes of all items show whether a collection has the same items in another order.
"""


def data_hashes(leaves: Iterable[Leaf]) -> dict[str, str]:
    """Return a hash of every array, frame and long sequence, by path."""
    hashes = {}
    for leaf in leaves:
        hasher = xxhash.xxh3_128()
        try:
            _feed(leaf.value, hasher, depth=0)
        except (TypeError, ValueError, RuntimeError):
            continue  # This kind of value cannot be hashed; the witness compares the samples that are drawn from it.
        hashes[leaf.path] = hasher.hexdigest()
        if isinstance(leaf.value, (list, tuple, deque)) and len(leaf.value) <= _MOST_PERMUTED:
            # A list that was made from a set has another order in each process.
            hashes[f"{leaf.path}{ANY_ORDER}"] = _in_any_order(leaf.value)
    return hashes


def _feed(value: Any, hasher: Any, *, depth: int) -> None:
    hasher.update(f"{type(value).__qualname__};".encode())
    if isinstance(value, torch.Tensor):
        _feed_tensor(value, hasher)
    elif isinstance(value, np.ndarray) and not value.dtype.hasobject and value.dtype.kind != "T":
        hasher.update(f"{value.dtype}{value.shape}".encode())
        _feed_bytes(np.ascontiguousarray(_thinned(value)).reshape(-1).view(np.uint8).data, hasher)
    elif is_table(value):
        import pandas as pd

        hasher.update(f"{getattr(value, 'columns', '')}{len(value)}".encode())
        _feed(pd.util.hash_pandas_object(value[:: max(len(value) // _ITEMS, 1)]).to_numpy(), hasher, depth=depth)
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _feed_bytes(memoryview(value).cast("B"), hasher)
    elif isinstance(value, str):
        hasher.update(
            re.split(r"[/\\]", value)[-1].encode("utf-8", "replace")
        )  # The same file may be mounted at another path.
    elif isinstance(value, (*PLAIN, range)):
        hasher.update(repr(value).encode())
    elif isinstance(value, (dict, types.MappingProxyType, set, frozenset)) and depth < 4:
        items = value.items() if isinstance(value, (dict, types.MappingProxyType)) else value
        _feed(sorted(repr(item) for item in list(items) if _is_plain(item)), hasher, depth=depth + 1)
    elif isinstance(value, (list, tuple, deque, array, np.ndarray)) and depth < 4:
        hasher.update(str(len(value)).encode())
        for number in range(0, len(value), max(len(value) // _ITEMS, 1)):
            _feed(value[number], hasher, depth=depth + 1)


def _in_any_order(items: Any) -> str:
    total = 0
    for item in list(items):
        if type(item) is str:
            total += xxhash.xxh3_64_intdigest(item.encode("utf-8", "replace"))
            continue
        hasher = xxhash.xxh3_64()
        _feed(item, hasher, depth=1)
        total += hasher.intdigest()
    return f"{total % 2**64:016x}"


def _is_plain(item: Any) -> bool:
    return isinstance(item, PLAIN) or (isinstance(item, tuple) and all(isinstance(part, PLAIN) for part in item))


def _feed_tensor(tensor: torch.Tensor, hasher: Any) -> None:
    hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.layout is torch.strided and not tensor.is_quantized and tensor.device.type != "meta":
        _feed_bytes(raw_bytes(_thinned(tensor.detach()).resolve_conj().resolve_neg().cpu().contiguous()), hasher)


def _thinned(array: Any) -> Any:
    """Return evenly spaced rows of an object, so that the whole object need not be copied."""
    is_contiguous = array.flags.c_contiguous if isinstance(array, np.ndarray) else array.is_contiguous()
    is_here = isinstance(array, np.ndarray) or array.device.type == "cpu"
    if array.nbytes <= WHOLE_BYTES or (is_contiguous and is_here) or array.shape[0] < 2:
        return array
    return array[:: -(-array.nbytes // WHOLE_BYTES)]


def _feed_bytes(data: memoryview, hasher: Any) -> None:
    if len(data) <= WHOLE_BYTES:
        hasher.update(data)
        return
    stride = len(data) // (WHOLE_BYTES // _BLOCK_BYTES)
    for start in range(0, len(data), stride):
        hasher.update(data[start : start + _BLOCK_BYTES])
