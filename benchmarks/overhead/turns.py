"""Turns of several training processes. One process at a time makes some steps, while all others are stopped.

The speed of a machine changes by several per cent within seconds. Loops that take turns meet the same changes.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import time
from pathlib import Path
from typing import Protocol

import psutil

_GO, _DONE, _NOTES = "go", "done", "notes.json"
_LOOK_SECONDS = 1.0


class Training(Protocol):
    """A process that trains."""

    def poll(self) -> int | None: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...


class Counter:
    """Turns in the process that trains, which counts its steps, and waits after each turn."""

    def __init__(self, folder: Path, *, steps: int) -> None:
        """A turn has `steps` steps. The times are written into the folder when this process ends."""
        self._folder, self._steps = folder, steps
        self._started = psutil.Process(os.getpid()).create_time()
        self._count, self._begun, self._startup_seconds = 0, 0.0, 0.0
        self._turns: list[float] = []
        atexit.register(self._write)

    def step_begins(self) -> None:
        """Record that a step begins, and that the previous step has therefore ended."""
        if self._count == 1:
            self._startup_seconds = time.time() - self._started
        if self._count and self._count % self._steps == 0:
            self._turns.append(time.perf_counter() - self._begun)
            (self._folder / _DONE).write_text("x")
            (self._folder / _GO).read_text()
        if self._count % self._steps == 0:
            self._begun = time.perf_counter()
        self._count += 1

    def _write(self) -> None:
        notes = {"startup_seconds": self._startup_seconds, "turns": self._turns}
        (self._folder / _NOTES).write_text(json.dumps(notes))


class Turns:
    """Turns in the benchmark's process, which lets a training process make its turns."""

    def __init__(self, folder: Path) -> None:
        """Use this new folder, which the training process also gets. The call comes before the process starts."""
        folder.mkdir()
        for name in (_GO, _DONE):
            os.mkfifo(folder / name)
        self._folder = folder
        self._done = os.open(folder / _DONE, os.O_RDWR | os.O_NONBLOCK)

    def stop_after_turn(self, training: Training) -> None:
        """Wait for the end of the process's turn, and stop it there.

        Raises:
            RuntimeError: the process has ended.
        """
        while not select.select([self._done], [], [], _LOOK_SECONDS)[0]:
            if training.poll() is not None:
                raise RuntimeError(f"a training process ended with exit code {training.poll()} before its last turn")
        os.read(self._done, 1)
        training.freeze()

    def go_on(self, training: Training) -> None:
        """Let the process continue where it was stopped."""
        training.thaw()
        (self._folder / _GO).write_text("x")

    def notes(self) -> tuple[float, list[float]]:
        """Seconds from the start of the process to the end of its first step, and the seconds of each turn.

        The call comes after the process has ended.
        """
        os.close(self._done)
        noted = json.loads((self._folder / _NOTES).read_text())
        return noted["startup_seconds"], noted["turns"]
