"""Gathers small tensors on their device, so that one copy to the host replaces thousands of copies.

To start a copy takes 6 to 10 microseconds. In this time, the link could transfer half a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
"""A contiguous destination in host memory, and a source on a device."""

SMALL_BYTES = 2**20
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_BYTES = 64 * 2**20
"""Device memory in bytes for one gathered copy."""


def gathered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Yield fewer pairs to copy in order, with the same effect as `pairs`.

    Small tensors with adjacent destinations are gathered into one pair. Start the copy of a pair on the current stream
    before you take the next pair, because the device memory of a pair is used again.
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
    """Whether the tensor can join `run`.

    It can if it is on the same device, and if its elements are not wider than the last elements.
    """
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
    """Return the same memory viewed as integers. A joint copy of different types would convert values and lose bits."""
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
