"""A snapshot: all state at one safe point, copied off the live objects, with its digests."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash

from segue.checkpoints.codec import Json, encode_tree
from segue.records import TensorInfo


@dataclass(frozen=True)
class Snapshot:
    """State that training can no longer change. `tensors` are contiguous and on the CPU."""

    skeletons: dict[str, Json]
    tensors: dict[str, torch.Tensor]

    @property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Digests:
    """What a state is, in a few bytes for each component and tensor."""

    components: dict[str, str]
    tensors: dict[str, TensorInfo]


def take(components: Mapping[str, Any], *, copy: bool = True) -> Snapshot:
    """Copy the state trees of all components. Blocks for about one memory copy.

    With `copy=False` CPU tensors are the live ones: only for digests taken before anything moves on.

    Raises:
        UnsupportedStateError: a component holds something that is not data.
    """
    live: dict[str, torch.Tensor] = {}
    skeletons = {name: encode_tree(tree, path=name, tensors=live) for name, tree in components.items()}
    return Snapshot(skeletons=skeletons, tensors={name: _on_cpu(tensor, copy=copy) for name, tensor in live.items()})


def digest(snapshot: Snapshot) -> Digests:
    """Digests of every tensor and of every component as a whole (xxh3, 128 bits; not against forgers)."""
    tensors = {
        name: TensorInfo(
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            digest=xxhash.xxh3_128_hexdigest(raw_bytes(tensor)),
        )
        for name, tensor in snapshot.tensors.items()
    }
    hashers = {name: xxhash.xxh3_128(json.dumps(skeleton).encode()) for name, skeleton in snapshot.skeletons.items()}
    for name in sorted(tensors):
        component = component_of(name, snapshot.skeletons)
        hashers[component].update(f"{name}:{tensors[name].model_dump_json()}".encode())
    return Digests(components={name: hasher.hexdigest() for name, hasher in hashers.items()}, tensors=tensors)


def component_of(tensor_name: str, components: Mapping[str, Any]) -> str:
    """The component a tensor belongs to; the longest name that is a prefix of its path."""
    owners = [name for name in components if tensor_name == name or tensor_name.startswith(f"{name}.")]
    return max(owners, key=len)


def raw_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


def _on_cpu(tensor: torch.Tensor, *, copy: bool) -> torch.Tensor:
    # memory_format: a channels-last tensor counts as contiguous in its own format, but its bytes
    # would then depend on strides that the shape does not tell.
    tensor = tensor.detach()
    if tensor.device.type == "cpu" and tensor.is_contiguous() and not copy:
        return tensor
    moved = tensor.to("cpu")
    if moved.is_contiguous() and moved.data_ptr() != tensor.data_ptr():
        return moved
    return moved.clone(memory_format=torch.contiguous_format)
