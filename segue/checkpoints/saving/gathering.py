"""Gathers and copies tensors on their device, so that one copy to the host replaces thousands of copies.

Starting a copy takes 6 to 10 microseconds. In this time, the link could transfer half a megabyte. A copy within the
device takes a hundredth of the time of a copy to the host. Training cannot change the copies within the device.
Training therefore continues while these copies are sent to the host.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
"""A contiguous destination in host memory, and a source on a device."""

SMALL_BYTES = 2**20
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_BYTES = 64 * 2**20
"""Device memory in bytes for one gathered copy."""


def gathered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield fewer pairs that have the same effect as `pairs` if they are copied in order.

    Several small tensors with adjacent destinations become one pair. Start the copy of each pair on the current stream
    before you request the next pair, because all pairs use the same device memory.
    """
    run: list[Pair] = []
    end = size_bytes = 0
    for view, tensor in sorted(pairs, key=lambda pair: pair[0].data_ptr()):
        if view.nbytes == 0:
            continue
        is_small = view.nbytes < SMALL_BYTES
        goes_on = view.data_ptr() == end and size_bytes + view.nbytes <= _MOST_BYTES and _is_beside(run, tensor)
        if run and not (is_small and goes_on):
            yield from _as_one(run, size_bytes)
            run, size_bytes = [], 0
        if not is_small:
            yield view, tensor
            continue
        run.append((view, tensor))
        end, size_bytes = view.data_ptr() + view.nbytes, size_bytes + view.nbytes
    yield from _as_one(run, size_bytes)


def _is_beside(run: Sequence[Pair], tensor: torch.Tensor) -> bool:
    """Whether the tensor is on the device of `run`, and its elements are not wider than the last elements of `run`."""
    return bool(run) and run[0][1].device == tensor.device and run[-1][0].element_size() >= tensor.element_size()


@torch.no_grad()
def _as_one(run: Sequence[Pair], size_bytes: int) -> Iterator[Pair]:
    if len(run) < 2:
        yield from run
        return
    try:
        buffer = torch.empty(size_bytes, dtype=torch.uint8, device=run[0][1].device)
    except torch.OutOfMemoryError:
        yield from run  # This is slower, but needs no device memory.
        return
    parts, start = [], 0
    for view, _ in run:
        parts.append(buffer[start : start + view.nbytes].view(BITS[view.element_size()]).view(view.shape))
        start += view.nbytes
    torch._foreach_copy_(parts, [bits(tensor) for _, tensor in run])
    yield memory_of(run[0][0], size_bytes), buffer


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor's memory as integers. A joint copy of different types would convert values and lose bits."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.view(BITS[tensor.element_size()])


def memory_of(first: torch.Tensor, size_bytes: int) -> torch.Tensor:
    """Return `size_bytes` bytes of host memory, beginning at the first byte of this tensor."""
    storage = first.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    start = first.data_ptr() - storage.data_ptr()
    found: torch.Tensor = memory[start : start + size_bytes]
    return found


_ALIGNED_TO = 256
_LEFT_OF_DEVICE, _LEAST_LEFT = 0.1, 0.05
"""Shares of device memory that must stay free for training.

The first share applies when memory for copies is allocated. The second share applies as long as memory for copies is
kept.
"""


@dataclass
class DeviceRoom:
    """Memory of one device for copies of tensors, and the copies from this memory to views of host memory."""

    device: torch.device
    memory: torch.Tensor
    moves: list[Pair]
    """Copies from the device to the host, one for each contiguous range of host memory."""
    _groups: dict[torch.dtype, tuple[list[int], list[torch.Tensor]]] = field(default_factory=dict)
    """For each type, the indexes of its tensors and the views of device memory for these tensors."""

    @torch.no_grad()
    def fill(self, live: Sequence[torch.Tensor]) -> None:
        """Queue the copies within the device on the current stream."""
        for dtype, (numbers, parts) in self._groups.items():
            sources = [live[number] for number in numbers]
            # Other types are copied as integers, because torch would convert them to another type and lose bits.
            torch._foreach_copy_(parts, sources if dtype is torch.float32 else list(map(bits, sources)))


def room_on(device: torch.device, views: Sequence[torch.Tensor], numbers: Sequence[int]) -> DeviceRoom | None:
    """Return device memory for the tensors with these numbers in `views`. Return None if too little memory is free."""
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
    """Whether a device has so little free memory that the memory of the copies should be freed for training."""
    free, total = torch.cuda.mem_get_info(device)
    return free < _LEAST_LEFT * total


def memory_on(device: torch.device, size_bytes: int) -> torch.Tensor | None:
    """Allocate device memory. Return None if the device has less free memory than twice the size plus a reserve."""
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
    """Return the start of each tensor; the first view, start and size of each range; and the total bytes of all ranges.

    Tensors that are adjacent in host memory are also adjacent in device memory, with the same alignment. One copy is
    therefore enough for a range of adjacent tensors.
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
