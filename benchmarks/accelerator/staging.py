"""The time for which a save blocks training, and the delay of the step that runs during the save."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence

import torch

from benchmarks.accelerator.report import Figure
from benchmarks.accelerator.state import state_of, timed, wait_for
from segue.checkpoints.saving.accelerator import Room, TorchAccelerator
from segue.checkpoints.saving.gathering import Pair
from segue.checkpoints.saving.staging import StagingArea

_ROUNDS = 5
_PINNED_BYTES = 2**30
_ONE_TENSOR_BYTES = 3 * 2**30
_LARGE = 4
"""Size of the large state, as a multiple of the usual state."""


def measure_staging(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """Blocking saves of few and many tensors, against one copy into memory that torch has locked."""
    limit = _pinned_copy(device, size_bytes)
    yield Figure("one copy of as much into locked memory", limit, "s")
    for tensors, most, times in ((300, 0.02, 1.05), (10_000, 0.05, 1.2)):
        seconds = _stall(device, size_bytes, tensors=tensors)
        yield Figure(f"stall of a save, {tensors:,} tensors", seconds, "s", most)
        seconds = _stall(device, size_bytes, tensors=tensors, accelerator=_Full())
        yield Figure(f"the same on a full device, {tensors:,} tensors", seconds, "s")
        yield Figure(f"the same x one copy, {tensors:,} tensors", seconds / limit, "x", times)


def measure_large(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """A state of a few kilobytes, one tensor of 3 GiB, and a state four times as large as the others."""
    one, large = min(_ONE_TENSOR_BYTES, size_bytes), _LARGE * size_bytes
    yield Figure("stall of a save of 4 KB", 1000 * _stall(device, 4096, tensors=10), "ms")
    yield Figure(f"stall of a save, one tensor of {one / 1e9:.1f} GB", _stall(device, one, tensors=1), "s")
    if device.type == "cuda" and torch.cuda.mem_get_info(device)[0] < 3.5 * large:
        return
    yield Figure(f"stall of a save of {large / 1e9:.0f} GB", _stall(device, large, tensors=1000), "s")


def measure_overlapped(device: torch.device, size_bytes: int) -> Iterator[Figure]:
    """An overlapped save beside a step, on a device without room for a copy of the state."""
    begun, longer = _overlapped(device, size_bytes)
    yield Figure("stall of an overlapped save", begun, "s", 0.015)
    yield Figure("longer step beside an overlapped save", longer, "s", 0.12)


def _pinned_copy(device: torch.device, size_bytes: int) -> float:
    """Measure by repeated copies into a smaller memory, because locking the full size takes seconds."""
    part = min(size_bytes, _PINNED_BYTES)
    pinned = torch.empty(part, dtype=torch.uint8, pin_memory=device.type == "cuda")
    live = torch.zeros(part, dtype=torch.uint8, device=device)
    return statistics.median(timed(lambda: pinned.copy_(live, non_blocking=True), device) for _ in range(_ROUNDS)) * (
        size_bytes / part
    )


class _Full(TorchAccelerator):
    """Pretend that the device has no room for a copy."""

    def room_for(self, pairs: Sequence[Pair]) -> Room | None:
        return None


def _stall(
    device: torch.device, size_bytes: int, *, tensors: int, accelerator: TorchAccelerator | None = None
) -> float:
    state, area = (
        {"model": state_of(device, size_bytes, tensors=tensors)},
        StagingArea(accelerator=accelerator),
    )
    area.prepare(state)
    found = []
    staged = area.take(state)  # It waits for the memory to be ready.
    staged.wait()
    area.release(staged)
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        staged = area.take(state)
        found.append(time.perf_counter() - began)
        staged.wait()
        area.release(staged)
    area.close()
    return statistics.median(found)


def _overlapped(device: torch.device, size_bytes: int) -> tuple[float, float]:
    live = state_of(device, size_bytes, tensors=300)
    state, area = {"model": live}, StagingArea(accelerator=_Full())
    late = frozenset(tensor.data_ptr() for tensor in live.values())
    work = torch.randn(4096 if device.type == "cuda" else 256, 4096 if device.type == "cuda" else 256, device=device)

    def step() -> None:
        for _ in range(100):
            torch.mm(work, work)

    area.prepare(state)
    area.release(area.take(state))
    begun, longer = [], []
    for _ in range(_ROUNDS):
        alone = timed(step, device)
        began = time.perf_counter()
        staged = area.begin(state, deferred=late)
        begun.append(time.perf_counter() - began)
        step()
        staged.barrier()
        wait_for(device)
        longer.append(time.perf_counter() - began - alone)
        staged.wait()
        area.release(staged)
    area.close()
    return statistics.median(begun), statistics.median(longer)
