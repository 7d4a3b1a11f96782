"""Workers that are measured together, in a new order in each round. If one worker fails, the others continue."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, Self

from benchmarks.checkpoint.limits import LimitBench
from benchmarks.checkpoint.worker import B, Worker, WorkerError
from benchmarks.common.samples import Samples

MACHINE = "machine"


@dataclass(frozen=True)
class Scene:
    """The objects that all rounds of one run share."""

    folder: Path
    """A folder only for this run, on the measured file system. The folder is deleted afterwards."""
    limits: Worker[LimitBench]
    """The one worker that measures the machine's limits."""
    threads: int
    """Number of torch's threads in the savers' processes, for copies and for training steps."""
    shuffle: random.Random
    say: Callable[[str], None]
    """A function that gets the name of the current measurement."""
    samples: Mapping[str, Samples]
    """Samples of every saver and uploader, by name. The samples of the limits have the name `MACHINE`."""

    @property
    def machine(self) -> Samples:
        return self.samples[MACHINE]


class RankGroup(Generic[B]):
    """The workers of one type. At the end of the `with` block, all workers are ended."""

    def __init__(self, scene: Scene, *, name: str, keys: tuple[str, ...]) -> None:
        """`keys` are the figures that this group can give."""
        self.scene, self.name, self.keys = scene, name, keys
        self._workers: dict[str, Worker[B]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for worker in self._workers.values():
            worker.close()

    def start(self, name: str) -> Worker[B]:
        """Start the process of one worker. The call returns at once."""
        raise NotImplementedError

    def prepare(self, name: str, worker: Worker[B]) -> None:
        """Prepare a started worker for its measurement."""
        raise NotImplementedError

    def enlist(self, names: list[str]) -> None:
        """Start all workers at once, and prepare them one by one. A worker that fails is left out, and the reason is
        recorded."""
        for name in names:
            self._workers[name] = self.start(name)
        # All are up before the first one is prepared: nothing else may run while something is measured.
        for name in names:
            with self.may_fail(name, *self.keys):
                self._workers[name].ready()
        for name in names:
            if not self.scene.samples[name].failures.keys() & set(self.keys):
                self.scene.say(f"{self.name}: preparing {name}")
                with self.may_fail(name, *self.keys):
                    self.prepare(name, self._workers[name])

    def each(self, *keys: str) -> Iterator[tuple[str, Worker[B]]]:
        """Return, in a new order, all workers that have not failed at one of these figures before."""
        names = sorted(self._workers)
        for name in self.scene.shuffle.sample(names, len(names)):
            if not self.scene.samples[name].failures.keys() & set(keys):
                self.scene.say(f"{self.name}: {keys[0]} of {name}")
                yield name, self._workers[name]

    @contextmanager
    def may_fail(self, name: str, *keys: str) -> Iterator[None]:
        """If the block fails, the worker has none of these figures. If its process is gone, the worker has no figure of
        this group."""
        try:
            yield
        except WorkerError as error:
            self.scene.say(f"failed: {', '.join(keys)} of {name}: {error.why}")
            self.scene.samples[name].fail(keys, error.why)
            if not self._workers[name].is_sound:
                self.scene.samples[name].fail(self.keys, error.why)
            if self.scene.samples[name].failures.keys() >= set(self.keys):
                self._workers.pop(name).close()

    def folder_of(self, name: str) -> Path:
        """The folder for the files of one worker."""
        return self.scene.folder / self.name.replace(" ", "-") / name

    def log_of(self, name: str) -> Path:
        """The log of one worker."""
        return self.scene.folder / f"{self.name.replace(' ', '-')}-{name}.log"
