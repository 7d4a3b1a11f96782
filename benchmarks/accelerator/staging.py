"""How long a save keeps training from going on, and how much longer the step beside it takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.accelerator.report import Figure
from segue.checkpoints.saving.staging import StagingArea

_ROUNDS = 5


def measure_staging(device: torch.device, size_bytes: int) -> list[Figure]:
    """Blocking saves of few and many tensors, an overlapped one beside a step, and getting ready for the first."""
    few, prepared = _stall(device, size_bytes, tensors=300)
    many, _ = _stall(device, size_bytes, tensors=10_000)
    begun, longer = _overlapped(device, size_bytes)
    return [
        Figure("stall of a save, 300 tensors", few, "s", 0.13),
        Figure("stall of a save, 10,000 tensors", many, "s", 0.16),
        Figure("stall of an overlapped save", begun, "s", 0.015),
        Figure("longer step beside an overlapped save", longer, "s", 0.12),
        Figure("getting ready for the first save", prepared, "s", 0.05),
    ]


def _state(device: torch.device, size_bytes: int, tensors: int) -> dict[str, torch.Tensor]:
    return {f"w{n}": torch.randn(max(size_bytes // tensors // 4, 1), device=device) for n in range(tensors)}


def _stall(device: torch.device, size_bytes: int, *, tensors: int) -> tuple[float, float]:
    state, area = {"model": _state(device, size_bytes, tensors)}, StagingArea()
    prepared = _timed(lambda: area.prepare(state), device)
    found = []
    area.release(area.take(state))  # It waits for the memory to be ready.
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        staged = area.take(state)
        found.append(time.perf_counter() - began)
        area.release(staged)
    area.close()
    return statistics.median(found), prepared


def _overlapped(device: torch.device, size_bytes: int) -> tuple[float, float]:
    live = _state(device, size_bytes, 300)
    state, area = {"model": live}, StagingArea()
    late = frozenset(tensor.data_ptr() for tensor in live.values())
    work = torch.randn(4096 if device.type == "cuda" else 256, 4096 if device.type == "cuda" else 256, device=device)

    def step() -> None:
        for _ in range(100):
            torch.mm(work, work)

    area.prepare(state)
    area.release(area.take(state))
    begun, longer = [], []
    for _ in range(_ROUNDS):
        alone = _timed(step, device)
        began = time.perf_counter()
        staged = area.begin(state, deferred=late)
        begun.append(time.perf_counter() - began)
        step()
        staged.barrier()
        _wait(device)
        longer.append(time.perf_counter() - began - alone)
        staged.wait()
        area.release(staged)
    area.close()
    return statistics.median(begun), statistics.median(longer)


def _timed(work: Callable[[], Any], device: torch.device) -> float:
    _wait(device)
    began = time.perf_counter()
    work()
    _wait(device)
    return time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
