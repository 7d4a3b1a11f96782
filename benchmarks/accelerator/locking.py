"""The time until the memory for the first save is ready, and the delay of training in this time."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from benchmarks.accelerator.report import Figure
from benchmarks.accelerator.state import state_of, wait_for
from segue.checkpoints.saving.staging import StagingArea

_LAUNCHES = 2_000


def measure_locking(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """Training launches kernels continuously while a thread touches and locks the memory."""
    state, area, work = (
        {"model": state_of(device, size_bytes, tensors=300)},
        StagingArea(),
        torch.zeros(64, device=device),
    )
    work.add_(1)
    alone = [_launched(work) for _ in range(_LAUNCHES)]
    wait_for(device)
    began = time.perf_counter()
    area.prepare(state)
    called = time.perf_counter() - began
    beside: list[float] = []
    while not area.is_ready:
        beside.append(_launched(work))
        if len(beside) % 500 == 0:
            wait_for(device)
    ready = time.perf_counter() - began
    yield Figure("getting ready for the first save: its call", called, "s", 0.05)
    yield Figure("memory of the first save is ready after", ready, "s")
    yield Figure("longest launch of a kernel meanwhile", 1000 * max(beside, default=0.0), "ms", 50.0)
    yield Figure("launches of 20 us and more meanwhile", 1000 * sum(each for each in beside if each > 2e-5), "ms")
    yield Figure("longest launch of a kernel alone", 1000 * max(alone), "ms")
    area.close()
    area, began = StagingArea(), time.perf_counter()
    area.prepare(state)
    staged = area.take(state)
    staged.wait()
    area.release(staged)
    yield Figure("a first save that comes at once", time.perf_counter() - began, "s")
    area.close()


def _launched(work: torch.Tensor) -> float:
    began = time.perf_counter()
    work.add_(1)
    return time.perf_counter() - began
