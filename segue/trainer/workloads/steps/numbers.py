"""The transfer of a step's numbers to the host. It is one copy, and does not delay the next step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from segue.checkpoints.format.dtensor import whole
from segue.checkpoints.format.on_host import WITH_STREAMS, on_its_way

Number = torch.Tensor | float
"""A tensor of one element, or a plain number."""
_WITHIN_FP32 = (torch.float32, torch.bfloat16, torch.float16)
_ONE_BY_ONE = ("mps",)
"""Devices that have neither streams nor a data type that holds every number."""


class Numbers(NamedTuple):
    """Values that are transferred to the host together."""

    read: Callable[[], list[float]]
    """A function that waits for the values, and returns the values in the order of the request."""
    is_late: bool
    """Whether `read` may have to wait."""


def sent(numbers: Sequence[Number]) -> Numbers:
    """Start to copy these numbers to the host. Later changes of the tensors do not change the copied values."""
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
    """Return the values; None if a value is in an accelerator's memory."""
    values = []
    for number in numbers:
        if isinstance(number, torch.Tensor):
            if number.device.type != "cpu":
                return None
            number = number.item()  # noqa: PLW2901 - once a step, and in every step
        values.append(float(number))
    return values


def as_of_now(numbers: Sequence[Number]) -> list[Number]:
    """Copy the numbers from tensors that may change in place. If a tensor is sharded, all ranks must call this
    function."""
    return [number if type(number) is float else _apart(number) for number in numbers]


def _apart(number: Number) -> Number:
    if not isinstance(number, torch.Tensor):
        return float(number)
    return float(number.item()) if number.device.type == "cpu" else whole(number).detach().clone()


def together(tensors: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Join tensors of one element into one tensor on `device`, in a type that holds each value exactly."""
    kind = torch.float32 if all(tensor.dtype in _WITHIN_FP32 for tensor in tensors) else torch.float64
    return torch.stack([tensor.detach().reshape(()).to(device, kind) for tensor in tensors])
