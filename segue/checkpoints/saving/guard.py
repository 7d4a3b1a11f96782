"""Whether tensors that are copied while training continues have kept their values until the copy was done."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import torch

from segue.checkpoints.saving.accelerator import Accelerator

_LOOKS, _MOST_LOOKED_AT, _MOST_ON_DEVICE = 64, 256, 32
"""Limits at the barrier: values per tensor, tensors (the largest ones), and tensors on a device (each is a kernel)."""


@dataclass(frozen=True)
class Late:
    """A tensor that must not change before the barrier."""

    live: torch.Tensor
    version: int
    looks: torch.Tensor | None
    """A few of its values at the safe point."""
    is_on_device: bool = False

    def has_changed(self) -> bool:
        """Whether the tensor was changed, judged by its version, which every change known to torch increments, and by a
        few values for changes through `.data`, which torch does not see. Values on a device are compared later."""
        if self.live._version != self.version:
            return True
        return self.looks is not None and not self.is_on_device and not torch.equal(looks_at(self.live), self.looks)


def guarded(tensors: list[torch.Tensor], accelerator: Accelerator) -> list[Late]:
    """These tensors at the safe point, with a few values of the largest tensors."""
    shown = [tensor for tensor in tensors if tensor.is_contiguous() and not tensor.is_conj()]
    on_device = [accelerator.has(tensor) for tensor in shown]
    largest: set[int] = set()
    for count, is_there in ((_MOST_LOOKED_AT, False), (_MOST_ON_DEVICE, True)):
        group = [tensor for tensor, is_on in zip(shown, on_device, strict=True) if is_on is is_there]
        largest |= {id(tensor) for tensor in heapq.nlargest(count, group, key=torch.Tensor.numel)}
    return [Late(t, t._version, looks_at(t) if id(t) in largest else None, accelerator.has(t)) for t in tensors]


def looks_at(tensor: torch.Tensor) -> torch.Tensor:
    """A few of the tensor's values, evenly spaced, as bytes."""
    stride = max(tensor.numel() // _LOOKS, 1)
    return tensor.detach().view(-1)[::stride].clone(memory_format=torch.contiguous_format).view(torch.uint8)
