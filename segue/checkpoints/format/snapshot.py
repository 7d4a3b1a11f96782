"""Makes snapshots, and asynchronous copies of small tensors to the host. A snapshot contains all state at one safe
point, as JSON skeletons and tensors."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from segue.checkpoints.format.digests import Digests, TensorDigest, digests_of, hash_bytes
from segue.checkpoints.format.dtensor import is_sharded, local_tensor, slice_of
from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.names import slice_name
from segue.checkpoints.format.state_tree import Json, encode_tree


@dataclass(frozen=True)
class Snapshot:
    """State as plain data.

    The tensors are contiguous and on the CPU. If `take` was called with `to_host=False`, the tensors may be on an
    accelerator.
    """

    skeletons: dict[str, Json]
    tensors: dict[str, torch.Tensor]
    slices: dict[str, TensorSlice] = field(default_factory=dict)
    """For each tensor that is a slice: the position of the slice in the larger tensor. Other ranks have other
    slices."""

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


def take(components: Mapping[str, Any], *, copy: bool = True, to_host: bool = True) -> Snapshot:
    """Copy the state trees of all components. The method blocks for about the time of one memory copy.

    With `copy=False`, CPU tensors are not copied. With `to_host=False`, tensors on accelerators are not copied. Use
    `copy=False` and `to_host=False` only for digests that are computed before training continues.

    Raises:
        UnsupportedStateError: a component contains a value that cannot be stored.
    """
    live: dict[str, torch.Tensor] = {}
    skeletons = {name: encode_tree(tree, path=name, tensors=live) for name, tree in components.items()}
    tensors, slices = {}, {}
    for name, tensor in live.items():
        stored_name = name
        if is_sharded(tensor):
            local_slice = slice_of(name, tensor)
            stored_name = slice_name(local_slice)
            slices[stored_name] = local_slice
        local = local_tensor(tensor)
        stays = not to_host and local.device.type != "cpu" and not (local.is_conj() or local.is_neg())
        tensors[stored_name] = local.detach() if stays else _on_cpu(local, copy=copy)
    return Snapshot(skeletons, tensors, slices)


def digest(snapshot: Snapshot) -> Digests:
    """Return the digests of all tensors and of all components."""
    tensors = {
        name: TensorDigest(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), hash_bytes(raw_bytes(tensor)))
        for name, tensor in snapshot.tensors.items()
    }
    return digests_of(as_json(snapshot.skeletons), tensors)


def as_json(skeletons: Mapping[str, Json]) -> dict[str, bytes]:
    """Return the skeleton of each component as JSON bytes, in the form that is stored and hashed."""
    return {name: json.dumps(skeleton).encode() for name, skeleton in skeletons.items()}


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy."""
    flat = tensor.detach().reshape(-1)
    # A single element counts as contiguous with any stride, but viewing its bytes needs a stride of one.
    return flat.as_strided(flat.shape, (1,)).view(torch.uint8).numpy().data


def _on_cpu(tensor: torch.Tensor, *, copy: bool) -> torch.Tensor:
    # memory_format is given, because a channels-last tensor counts as contiguous in its own format; its bytes would
    # then depend on strides, which are not stored.
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not copy:
        return tensor
    moved = tensor.to("cpu")
    if moved.is_contiguous() and moved.data_ptr() != tensor.data_ptr():
        return moved
    return moved.clone(memory_format=torch.contiguous_format)


WITH_STREAMS = ("cuda", "xpu")


def on_its_way(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start a copy to the host. The returned function waits for the copy and returns the copied tensor.

    If the device has no streams, the returned function itself makes the copy.
    """
    if values.device.type not in WITH_STREAMS:
        return values.cpu
    # The device is given, because a program may have set another default device for new tensors.
    host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.Event(device=values.device, blocking=True)
    copied.record(torch.accelerator.current_stream(values.device))

    def read() -> torch.Tensor:
        copied.synchronize()
        return host

    return read
