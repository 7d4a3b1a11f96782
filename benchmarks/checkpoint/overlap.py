"""Overlapped staging: the part of the copy that still delays a training step, compared with blocking staging and a
plain copy."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import torch
from torch import nn

from segue.checkpoints.saving.staging import StagingArea
from segue.trainer.workloads.state import changed_by_optimizer

_WIDTH = 2048
_BATCH = 128
_STATE_PER_PARAMETER = 3
"""Number of values for each parameter. AdamW keeps two more values."""


@dataclass(frozen=True)
class OverlapTimes:
    """One round, in seconds."""

    memcpy: float
    """Time of one copy of the same bytes by one thread."""
    idle_step: float
    blocking_stall: float
    overlapped_stall: float
    """Time for which `begin` blocked."""
    overlapped_step: float
    """Time of the training step during which the other bytes were copied."""

    @property
    def stall_x_memcpy(self) -> float:
        return self.overlapped_stall / self.memcpy

    @property
    def step_x_memcpy(self) -> float:
        """Additional time of the step, as a multiple of a plain copy."""
        return (self.overlapped_step - self.idle_step) / self.memcpy


class OverlapBench:
    """A model trained with AdamW whose whole state has about `size_bytes`."""

    def __init__(self, *, size_bytes: int, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.manual_seed(0)
        layers = max(1, round(size_bytes / (4 * _STATE_PER_PARAMETER * _WIDTH * _WIDTH)))
        self._model = nn.Sequential(*(nn.Linear(_WIDTH, _WIDTH) for _ in range(layers)))
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=1e-6)
        self._batch = torch.randn(_BATCH, _WIDTH)
        self._threads = threads
        self._step()
        self._staging = StagingArea()
        self._staging.prepare(self._trees())
        self._staging.release(self._staging.take(self._trees()))
        self.state_bytes = sum(
            tensor.nbytes for slots in self._optimizer.state.values() for tensor in slots.values()
        ) + sum(parameter.nbytes for parameter in self._model.parameters())
        self._source = torch.ones(self.state_bytes // 4)
        self._target = torch.zeros_like(self._source)

    def round(self) -> OverlapTimes:
        """Measure one round. The idle step is the median of the idle steps around the overlapped step."""
        memcpy_seconds = self._memcpy()
        before = [self._step(), self._step()]
        started = time.perf_counter()
        self._staging.release(self._staging.take(self._trees()))
        blocking_seconds = time.perf_counter() - started
        before.append(self._step())
        started = time.perf_counter()
        staged = self._staging.begin(self._trees(), deferred=changed_by_optimizer(self._optimizer))
        overlapped_seconds = time.perf_counter() - started
        hook = self._optimizer.register_step_pre_hook(lambda *_: staged.barrier())
        step_seconds = self._step()
        hook.remove()
        staged.wait()
        if staged.is_torn:
            raise RuntimeError("the overlapped copy was torn, so its time is not valid")
        self._staging.release(staged)
        idle = [*before, self._step(), self._step()]
        return OverlapTimes(
            memcpy=(memcpy_seconds + self._memcpy()) / 2,
            idle_step=statistics.median(idle),
            blocking_stall=blocking_seconds,
            overlapped_stall=overlapped_seconds,
            overlapped_step=step_seconds,
        )

    def close(self) -> None:
        """Free everything."""
        self._staging.close()

    def _trees(self) -> dict[str, object]:
        return {"model": dict(self._model.state_dict()), "optimizer": self._optimizer.state_dict()}

    def _step(self) -> float:
        started = time.perf_counter()
        self._optimizer.zero_grad()
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        return time.perf_counter() - started

    def _memcpy(self) -> float:
        torch.set_num_threads(1)
        started = time.perf_counter()
        self._target.copy_(self._source)
        seconds = time.perf_counter() - started
        torch.set_num_threads(self._threads)
        return seconds
