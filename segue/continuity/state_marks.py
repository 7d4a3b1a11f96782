"""Computes state marks.

A state mark is a short hash and a norm of a part of the state after a step. State marks serve to compare the state
after a replay with the state after the original steps. The rows of a witness contain only the numbers that a step
computes. A step may change state that no later step of the window reads, for example batch statistics, an average, a
mode, or the count of a scheduler. Only the state marks show a difference in state that no later step reads.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import xxhash

from segue.checkpoints.format.dtensor import local_tensor
from segue.checkpoints.format.snapshot import on_its_way, raw_bytes
from segue.checkpoints.format.state_tree import encode_tree
from segue.errors import UnsupportedStateError
from segue.records import StateMark

WHOLE_ELEMENTS = 16_384
"""Maximum number of elements of a tensor that is hashed whole. A larger tensor is sampled evenly.

A sample is enough, because an update changes all elements of a tensor. Reading gigabytes after each commit would take
longer than the commit.
"""
_SAMPLED = 4_096


Marks = Callable[[], dict[str, StateMark]]
"""A function that waits for the copied values of a state and returns the marks."""


def state_marks(parts: Mapping[str, Any]) -> dict[str, StateMark]:
    """Return a mark of each part of the state.

    `parts` contains state trees by name. A part of the state that cannot be stored has no mark.
    """
    return begin_marks(parts)()


def begin_marks(parts: Mapping[str, Any]) -> Marks:
    """Queue the copies for the marks after the pending work of a device. The returned function waits for the copies."""
    begun = {}
    for name, tree in parts.items():
        try:
            begun[name] = _begin(tree)
        except UnsupportedStateError:
            continue  # The next save reports this part.
    return lambda: {name: finish() for name, finish in begun.items()}


def _begin(tree: Any) -> Callable[[], StateMark]:
    tensors: dict[str, torch.Tensor] = {}
    skeleton = encode_tree(tree, path="", tensors=tensors)
    groups = [(dtype, on_its_way(_joined(group))) for (dtype, _), group in _by_kind(tensors).items()]
    shapes = repr([(name, str(t.dtype), tuple(t.shape)) for name, t in sorted(tensors.items())]).encode()

    def finish() -> StateMark:
        numbers: list[float] = []
        plain = xxhash.xxh3_64(json.dumps(_without_floats(skeleton, numbers), sort_keys=True).encode())
        exact = xxhash.xxh3_64()
        exact.update(repr(numbers).encode())
        squares = [number * number for number in numbers]
        for dtype, values_of in groups:
            values = values_of()
            if dtype.is_floating_point or dtype.is_complex:
                squares.append(_square(values))
                exact.update(raw_bytes(values))
            else:
                plain.update(raw_bytes(values))
        plain.update(shapes)
        exact.update(plain.digest())
        norm = math.sqrt(math.fsum(squares)) if squares else None
        return StateMark(digest=exact.hexdigest(), plain=plain.hexdigest(), norm=norm)

    return finish


def _without_floats(tree: Any, numbers: list[float]) -> Any:
    """Return the tree in a fixed order without its floating-point numbers, which are appended to `numbers`."""
    if isinstance(tree, float):
        numbers.append(tree)
        return None
    if isinstance(tree, list):
        return [_without_floats(item, numbers) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$tensors"}:
        return sorted(tree["$tensors"][1])
    if tree.keys() == {"$pairs"}:
        return [[key, _without_floats(value, numbers)] for key, value in sorted(tree["$pairs"], key=repr)]
    return {key: _without_floats(tree[key], numbers) for key in sorted(tree)}


def _by_kind(tensors: Mapping[str, torch.Tensor]) -> dict[tuple[torch.dtype, torch.device], list[torch.Tensor]]:
    """Return samples of all tensors in the order of names.

    The function groups the samples by type and device, so that each group can be joined.
    """
    found: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = defaultdict(list)
    for name in sorted(tensors):
        tensor = local_tensor(tensors[name]).detach()
        found[tensor.dtype, tensor.device].append(_sampled(tensor))
    return found


def _sampled(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if flat.numel() <= WHOLE_ELEMENTS:
        return flat
    # The stride is odd, so that samples of a matrix with an even number of columns are not all in one column.
    return flat[:: flat.numel() // _SAMPLED | 1]


def _joined(group: list[torch.Tensor]) -> torch.Tensor:
    """Return the samples as one tensor, which is a copy."""
    if group[0].element_size() == 1:  # Torch cannot join some types of eight bits.
        group = [tensor.contiguous().view(torch.uint8) for tensor in group]
    return group[0].contiguous().clone() if len(group) == 1 else torch.cat(group)


def _square(values: torch.Tensor) -> float:
    """Return the sum of squares of the finite values."""
    if values.dtype is torch.uint8:
        return 0.0
    norm = float(torch.linalg.vector_norm(values, dtype=_wide(values.dtype)))
    if not math.isfinite(norm):
        norm = float(torch.linalg.vector_norm(values[values.isfinite()], dtype=_wide(values.dtype)))
    return norm * norm


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64
