"""Copies of small tensors to the host, which need not be waited for at once."""

from __future__ import annotations

from collections.abc import Callable

import torch

WITH_STREAMS = ("cuda", "xpu")


def on_its_way(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start copying; what is returned waits for it. Where a device has no streams, the copy is made when it is read."""
    if values.device.type not in WITH_STREAMS:
        return values.cpu
    # A program may have made another device the one on which tensors are made.
    host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.Event(device=values.device, blocking=True)
    copied.record(torch.accelerator.current_stream(values.device))

    def read() -> torch.Tensor:
        copied.synchronize()
        return host

    return read
