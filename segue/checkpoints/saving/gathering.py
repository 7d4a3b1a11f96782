"""Gathering small tensors on their device, so that one copy to the host takes the place of thousands.

Each copy takes 6 to 10 microseconds to start, in which the link could move half a megabyte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
"""Destination in host memory, contiguous, and source on a device."""

SMALL_BYTES = 2**20
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_MOST_BYTES = 64 * 2**20
"""Device memory that a gathered copy takes."""


def gathered(pairs: Sequence[Pair]) -> Iterator[Pair]:
    """Pairs to be copied one after the other, with the same effect as `pairs`.

    Small tensors whose destinations are neighbours are copied as one. Start a pair's copy on the current stream before
    the next pair is drawn: the device memory is then reused.
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
    """Whether it is on the device of `run`. Each destination stays aligned to its elements, from wide to narrow."""
    return bool(run) and run[0][1].device == tensor.device and run[-1][0].element_size() >= tensor.element_size()


@torch.no_grad()
def _as_one(run: Sequence[Pair], size_bytes: int) -> Iterator[Pair]:
    if len(run) < 2:
        yield from run
        return
    try:
        buffer = torch.empty(size_bytes, dtype=torch.uint8, device=run[0][1].device)
    except torch.OutOfMemoryError:
        yield from run  # Slower, but needs no memory.
        return
    parts, start = [], 0
    for view, _ in run:
        parts.append(buffer[start : start + view.nbytes].view(BITS[view.element_size()]).view(view.shape))
        start += view.nbytes
    torch._foreach_copy_(parts, [bits(tensor) for _, tensor in run])
    yield memory_of(run[0][0], size_bytes), buffer


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers: copies of several types at once pass through other types, which lose bits."""
    tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.view(BITS[tensor.element_size()])


def memory_of(first: torch.Tensor, size_bytes: int) -> torch.Tensor:
    """`size_bytes` of host memory, from the first byte of this tensor on."""
    storage = first.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, 0, (storage.nbytes(),))  # type: ignore[call-overload]
    start = first.data_ptr() - storage.data_ptr()
    found: torch.Tensor = memory[start : start + size_bytes]
    return found
