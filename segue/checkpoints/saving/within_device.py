"""Copies of state within its device: they take a hundredth of the time of a copy to the host.

They hold the safe point whatever training does next, so training continues while they are copied to the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from segue.checkpoints.saving.gathering import BITS, Pair, bits, memory_of

_ALIGNED_TO = 256
_LEFT_OF_DEVICE, _LEAST_LEFT = 0.1, 0.05
"""Share of a device's memory that must be left for later needs of training: to take memory, and to keep it."""


@dataclass
class DeviceRoom:
    """Memory of one device for a copy of tensors, which continue from there to views of host memory."""

    device: torch.device
    memory: torch.Tensor
    moves: list[Pair]
    """Copies from the device to the host: one for each range of host memory that the tensors fill."""
    _groups: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = field(default_factory=dict)
    """For each type, the numbers of its tensors and their places."""

    @torch.no_grad()
    def fill(self, live: Sequence[torch.Tensor]) -> None:
        """Queue the copies within the device, on its current stream."""
        for dtype, (numbers, parts) in self._groups.items():
            sources = [live[number] for number in numbers]
            # Other types would be copied by way of another type, which loses bits.
            torch._foreach_copy_(parts, sources if dtype is torch.float32 else list(map(bits, sources)))


def room_on(device: torch.device, views: Sequence[torch.Tensor], numbers: Sequence[int]) -> DeviceRoom | None:
    """Room for the tensors with these numbers, of all that go to `views`; None if the device has too little."""
    starts, ranges, size_bytes = _placed(views, numbers)
    memory = memory_on(device, size_bytes)
    if memory is None:
        return None
    moves = [(memory_of(views[first], size), memory[start : start + size]) for first, start, size in ranges]
    groups: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = defaultdict(lambda: ([], []))
    for number, start in starts.items():
        view = views[number]
        part = memory[start : start + view.nbytes].view(_held_as(view.dtype)).view(view.shape)
        groups[view.dtype][0].append(number)
        groups[view.dtype][1].append(part)
    return DeviceRoom(device, memory, moves, dict(groups))


def is_short(device: torch.device) -> bool:
    """Whether a device has so little memory left that training should also get the memory of the copies."""
    free, total = torch.cuda.mem_get_info(device)
    return free < _LEAST_LEFT * total


def memory_on(device: torch.device, size_bytes: int) -> torch.Tensor | None:
    """This much memory of a device, if twice as much is left, and some more for later needs of training."""
    if device.type != "cuda" or not size_bytes:
        return None
    free, total = torch.cuda.mem_get_info(device)
    if free < 2 * size_bytes + _LEFT_OF_DEVICE * total:
        return None
    try:
        return torch.empty(size_bytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError:
        return None


def _placed(
    views: Sequence[torch.Tensor], numbers: Sequence[int]
) -> tuple[dict[int, int], list[tuple[int, int, int]], int]:
    """The start of each tensor; the first view, start and size of each range; and the bytes of all ranges.

    Neighbours in the host's memory are neighbours here, at the same alignment, so that one copy moves them all.
    """
    starts: dict[int, int] = {}
    ranges: list[tuple[int, int, int]] = []
    end = address_after = -1
    for number in sorted(numbers, key=lambda number: views[number].data_ptr()):
        view = views[number]
        if not view.nbytes:
            continue
        address = view.data_ptr()
        if address == address_after:
            first, start, size = ranges.pop()
        else:
            first, start, size = number, -(-max(end, 0) // _ALIGNED_TO) * _ALIGNED_TO + address % _ALIGNED_TO, 0
        starts[number] = start + size
        ranges.append((first, start, size + view.nbytes))
        end, address_after = start + size + view.nbytes, address + view.nbytes
    return starts, ranges, max(end, 0)


def _held_as(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype is torch.float32 else BITS[dtype.itemsize]
