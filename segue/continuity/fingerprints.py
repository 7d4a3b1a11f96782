"""Computes fast, exact hashes of the data that a step uses."""

from __future__ import annotations

from collections.abc import Mapping
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch
import xxhash
from torch import nn
from torch.utils.data import Dataset

from segue.checkpoints.format.snapshot import raw_bytes
from segue.data.order import Ids, mix

_MOST_DEPTH = 4
"""Maximum number of levels of nested objects, for example a batch of graphs with storages that contain tensors."""

_NO_DATA = (type, ModuleType, FunctionType, nn.Module, Dataset)
"""Types of objects to which a batch may refer, but which are not data of the batch."""

_NUMPY_HAS = (torch.float32, torch.int64, torch.uint8, torch.float64, torch.int32, torch.bool)

_COMPRESSED_ROWS = ("crow_indices", "col_indices", "values")
_COMPRESSED_COLUMNS = ("ccol_indices", "row_indices", "values")
_PARTS_OF_SPARSE = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: _COMPRESSED_ROWS,
    torch.sparse_bsr: _COMPRESSED_ROWS,
    torch.sparse_csc: _COMPRESSED_COLUMNS,
    torch.sparse_bsc: _COMPRESSED_COLUMNS,
}


def batch_fingerprint(ids: Ids) -> str:
    """Return the 64-bit sum of mixed sample ids, in hex. The sum does not depend on the order of the ids.

    A different world size distributes the same global batch in a different order.
    """
    # The sum of an array wraps around without a warning.
    return f"{int(mix(ids).sum(dtype=np.uint64)):016x}"


def streams_fingerprint(streams: Mapping[str, Any]) -> dict[str, str]:
    """Return a hash of the state of each RNG stream, by name."""
    return {name: input_fingerprint(state) for name, state in streams.items()}


def input_fingerprint(content: Any) -> str:
    """Return a hash of the bytes, type and shape of every tensor in a batch, in the order of the batch's structure.

    For an object that is not a collection, the hash covers only its tensors and arrays. The other values of the object
    may differ between processes.
    """
    hasher = xxhash.xxh3_64()
    _feed(content, hasher)
    return hasher.hexdigest()


def _feed(content: Any, hasher: Any) -> None:
    if isinstance(content, torch.Tensor):
        _feed_tensor(content, hasher)
    elif isinstance(content, (np.ndarray, np.generic)) and content.dtype != object:
        hasher.update(f"{content.dtype}{content.shape}".encode())
        hasher.update(np.ascontiguousarray(content).view(np.uint8))
    elif isinstance(content, Mapping):
        for key in content:
            hasher.update(str(key).encode())
            _feed(content[key], hasher)
    elif isinstance(content, (list, tuple)) or type(content) is np.ndarray:
        hasher.update(f"{type(content).__name__}{len(content)}".encode())
        for item in content:
            _feed(item, hasher)
    elif content is None or isinstance(content, (bool, int, float, complex, str, bytes)):
        hasher.update(repr(content).encode())
    else:
        hasher.update(type(content).__qualname__.encode())
        _feed_parts(getattr(content, "__dict__", {}), hasher, _MOST_DEPTH)


def _feed_tensor(tensor: torch.Tensor, hasher: Any) -> None:
    if type(tensor) is torch.Tensor and tensor.layout is torch.strided and _has_plain_bytes(tensor):
        # The usual case: the same bytes as below with a third of the calls.
        hasher.update(f"{tensor.dtype}torch.strided{tuple(tensor.shape)}".encode())
        hasher.update(tensor.numpy())
        return
    tensor = tensor.detach()
    hasher.update(f"{tensor.dtype}{tensor.layout}".encode())
    if tensor.is_nested:
        for part in tensor.unbind():
            _feed_tensor(part, hasher)
        return
    hasher.update(f"{tuple(tensor.shape)}".encode())
    if tensor.layout is torch.strided:
        hasher.update(raw_bytes(tensor.cpu().resolve_conj().resolve_neg().contiguous()))
        return
    for name in _PARTS_OF_SPARSE[tensor.layout]:
        _feed_tensor(getattr(tensor, name)(), hasher)


def _has_plain_bytes(tensor: torch.Tensor) -> bool:
    """Whether NumPy can view all values of the tensor in order without a copy."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype in _NUMPY_HAS
        and tensor.is_contiguous()
        and not (tensor.requires_grad or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
    )


def _feed_parts(parts: Mapping[Any, Any], hasher: Any, depth: int) -> None:
    for name, value in parts.items():
        if isinstance(value, (torch.Tensor, np.ndarray)):
            hasher.update(str(name).encode())
            _feed(value, hasher)
        elif depth > 0 and not isinstance(value, _NO_DATA):
            _feed_parts(value if isinstance(value, Mapping) else getattr(value, "__dict__", {}), hasher, depth - 1)
