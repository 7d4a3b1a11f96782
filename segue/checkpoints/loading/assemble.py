"""Assembles whole tensors from the slices that several ranks stored."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch

from segue.checkpoints.format.dtensor import partly_read, view_of_slice
from segue.checkpoints.format.layout import TensorSlice
from segue.errors import MalformedCheckpointError

_MOST_SLICES = 1024
"""Maximum number of slices of a tensor. No run has more ranks than this."""

_Stored = tuple[TensorSlice, torch.Tensor]


def whole_tensors(tensors: Mapping[str, torch.Tensor], slices: Mapping[str, TensorSlice]) -> dict[str, torch.Tensor]:
    """Return the tensors by their names in the state. Tensors that were stored as slices are assembled.

    If a slice is on the meta device, it was not read. The result then contains only the other slices of the tensor.

    Raises:
        MalformedCheckpointError: the slices of a tensor overlap, or do not cover the tensor.
    """
    found = {name: tensor for name, tensor in tensors.items() if name not in slices}
    stored: dict[str, list[_Stored]] = defaultdict(list)
    for name, tensor_slice in slices.items():
        if name not in tensors:
            raise _malformed(tensor_slice.tensor, f"its slice {name} is missing")
        stored[tensor_slice.tensor].append((tensor_slice, tensors[name]))
    for name, its_slices in stored.items():
        if name in found:
            raise _malformed(name, "it is stored both whole and in slices")
        found[name] = _assembled(name, its_slices)
    return found


def _assembled(name: str, stored: Sequence[_Stored]) -> torch.Tensor:
    if len(stored) > _MOST_SLICES:
        raise _malformed(name, f"it has {len(stored)} slices, more than {_MOST_SLICES}")
    shape, dtype = stored[0][0].shape, stored[0][1].dtype
    for tensor_slice, values in stored:
        if tensor_slice.shape != shape or values.dtype != dtype or values.dim() != len(shape):
            raise _malformed(name, "its slices disagree about the shape or type of the tensor")
        ends = zip(tensor_slice.offsets, values.shape, shape, strict=True)
        if any(start + length > size for start, length, size in ends):
            raise _malformed(name, "a slice lies outside the tensor")
    if sum(values.numel() for _, values in stored) != math.prod(shape) or any(
        _overlap(a, b) for a, b in combinations(stored, 2)
    ):
        raise _malformed(name, "its slices overlap or leave a gap")
    if any(values.is_meta for _, values in stored):
        # Other ranks have read the other slices.
        read = {tensor_slice.offsets: values for tensor_slice, values in stored if not values.is_meta}
        return partly_read(shape, dtype, read)
    whole = torch.empty(shape, dtype=dtype)
    for tensor_slice, values in stored:
        view_of_slice(whole, tensor_slice, tuple(values.shape)).copy_(values)
    return whole


def _overlap(one: _Stored, other: _Stored) -> bool:
    sides = zip(one[0].offsets, one[1].shape, other[0].offsets, other[1].shape, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in sides)


def _malformed(name: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key="manifest", why=f"tensor {name} cannot be assembled: {why}")
