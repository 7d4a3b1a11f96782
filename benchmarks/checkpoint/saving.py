"""A saver's process: saves, loads and training steps, each timed alone."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.checkpoint.savers import Saver, make_saver, make_state
from benchmarks.checkpoint.steps import Slowdown, StepKind, StepSizes, slowdown

_TOUCHED_EVERY_BYTES = 4096
_SECONDS_BEFORE_FIRST_SAVE = 0.5
"""A saver may prepare memory in the background until the first save, which comes after the first steps of a training.
"""


@dataclass(frozen=True)
class SaverFacts:
    """The facts that a saver reports about itself."""

    is_background: bool
    verifies: bool
    note: str


@dataclass(frozen=True)
class SaveTimes:
    """The times of one save, measured from the call."""

    stall_seconds: float
    durable_seconds: float


@dataclass(frozen=True)
class Saved:
    """A checkpoint on disk that can be loaded."""

    step: int
    files: list[Path]
    size_bytes: int


class WrongBytesError(Exception):
    """The loaded bytes differ from the saved bytes."""

    def __init__(self, *, step: int, names: list[str]) -> None:
        self.step, self.names = step, names
        super().__init__(f"step {step} came back with other bytes in {len(names)} tensors, e.g. {names[:3]}")


class SaverBench:
    """One saver and the state it saves."""

    def __init__(self, name: str, *, size_bytes: int, tensors: int, folder: Path, threads: int) -> None:
        torch.set_num_threads(threads)
        self._state = make_state(size_bytes=size_bytes, tensors=tensors)
        self._saver: Saver = make_saver(name)
        self._folder = folder
        self._is_prepared = False
        self._step = 0

    def facts(self) -> SaverFacts:
        return SaverFacts(is_background=self._saver.is_background, verifies=self._saver.verifies, note=self._saver.note)

    def prepare(self) -> SaveTimes:
        """Prepare the saver and make its first save, which is often slower than all others."""
        self._folder.mkdir(parents=True)
        self._is_prepared = True
        self._saver.prepare(self._state, self._folder)
        time.sleep(_SECONDS_BEFORE_FIRST_SAVE)
        return self.save()

    def save(self) -> SaveTimes:
        """Save once, and delete the save."""
        self._step += 1
        gc.collect()
        started = time.perf_counter()
        self._saver.save(self._state, self._step)
        stalled = time.perf_counter()
        self._saver.wait()
        durable = time.perf_counter()
        self._saver.drop(self._step)
        return SaveTimes(stall_seconds=stalled - started, durable_seconds=durable - started)

    def save_marked(self) -> Saved:
        """Save a state that no other step has, and change the live state as soon as `save` returns, as training
        would."""
        self._step += 1
        gc.collect()
        self._fill_ends(self._step)
        self._saver.save(self._state, self._step)
        self._fill_ends(-self._step)
        self._saver.wait()
        files = self._saver.files(self._step)
        return Saved(step=self._step, files=files, size_bytes=sum(path.stat().st_size for path in files))

    def load(self, step: int) -> float:
        """Seconds to load a step with known values and to touch every page of it.

        Raises:
            WrongBytesError: the loaded state differs from the saved state.
        """
        gc.collect()
        started = time.perf_counter()
        loaded = self._saver.load(step)
        for tensor in loaded.values():
            # A loader that only maps files would otherwise leave the reading to the first training step.
            tensor.view(-1)[:: _TOUCHED_EVERY_BYTES // tensor.element_size()].sum()
        seconds = time.perf_counter() - started
        self._compare(loaded, step)
        return seconds

    def drop(self, step: int) -> None:
        self._saver.drop(step)

    def slowdown(self, kind: StepKind, sizes: StepSizes) -> Slowdown:
        """Training steps while saves are written in the background."""

        def start() -> None:
            self._step += 1
            self._saver.save(self._state, self._step)

        def wait() -> None:
            self._saver.wait()

        first = self._step + 1
        try:
            return slowdown(kind, sizes, start=start, wait=wait)
        finally:
            for step in range(first, self._step + 1):
                self._saver.drop(step)

    def close(self) -> None:
        if self._is_prepared:
            self._saver.close()

    def _fill_ends(self, value: int) -> None:
        for tensor in self._state.values():
            tensor[0] = tensor[-1] = value

    def _compare(self, loaded: dict[str, torch.Tensor], step: int) -> None:
        self._fill_ends(step)
        wrong = [
            name
            for name, tensor in self._state.items()
            if name not in loaded or not torch.equal(loaded[name].view(-1), tensor)
        ]
        if wrong or loaded.keys() != self._state.keys():
            raise WrongBytesError(step=step, names=wrong or sorted(loaded.keys() - self._state.keys()))
