"""Copying from accelerators: into pinned memory, on side streams that run next to the computation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

Pair = tuple[torch.Tensor, torch.Tensor]
"""Destination and source."""


def synchronise(tensors: Sequence[torch.Tensor]) -> None:
    """Wait for all queued work on the devices of these tensors."""
    for device in {tensor.device for tensor in tensors if tensor.is_cuda}:
        torch.cuda.synchronize(device)


def by_device(pairs: Sequence[Pair]) -> list[list[Pair]]:
    """The pairs, grouped by source device."""
    devices = dict.fromkeys(tensor.device for _, tensor in pairs)
    return [[pair for pair in pairs if pair[1].device == device] for device in devices]


@torch.no_grad()
def copy_on_side_stream(pairs: Sequence[Pair]) -> torch.cuda.Event:
    """Start copying tensors that are all on one device."""
    device = pairs[0][1].device
    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for view, tensor in pairs:
            view.copy_(tensor, non_blocking=True)
            tensor.record_stream(side)
        copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(side)
    return copied


def pin(memory: torch.Tensor) -> None:
    """Lock the pages, so that the device copies into them directly."""
    cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(cudart.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))


def unpin(views: Sequence[torch.Tensor]) -> None:
    if any(view.is_pinned() for view in views[:1]):
        start = views[0].untyped_storage().data_ptr()
        cudart = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        torch.cuda.check_error(cudart.cudaHostUnregister(start))
