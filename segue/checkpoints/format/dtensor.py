"""Handles sharded tensors (torch's DTensor) and the slices of this rank.

The module imports DTensor only if a recipe uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch

from segue.checkpoints.format.collections import loaded_type
from segue.checkpoints.format.layout import TensorSlice
from segue.errors import UnsupportedStateError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def is_sharded(tensor: Any) -> TypeGuard[DTensor]:
    """Whether a tensor is a DTensor that is sharded over ranks."""
    # If DTensor was never imported, no such tensor exists; the import would take half a second.
    return isinstance(tensor, loaded_type("torch.distributed.tensor", "DTensor"))


def sharded_types() -> frozenset[type]:
    """Return the type of sharded tensors. The result is empty if DTensor was never imported."""
    found = loaded_type("torch.distributed.tensor", "DTensor")
    return frozenset({found} if found else ())


def local_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the slice of this rank if the tensor is sharded. If it is not sharded, return the tensor itself."""
    return tensor.to_local() if is_sharded(tensor) else tensor


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor.

    If the tensor is sharded, the function gathers it from all ranks. All ranks must then call the function.
    """
    return tensor.full_tensor() if is_sharded(tensor) else tensor


def slice_of(name: str, tensor: DTensor) -> TensorSlice:
    """Return the slice of a sharded tensor on this rank.

    The function uses the protocol of torch.distributed.checkpoint.

    Raises:
        UnsupportedStateError: this rank does not have exactly one contiguous slice of the tensor.
    """
    if any(placement.is_partial() for placement in tensor.placements):
        raise UnsupportedStateError(
            path=name, type_name="DTensor with a partial placement (its sum over ranks is pending)"
        )
    chunks = tensor.__create_chunk_list__()  # type: ignore[no-untyped-call]
    if len(chunks) != 1:
        raise UnsupportedStateError(path=name, type_name=f"DTensor with {len(chunks)} slices on one rank")
    ends = zip(chunks[0].offsets, chunks[0].sizes, tensor.shape, strict=True)
    if any(start + length > size for start, length, size in ends if length):
        raise UnsupportedStateError(path=name, type_name="DTensor sharded unevenly along one dimension twice")
    return TensorSlice(name, tuple(tensor.shape), tuple(chunks[0].offsets))


def is_first_holder(tensor: DTensor) -> bool:
    """Whether this rank is the first of the ranks that hold the same slice. The result is False for an empty slice."""
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None or (tensor.to_local().numel() == 0 and tensor.numel() > 0):
        return False
    return all(at == 0 for placement, at in zip(tensor.placements, coordinate, strict=True) if placement.is_replicate())


class SliceNotReadError(LookupError):
    """The requested slice was not read from the checkpoint."""


class PartlyRead(NamedTuple):
    """The slices of a tensor that were read, by the offsets of the slices."""

    slices: Mapping[tuple[int, ...], torch.Tensor]


def partly_read(
    shape: tuple[int, ...], dtype: torch.dtype, slices: Mapping[tuple[int, ...], torch.Tensor]
) -> torch.Tensor:
    """Return a tensor of this shape, of which only the given slices were read.

    The tensor is on the meta device, so that it cannot be read by mistake.
    """
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    tensor._segue_slices = PartlyRead(slices)  # type: ignore[attr-defined]
    return tensor


def wholly_read(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself.

    Raises:
        SliceNotReadError: only some slices of the tensor were read.
    """
    if isinstance(tensor, torch.Tensor) and hasattr(tensor, "_segue_slices"):
        raise SliceNotReadError(f"a tensor of shape {tuple(tensor.shape)} that is no longer sharded")
    return tensor


def view_of_slice(tensor: torch.Tensor, tensor_slice: TensorSlice, shape: tuple[int, ...]) -> torch.Tensor:
    """Return a view of the given slice of a whole tensor.

    Raises:
        SliceNotReadError: the slice was not read.
    """
    if tensor.is_meta:
        read: PartlyRead = getattr(tensor, "_segue_slices", PartlyRead({}))
        found = read.slices.get(tensor_slice.offsets)
        if 0 in shape:
            return torch.empty(shape, dtype=tensor.dtype)
        if found is None or tuple(found.shape) != shape:
            raise SliceNotReadError(f"{tensor_slice.tensor} at {tensor_slice.offsets}")
        return found
    starts = zip(tensor_slice.offsets, shape, strict=True)
    return tensor[tuple(slice(start, start + length) for start, length in starts)]


def placed_like(tensor: torch.Tensor, live: torch.Tensor) -> torch.Tensor:
    """Shard a whole tensor over the ranks like `live`. If `live` is not sharded, return the tensor unchanged.

    Raises:
        SliceNotReadError: the slice of this rank was not read.
    """
    if not is_sharded(live):
        return wholly_read(tensor)
    from torch.distributed.tensor import DTensor

    local = live.to_local()
    values = view_of_slice(tensor, slice_of("state", live), tuple(local.shape))
    return DTensor.from_local(
        values.to(local.device, copy=True),  # A view would keep the whole tensor in memory.
        live.device_mesh,
        live.placements,
        run_check=False,
        shape=live.shape,
        stride=live.stride(),
    )


class _Place(NamedTuple):
    """The position of a slice in its tensor."""

    whole: tuple[int, ...]
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


@dataclass(frozen=True)
class OwnSlices:
    """The positions of the slices of this rank. An optimizer's state is sharded like the optimizer's parameters."""

    places: frozenset[_Place]

    @classmethod
    def of(cls, parameters: Iterable[torch.Tensor]) -> OwnSlices | None:
        """Return the slices of these parameters. Return None if no parameter is sharded."""
        places = set()
        has_sharded = False
        for parameter in parameters:
            if is_sharded(parameter):
                has_sharded = True
                own, local = slice_of("parameter", parameter), parameter.to_local()
                if local.numel():  # No rank stores an empty slice.
                    places.add(_Place(own.shape, own.offsets, tuple(local.shape)))
        return cls(frozenset(places)) if has_sharded else None

    def others(self, slices: Mapping[str, TensorSlice], shapes: Mapping[str, tuple[int, ...]]) -> frozenset[str]:
        """Return the names of the stored slices that only other ranks need.

        The result is empty if the stored state and the parameters are sharded differently.
        """
        stored = {name: _Place(each.shape, each.offsets, shapes[name]) for name, each in slices.items()}
        if not self.places <= set(stored.values()):
            return frozenset()
        # If no slice of a tensor is at one of these places, it is not known which rank needs which slice.
        mine = {slices[name].tensor for name, place in stored.items() if place in self.places}
        return frozenset(
            name for name, place in stored.items() if slices[name].tensor in mine and place not in self.places
        )
