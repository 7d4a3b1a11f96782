"""Sharded tensors (torch's DTensor): which part of one lies here. Nothing of it is imported before somebody uses it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeGuard

import torch

from segue.checkpoints.format.layout import TensorSlice
from segue.errors import UnsupportedStateError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Whether a tensor is spread over ranks."""
    module = sys.modules.get("torch.distributed.tensor")  # Who has such a tensor has imported it, for half a second.
    return module is not None and isinstance(tensor, module.DTensor)


def sharded_types() -> frozenset[type]:
    """The type of sharded tensors, once there can be any."""
    module = sys.modules.get("torch.distributed.tensor")
    return frozenset() if module is None else frozenset({module.DTensor})


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of it that lies on this rank: all of it, where it is not sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Its value, gathered from all ranks where it is sharded; then all of them must call it."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def slice_of(name: str, tensor: DTensor) -> TensorSlice:
    """Where in it the part lies that this rank has.

    By the protocol that torch.distributed.checkpoint's planners read it by.

    Raises:
        UnsupportedStateError: it is not simply cut up.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedStateError(path=name, type_name="DTensor whose sum is still to be made")
    chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    if len(chunks) != 1:
        raise UnsupportedStateError(path=name, type_name=f"DTensor with {len(chunks)} pieces on one rank")
    ends = zip(chunks[0].offsets, chunks[0].sizes, tensor.shape, strict=True)
    if any(start + length > size for start, length, size in ends if length):
        raise UnsupportedStateError(path=name, type_name="DTensor cut up unevenly along one dimension twice")
    return TensorSlice(name, tuple(tensor.shape), tuple(chunks[0].offsets))


def is_first_holder(tensor: DTensor) -> bool:
    """Whether this rank is the first of those that hold the same piece of it; an empty piece nobody holds."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None or (tensor.to_local().numel() == 0 and tensor.numel() > 0):
        return False
    return all(at == 0 for placement, at in zip(tensor.placements, coordinate, strict=True) if placement.is_replicate())


def cut_out(tensor: torch.Tensor, piece: TensorSlice, shape: tuple[int, ...]) -> torch.Tensor:
    """The part of a whole tensor that lies where the piece does; a view."""
    return tensor[tuple(slice(start, start + length) for start, length in zip(piece.offsets, shape, strict=True))]


def placed_like(tensor: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """A whole tensor's values, spread over the ranks as `live` is; itself where that is not sharded."""
    if not is_sharded(live):
        return tensor
    from torch.distributed.tensor import DTensor

    local = live.to_local()
    part = cut_out(tensor, slice_of("state", live), tuple(local.shape))
    return DTensor.from_local(
        part.to(local.device, copy=True),  # A view would hold all of it in memory.
        live.device_mesh,
        live.placements,
        run_check=False,
        shape=live.shape,
        stride=live.stride(),
    )
