"""Numbers of a step on their way to the host: all in one copy, for which the next step need not wait."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from segue.checkpoints.format.dtensor import whole
from segue.checkpoints.format.on_host import WITH_STREAMS, on_its_way

Number = torch.Tensor | float
"""A tensor of one element, or its value."""
_WITHIN_FP32 = (torch.float32, torch.bfloat16, torch.float16)
_ONE_BY_ONE = ("mps",)
"""Devices without streams and without a type that holds every number."""


class Numbers(NamedTuple):
    """Values that were requested together."""

    read: Callable[[], list[float]]
    """Waits until the values have arrived, and returns them in the order in which they were requested."""
    is_late: bool
    """Whether reading the values may have to wait."""


def sent(numbers: Sequence[Number]) -> Numbers:
    """Start copying these numbers to the host. Later changes of the tensors do not affect the values that are read."""
    there = [number for number in numbers if isinstance(number, torch.Tensor) and number.device.type != "cpu"]
    if not there or there[0].device.type in _ONE_BY_ONE:
        return Numbers([float(each.item() if isinstance(each, torch.Tensor) else each) for each in numbers].copy, False)
    device = there[0].device
    tensors = [whole(number) for number in numbers if isinstance(number, torch.Tensor)]
    copied = on_its_way(together(tensors, device))

    def read() -> list[float]:
        found = iter(copied().tolist())
        return [next(found) if isinstance(number, torch.Tensor) else float(number) for number in numbers]

    return Numbers(read, is_late=device.type in WITH_STREAMS)


def on_host(numbers: Sequence[Number]) -> list[float] | None:
    """The values, if none of them is in the memory of an accelerator."""
    values = []
    for number in numbers:
        if isinstance(number, torch.Tensor):
            if number.device.type != "cpu":
                return None
            number = number.item()  # noqa: PLW2901 - once a step, and in every step
        values.append(float(number))
    return values


def as_of_now(numbers: Sequence[Number]) -> list[Number]:
    """The numbers, copied from tensors that may be changed in place. If one is sharded, all ranks must call this."""
    return [number if type(number) is float else _apart(number) for number in numbers]


def _apart(number: Number) -> Number:
    if not isinstance(number, torch.Tensor):
        return float(number)
    return float(number.item()) if number.device.type == "cpu" else whole(number).detach().clone()


def together(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Tensors of one element as one tensor on `device`, in a type that holds each value exactly."""
    kind = torch.float32 if all(tensor.dtype in _WITHIN_FP32 for tensor in tensors) else torch.float64
    return torch.stack([tensor.detach().reshape(()).to(device, kind) for tensor in tensors])
