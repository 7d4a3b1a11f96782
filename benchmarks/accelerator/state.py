"""A state on a device, and functions that wait for the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def state_of(device: torch.device, size_bytes: int, *, tensors: int) -> dict[str, torch.Tensor]:
    """Make a state with this number of bytes and tensors."""
    return {f"w{n}": torch.randn(max(size_bytes // tensors // 4, 1), device=device) for n in range(tensors)}


def wait_for(device: torch.device) -> None:
    """Block until all queued work is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: torch.device) -> float:
    """Seconds until the work is done, including the work that it queues."""
    wait_for(device)
    began = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - began
