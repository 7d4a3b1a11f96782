"""Two types of training step, which a background save slows in different ways, and the measurement of this slowdown."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

_WANTED_STEP_SECONDS = 0.02
_IDLE_STEPS = 20
_IDLE_STEPS_BETWEEN = 5
_WANTED_STEPS = 20
_FEWEST_STEPS = 5
_WARM_STEPS = 3
_MOST_JOBS, _MOST_SHORT_JOBS = 12, 100
"""Number of jobs after which the steps so far are enough, and after which too few steps are an error."""
_ENOUGH_SECONDS = 4.0
"""Time after which the steps so far are enough."""
_WIDTH = 1024


class StepKind(StrEnum):
    """The type of work in a training step."""

    MATMUL = "matmul"
    """Long kernels on all cores: competes with a save for cores and memory bandwidth."""
    DISPATCH = "dispatch"
    """Very many tiny operations: competes with a save for the interpreter lock."""


@dataclass(frozen=True)
class StepSizes:
    """Sizes with which both steps take about 20 ms on this machine. All savers are compared with the same sizes."""

    matmul_batch: int
    dispatch_layers: int


@dataclass(frozen=True)
class Slowdown:
    """Training steps during one or more background jobs."""

    idle_step_seconds: float
    busy_step_seconds: float
    busy_steps: int
    lost_seconds: float
    """The median over the jobs of the training time that one job takes: the stall, and what the steps beside it take
    longer than idle steps."""

    @property
    def ratio(self) -> float:
        return self.busy_step_seconds / self.idle_step_seconds


class TooFewStepsError(Exception):
    """The background job ended before enough steps were measured during it."""

    def __init__(self, *, steps: int, jobs: int) -> None:
        self.steps, self.jobs = steps, jobs
        super().__init__(f"only {steps} steps were measured during {jobs} background jobs. Fix: use a larger --size.")


class TrainingStep:
    """One optimizer step of a small model, made the same way every time."""

    def __init__(self, kind: StepKind, sizes: StepSizes) -> None:
        torch.manual_seed(0)
        if kind is StepKind.MATMUL:
            self._model = nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU(), nn.Linear(_WIDTH, _WIDTH))
            self._batch = torch.randn(sizes.matmul_batch, _WIDTH)
        else:
            layers = [layer for _ in range(sizes.dispatch_layers) for layer in (nn.Linear(8, 8), nn.Tanh())]
            self._model = nn.Sequential(*layers)
            self._batch = torch.randn(4, 8)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=1e-6, foreach=False)

    def run(self) -> float:
        """Make one step, and return its duration in seconds."""
        started = time.perf_counter()
        self._optimizer.zero_grad(set_to_none=False)
        self._model(self._batch).square().mean().backward()
        self._optimizer.step()
        return time.perf_counter() - started


def calibrate() -> StepSizes:
    """Find sizes whose steps take about 20 ms on this machine."""
    few = StepSizes(matmul_batch=64, dispatch_layers=32)
    many = StepSizes(matmul_batch=256, dispatch_layers=128)
    return StepSizes(
        matmul_batch=_size_for_wanted(StepKind.MATMUL, (64, few), (256, many)),
        dispatch_layers=_size_for_wanted(StepKind.DISPATCH, (32, few), (128, many)),
    )


def slowdown(kind: StepKind, sizes: StepSizes, *, start: Callable[[], None], wait: Callable[[], None]) -> Slowdown:
    """Compare steps during a background job with idle steps before and after the job.

    `start` begins a job and blocks for the stall, which is not part of any step; `wait` blocks until the job is done
    and is called from another thread. `busy_step_seconds` uses a step if a job ran for more than half of the step's
    time; `lost_seconds` uses every step during which a job ran.

    Raises:
        TooFewStepsError: the jobs ended too soon for a valid figure.
    """
    step = TrainingStep(kind, sizes)
    for _ in range(_WARM_STEPS):
        step.run()
    busy: list[float] = []
    stalls: list[float] = []
    beside: list[list[float]] = []
    idle = [step.run() for _ in range(_IDLE_STEPS)]
    jobs, ends_at = 0, time.perf_counter() + _ENOUGH_SECONDS
    while len(busy) < _WANTED_STEPS and jobs < _MOST_SHORT_JOBS:
        if len(busy) >= _FEWEST_STEPS and (jobs >= _MOST_JOBS or time.perf_counter() > ends_at):
            break
        began = time.perf_counter()
        start()
        stalls.append(time.perf_counter() - began)
        steps, ended_at = _steps_beside(step, wait)
        busy += [seconds for started_at, seconds in steps if started_at + seconds / 2 <= ended_at]
        beside.append([seconds for _, seconds in steps])
        jobs += 1
        # Many short jobs need fewer idle steps between them.
        idle += [step.run() for _ in range(_IDLE_STEPS if jobs == 1 else _IDLE_STEPS_BETWEEN)]
    if len(busy) < _FEWEST_STEPS:
        raise TooFewStepsError(steps=len(busy), jobs=jobs)
    # A mean, because slow steps that have nothing to do with the job would otherwise count as lost.
    usual = statistics.fmean(idle)
    lost = [stall + sum(steps) - usual * len(steps) for stall, steps in zip(stalls, beside, strict=True)]
    return Slowdown(statistics.median(idle), statistics.median(busy), len(busy), lost_seconds=statistics.median(lost))


def _steps_beside(step: TrainingStep, wait: Callable[[], None]) -> tuple[list[tuple[float, float]], float]:
    """The start and duration of each step during a job, and the end of the job."""
    ended_at: list[float] = []
    failures: list[BaseException] = []

    def watch() -> None:
        try:
            wait()
        except BaseException as failure:  # DCP's own errors are no Exceptions.
            failures.append(failure)
        ended_at.append(time.perf_counter())

    watcher = threading.Thread(target=watch, name="waits-for-the-save")
    watcher.start()
    steps: list[tuple[float, float]] = []
    while not ended_at:
        started_at = time.perf_counter()
        steps.append((started_at, step.run()))
    watcher.join()
    if failures:
        raise failures[0]
    return steps, ended_at[0]


def _size_for_wanted(kind: StepKind, few: tuple[int, StepSizes], many: tuple[int, StepSizes]) -> int:
    (low, low_sizes), (high, high_sizes) = few, many
    low_seconds = _median_of(TrainingStep(kind, low_sizes), _IDLE_STEPS)
    high_seconds = _median_of(TrainingStep(kind, high_sizes), _IDLE_STEPS)
    seconds_each = max((high_seconds - low_seconds) / (high - low), 1e-6)
    return max(1, round(low + (_WANTED_STEP_SECONDS - low_seconds) / seconds_each))


def _median_of(step: TrainingStep, count: int) -> float:
    step.run()
    return statistics.median(step.run() for _ in range(count))
