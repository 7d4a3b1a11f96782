"""Makes asynchronous copies of small tensors to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch

WITH_STREAMS = ("cuda", "xpu")


def on_its_way(values: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Start a copy to the host. The returned function waits for the copy and returns it.

    If the device has no streams, the returned function itself makes the copy.
    """
    if values.device.type not in WITH_STREAMS:
        return values.cpu
    # The device is given, because a program may have set another default device for new tensors.
    host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
    host.copy_(values, non_blocking=True)
    copied = torch.Event(device=values.device, blocking=True)
    copied.record(torch.accelerator.current_stream(values.device))

    def read() -> torch.Tensor:
        copied.synchronize()
        return host

    return read
