"""Partitions: which part of the state each rank stores, so that all of it is stored once.

What is the same on every rank is dealt out by size; of what is sharded, each rank stores its own piece. Both are read
back whole, by any number of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from segue.checkpoints.format.digests import owners
from segue.checkpoints.format.dtensor import is_first_holder, is_sharded, local_part, sharded_types, slice_of
from segue.checkpoints.format.layout import TensorSlice

_MARK = "@"


@dataclass(frozen=True)
class Part:
    """What one rank stores at a safe point."""

    tensors: dict[str, torch.Tensor]
    skeletons: dict[str, Any]
    pieces: dict[str, TensorSlice] = field(default_factory=dict)
    """Those of the tensors that are pieces of larger ones."""
    dealt: str = ""
    """A mark of what was dealt out, by which ranks find out that they did not deal out the same."""


class Partition:
    """One rank's share of the storing; of one rank alone, everything."""

    def __init__(
        self, rank: int = 0, count: int = 1, *, is_same_everywhere: Callable[[str], bool] | None = None
    ) -> None:
        """`is_same_everywhere` says whether all ranks hold a tensor alike, by its name; else rank 0 stores it."""
        self._rank, self._count = rank, count
        self._is_same_everywhere = is_same_everywhere
        self._dealt: tuple[list[tuple[str, int]], frozenset[str], str] | None = None

    def of(self, live: Mapping[str, torch.Tensor], skeletons: Mapping[str, Any]) -> Part:
        """What this rank stores of a state.

        Raises:
            UnsupportedStateError: a tensor is sharded in a way that cannot be stored in pieces.
        """
        sharded = {name for name, tensor in live.items() if is_sharded(tensor)} if sharded_types() else set()
        if self._count == 1 and not sharded:
            return Part(dict(live), dict(skeletons))
        own, dealt = self._own({name: tensor for name, tensor in live.items() if name not in sharded})
        mine, pieces = {}, {}
        for name, tensor in live.items():
            if name in own:
                mine[name] = tensor
            elif is_sharded(tensor) and is_first_holder(tensor):
                piece = slice_of(name, tensor)
                mine[slice_name(piece)], pieces[slice_name(piece)] = local_part(tensor), piece
        if self._rank == 0:
            return Part(mine, dict(skeletons), pieces, dealt)
        used = {owner for _, owner in owners(mine, skeletons)}
        return Part(mine, {name: skeleton for name, skeleton in skeletons.items() if name in used}, pieces, dealt)

    def _own(self, live: Mapping[str, torch.Tensor]) -> tuple[frozenset[str], str]:
        sizes = [(name, tensor.nbytes) for name, tensor in live.items()]
        if self._dealt is None or self._dealt[0] != sizes:
            self._dealt = (sizes, *self._deal(sizes))
        return self._dealt[1:]

    def _deal(self, sizes: Sequence[tuple[str, int]]) -> tuple[frozenset[str], str]:
        own, loads, seen = set(), [0] * self._count, xxhash.xxh3_64()
        for name, size_bytes in sorted(sizes, key=lambda item: (-item[1], item[0])):
            if self._is_same_everywhere is not None and self._is_same_everywhere(name):
                # Only these count: every rank deals them out for itself, and all must come to the same.
                rank = min(range(self._count), key=loads.__getitem__)
                loads[rank] += size_bytes
                seen.update(f"{name} {size_bytes} {rank};".encode())
            else:
                rank = self._rank if is_of_rank(name, self._rank) else 0
            if rank == self._rank:
                own.add(name)
        return frozenset(own), seen.hexdigest()


def slice_name(piece: TensorSlice) -> str:
    """A name that no other piece has."""
    return f"{piece.tensor}{_MARK}{','.join(map(str, piece.offsets))}"


def of_rank(component: str, rank: int) -> str:
    """The name of a component that every rank has for itself."""
    return f"{component}{_MARK}{rank}" if rank else component


def is_of_rank(name: str, rank: int) -> bool:
    """Whether a tensor belongs to a component that this rank has for itself, beside rank 0's."""
    if not rank:
        return False
    _, mark, rest = name.partition(f"{_MARK}{rank}")
    return bool(mark) and (not rest or rest.startswith("."))
