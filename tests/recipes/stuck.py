"""Recipes that hang, run out of memory, or fail in input: once or always, at a step or while they are built."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from segue.recipe import Recipe
from segue.testing.recipes import tiny


def build(config: dict[str, Any]) -> Recipe:
    """Config: how (a key of WAYS), at_step (0: while it is built), marker (a file; only the first build does it)."""
    own = {"how", "at_step", "marker", "print"}
    recipe = tiny({name: value for name, value in config.items() if name not in own})
    marker = Path(config["marker"]) if "marker" in config else None
    is_due = marker is None or not marker.exists()
    if marker is not None:
        marker.touch()
    act, at_step, inner = WAYS[config["how"]], config["at_step"], recipe.after_step
    if is_due and at_step == 0:
        act()

    def after_step(step: int) -> None:
        assert inner is not None
        inner(step)
        if config.get("print"):
            sys.stdout.write(f"step {step} {'.' * 200}\n")
            sys.stdout.flush()
        if is_due and step == at_step:
            act()

    recipe.after_step = after_step
    return recipe


def slow_evaluation(config: dict[str, Any]) -> Recipe:
    """Config: seconds (of each evaluation), and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name != "seconds"})
    inner = recipe.evaluate

    def evaluate(model: nn.Module) -> float:
        time.sleep(config["seconds"])
        assert inner is not None
        return inner(model)

    recipe.evaluate = evaluate
    return recipe


class Dying(Dataset[Any]):
    """A dataset whose worker process dies once a marker file is not there."""

    def __init__(self, inner: Dataset[Any], marker: Path) -> None:
        self._inner, self._marker = inner, marker

    def __len__(self) -> int:
        return len(self._inner)  # type: ignore[arg-type]

    def __getitem__(self, index: int) -> Any:
        if not self._marker.exists() and torch.utils.data.get_worker_info() is not None:
            self._marker.touch()
            ctypes.string_at(0)
        return self._inner[index]


def dying_worker(config: dict[str, Any]) -> Recipe:
    """Config: marker, and what `tiny` takes."""
    recipe = tiny({name: value for name, value in config.items() if name != "marker"})
    data = Dying(recipe.data.dataset, Path(config["marker"]))
    recipe.data = DataLoader(data, batch_size=32, shuffle=True, num_workers=1)
    return recipe


def _sleep() -> None:
    time.sleep(3600)


def _lock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _hold_the_interpreter() -> None:
    print("from now on no other thread runs", flush=True)  # noqa: T201
    deque(itertools.repeat(None), maxlen=0)  # An endless loop in C, which looks at no signal.


def _no_memory() -> None:
    raise MemoryError


def _accelerator_full() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")


def _device_failed() -> None:
    raise torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")


def _copies_fail() -> None:
    """From now on the device fails in the copy of each new save. One that is still being written is complete."""
    from segue.checkpoints.saving.staging import Staged

    begin = Staged.__init__

    def begin_and_fail(staged: Staged, *args: object, **fields: object) -> None:
        begin(staged, *args, **fields)
        staged.wait = _device_failed  # type: ignore[method-assign]

    Staged.__init__ = begin_and_fail  # type: ignore[method-assign]


def _allocate() -> None:
    torch.empty(1 << 50)  # More than any machine's address space gives.


def _no_fork() -> None:
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


def _disk() -> None:
    raise OSError(errno.EIO, "Input/output error")


def _no_file() -> None:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", "data.parquet")


def _connection() -> None:
    raise ConnectionResetError("the peer closed the connection")


def _leave_a_process() -> None:
    """A process that ignores SIGTERM, as a helper program may."""
    subprocess.Popen([sys.executable, "-c", _STUBBORN])


_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"


def _fill_memory() -> None:
    kept = []
    while True:
        kept.append(bytearray(b"x") * (8 << 20))


def _abort() -> None:
    """As CUDA's C++ code does at an error that nothing catches."""
    for number in range(300):
        print(f"step {number} error 0.1", flush=True)  # noqa: T201
    print("terminate called after throwing an instance of 'c10::AcceleratorError'", flush=True)  # noqa: T201
    print("  what():  CUDA error: device-side assert triggered", flush=True)  # noqa: T201
    os.abort()


WAYS: dict[str, Callable[[], None]] = {
    "sleep": _sleep,
    "lock": _lock,
    "hold": _hold_the_interpreter,
    "memory": _no_memory,
    "accelerator": _accelerator_full,
    "device": _device_failed,
    "copies": _copies_fail,
    "allocate": _allocate,
    "fork": _no_fork,
    "disk": _disk,
    "file": _no_file,
    "connection": _connection,
    "fill": _fill_memory,
    "leave": _leave_a_process,
    "abort": _abort,
}
