"""Assigns tensors and slices to ranks, so that the whole state is stored once.

Tensors that are equal on all ranks are assigned to ranks by size. Each rank stores its own slice of a sharded tensor.
Any number of ranks can read the whole state back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from segue.checkpoints.format.digests import owners
from segue.checkpoints.format.dtensor import is_first_holder, is_sharded, local_tensor, sharded_types, slice_of
from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.names import is_of_rank, slice_name


@dataclass(frozen=True)
class RankState:
    """The part of the state that one rank stores at a safe point."""

    tensors: dict[str, torch.Tensor]
    skeletons: dict[str, Any]
    slices: dict[str, TensorSlice] = field(default_factory=dict)
    """For each tensor that is a slice of a larger tensor: the position of the slice in the larger tensor."""
    partition_hash: str = ""
    """Hash of the assignment of tensors to ranks. If two ranks have different hashes, their states do not match."""


class Partition:
    """Selects the part of the state that one rank stores. A single rank stores the whole state."""

    def __init__(
        self, rank: int = 0, count: int = 1, *, is_same_everywhere: Callable[[str], bool] | None = None
    ) -> None:
        """`is_same_everywhere(name)` tells whether a tensor has equal values on all ranks.

        If the values of the tensor differ between ranks, rank 0 stores its own values.
        """
        self._rank, self._count = rank, count
        self._is_same_everywhere = is_same_everywhere
        self._assigned: tuple[list[tuple[str, int]], frozenset[str], str] | None = None

    def of(self, live: Mapping[str, torch.Tensor], skeletons: Mapping[str, Any]) -> RankState:
        """Return the part of a state that this rank stores.

        Raises:
            UnsupportedStateError: a sharded tensor cannot be stored as slices.
        """
        sharded = {name for name, tensor in live.items() if is_sharded(tensor)} if sharded_types() else set()
        if self._count == 1 and not sharded:
            return RankState(dict(live), dict(skeletons))
        own, partition_hash = self._own({name: tensor for name, tensor in live.items() if name not in sharded})
        stored, slices = {}, {}
        for name, tensor in live.items():
            if name in own:
                stored[name] = tensor
            elif is_sharded(tensor) and is_first_holder(tensor):
                local_slice = slice_of(name, tensor)
                stored_name = slice_name(local_slice)
                stored[stored_name], slices[stored_name] = local_tensor(tensor), local_slice
        if self._rank == 0:
            return RankState(stored, dict(skeletons), slices, partition_hash)
        used = {owner for _, owner in owners(stored, skeletons)}
        # A component of this rank alone may have no tensors.
        own_skeletons = {
            name: skeleton for name, skeleton in skeletons.items() if name in used or is_of_rank(name, self._rank)
        }
        return RankState(stored, own_skeletons, slices, partition_hash)

    def _own(self, live: Mapping[str, torch.Tensor]) -> tuple[frozenset[str], str]:
        sizes = [(name, tensor.nbytes) for name, tensor in live.items()]
        if self._assigned is None or self._assigned[0] != sizes:
            self._assigned = (sizes, *self._assign(sizes))
        return self._assigned[1:]

    def _assign(self, sizes: Sequence[tuple[str, int]]) -> tuple[frozenset[str], str]:
        own, loads, hasher = set(), [0] * self._count, xxhash.xxh3_64()
        for name, size_bytes in sorted(sizes, key=lambda item: (-item[1], item[0])):
            if self._is_same_everywhere is not None and self._is_same_everywhere(name):
                # Only these tensors are hashed: each rank computes this assignment, and all must get the same result.
                rank = min(range(self._count), key=loads.__getitem__)
                loads[rank] += size_bytes
                hasher.update(f"{name} {size_bytes} {rank};".encode())
            else:
                rank = self._rank if is_of_rank(name, self._rank) else 0
            if rank == self._rank:
                own.add(name)
        return frozenset(own), hasher.hexdigest()
