"""What a checkpoint saver must offer to be measured, and which ones there are."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol, cast

import torch

State = Mapping[str, torch.Tensor]

OURS = "ours"

SAVERS = {
    OURS: "benchmarks.checkpoint.ours:OurSaver",
    "torch_save": "benchmarks.checkpoint.peers:TorchSave",
    "torch_save_thread": "benchmarks.checkpoint.peers:TorchSaveThread",
    "safetensors": "benchmarks.checkpoint.peers:SafetensorsSave",
    "dcp_save": "benchmarks.checkpoint.peers:DcpSave",
    "dcp_async_thread": "benchmarks.checkpoint.peers:DcpAsyncThread",
    "dcp_async_thread_reused": "benchmarks.checkpoint.peers:DcpAsyncThreadReused",
    "dcp_async_process": "benchmarks.checkpoint.peers:DcpAsyncProcess",
}
"""Name in the report -> where its class is. Each is made without arguments, in a process of its own."""


class Saver(Protocol):
    """One way to save a state. Everything is called in one process; `wait` alone may come from another thread.

    The harness never asks for a save before the last one is durable. A saver may hold on to `state`: its tensors
    stay the same objects for the saver's whole life, and only their contents change.
    """

    is_background: ClassVar[bool]
    """Whether `save` returns before the bytes are durable, so that training goes on meanwhile."""
    verifies: ClassVar[bool]
    """Whether `load` would notice a flipped bit."""
    note: ClassVar[str]
    """What a reader of the figures has to know: what is not synced, which options were taken. May be empty."""

    def prepare(self, state: State, folder: Path) -> None:
        """Everything done once before training: allocate, start helpers. Not timed; its memory counts."""
        ...

    def save(self, state: State, step: int) -> None:
        """Save `state` as it is now; blocks for the stall only. The state may change as soon as this returns."""
        ...

    def wait(self) -> None:
        """Block until the last save would survive a power cut, or raise what went wrong with it.

        Called once after every save. While steps are measured it is called from another thread than `save`,
        so it must sleep rather than poll and must not hold the interpreter lock.
        """
        ...

    def load(self, step: int) -> dict[str, torch.Tensor]:
        """The tensors of a durable step, verified as far as this saver does; all of `save`'s names, in new memory."""
        ...

    def files(self, step: int) -> list[Path]:
        """The files that `load` reads: they are dropped from the page cache before a cold load."""
        ...

    def drop(self, step: int) -> None:
        """Delete a step that was saved; not timed."""
        ...

    def close(self) -> None:
        """End helpers and free memory. Called once; also after a failed `save` or `wait`."""
        ...


class FolderSaver:
    """The part that savers share which give each step a folder of its own."""

    is_background: ClassVar[bool] = False
    verifies: ClassVar[bool] = False
    note: ClassVar[str] = ""
    folder: Path

    def prepare(self, state: State, folder: Path) -> None:
        self.folder = folder

    def wait(self) -> None:
        """A saver without a background is durable when `save` returns."""

    def files(self, step: int) -> list[Path]:
        return sorted(path for path in self.step_folder(step).rglob("*") if path.is_file())

    def drop(self, step: int) -> None:
        shutil.rmtree(self.step_folder(step), ignore_errors=True)

    def close(self) -> None:
        """Nothing to end."""

    def step_folder(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def make_saver(name: str) -> Saver:
    """The saver of this name in `SAVERS`.

    Raises:
        ImportError: its module, or one it needs, is not there.
    """
    module, _, cls = SAVERS[name].partition(":")
    return cast("Saver", getattr(importlib.import_module(module), cls)())


def make_state(*, size_bytes: int, tensors: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """A made-up model: `tensors` float32 tensors of equal size, each with memory of its own, all pages touched."""
    generator = torch.Generator().manual_seed(seed)
    elements = exact_bytes(size_bytes=size_bytes, tensors=tensors) // (4 * tensors)
    return {f"layers.{number}.weight": torch.rand(elements, generator=generator) for number in range(tensors)}


def exact_bytes(*, size_bytes: int, tensors: int) -> int:
    """The bytes that such a state has: what was asked for, rounded down to what its tensors share evenly."""
    return 4 * tensors * max(2, size_bytes // (4 * tensors))


def state_bytes(state: State) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())
