"""Putting pieces that several ranks stored together again."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch

from segue.checkpoints.format.dtensor import cut_out
from segue.checkpoints.format.layout import TensorSlice
from segue.errors import MalformedCheckpointError

_MOST_PIECES = 1024
"""No run has more ranks."""

_Part = tuple[TensorSlice, torch.Tensor]


def whole_tensors(tensors: Mapping[str, torch.Tensor], pieces: Mapping[str, TensorSlice]) -> dict[str, torch.Tensor]:
    """The tensors by the names they have in the state; those in `pieces` are put together.

    Raises:
        MalformedCheckpointError: the pieces of a tensor overlap, or are not all of it.
    """
    found = {name: tensor for name, tensor in tensors.items() if name not in pieces}
    parts: dict[str, list[_Part]] = defaultdict(list)
    for name, piece in pieces.items():
        if name not in tensors:
            raise _malformed(piece.tensor, f"its piece {name} is not there")
        parts[piece.tensor].append((piece, tensors[name]))
    for name, its_parts in parts.items():
        if name in found:
            raise _malformed(name, "it is there whole and in pieces")
        found[name] = _put_together(name, its_parts)
    return found


def _put_together(name: str, parts: Sequence[_Part]) -> torch.Tensor:
    if len(parts) > _MOST_PIECES:
        raise _malformed(name, f"it has {len(parts)} pieces, more than {_MOST_PIECES}")
    shape, dtype = parts[0][0].shape, parts[0][1].dtype
    for piece, part in parts:
        if piece.shape != shape or part.dtype != dtype or part.dim() != len(shape):
            raise _malformed(name, "its pieces are not of one tensor")
        if any(start + length > size for start, length, size in zip(piece.offsets, part.shape, shape, strict=True)):
            raise _malformed(name, "a piece lies outside")
    if sum(part.numel() for _, part in parts) != math.prod(shape) or any(
        _overlap(a, b) for a, b in combinations(parts, 2)
    ):
        raise _malformed(name, "its pieces overlap or leave a hole")
    whole = torch.empty(shape, dtype=dtype)
    for piece, part in parts:
        cut_out(whole, piece, tuple(part.shape)).copy_(part)
    return whole


def _overlap(one: _Part, other: _Part) -> bool:
    sides = zip(one[0].offsets, one[1].shape, other[0].offsets, other[1].shape, strict=True)
    return all(a < b + m and b < a + n for a, n, b, m in sides)


def _malformed(name: str, why: str) -> MalformedCheckpointError:
    return MalformedCheckpointError(key="manifest", why=f"tensor {name} cannot be put together: {why}")
