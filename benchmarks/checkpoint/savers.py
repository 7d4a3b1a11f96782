"""The interface of the checkpoint savers that are measured, and the list of all savers."""

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
"""The path of each saver's class, by the saver's name in the report. Each saver is made without arguments, in a
separate process."""


class Saver(Protocol):
    """One method to save a state. All calls come in one process. Only `wait` may be called from another thread.

    The harness never requests a save before the last save is durable. A saver may keep `state`: the tensors stay the
    same objects for the saver's whole life, and only their contents change.
    """

    is_background: ClassVar[bool]
    """Whether `save` returns before the bytes are durable, so that training goes on meanwhile."""
    verifies: ClassVar[bool]
    """Whether `load` would notice a flipped bit."""
    note: ClassVar[str]
    """Notes for readers of the figures, for example which files are not synced, or which options were used. The text
    may be empty."""

    def prepare(self, state: State, folder: Path) -> None:
        """Prepare for training: allocate memory, and start helpers. The time of this call is not measured, but its
        memory is."""
        ...

    def save(self, state: State, step: int) -> None:
        """Save the current `state`. The call blocks only for the stall. The state may change as soon as the call
        returns."""
        ...

    def wait(self) -> None:
        """Block until the last save would survive a power cut, or raise the error of the save. The harness calls this
        method once after every save. During the measurement of steps, the call comes from another thread than `save`,
        so the method must sleep, must not poll, and must not hold the interpreter lock.
        """
        ...

    def load(self, step: int) -> dict[str, torch.Tensor]:
        """Load the tensors of a durable step, verified as far as this saver verifies. The result has all names of
        `save`, in new memory."""
        ...

    def files(self, step: int) -> list[Path]:
        """The files that `load` reads. The harness drops these files from the page cache before a cold load."""
        ...

    def drop(self, step: int) -> None:
        """Delete a saved step. The time is not measured."""
        ...

    def close(self) -> None:
        """End helpers and free memory. The harness calls this method once, also after a failed `save` or `wait`."""
        ...


class FolderSaver:
    """The common part of savers that give each step a separate folder."""

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
        """Do nothing, because there is nothing to end."""

    def step_folder(self, step: int) -> Path:
        return self.folder / f"step-{step}"


def make_saver(name: str) -> Saver:
    """The saver of this name in `SAVERS`.

    Raises:
        ImportError: the saver's module, or a module that it needs, is not installed.
    """
    module, _, cls = SAVERS[name].partition(":")
    return cast("Saver", getattr(importlib.import_module(module), cls)())


def make_state(*, size_bytes: int, tensors: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """A synthetic model: `tensors` float32 tensors of equal size, each in separate memory, with all pages touched."""
    generator = torch.Generator().manual_seed(seed)
    elements = exact_bytes(size_bytes=size_bytes, tensors=tensors) // (4 * tensors)
    return {f"layers.{number}.weight": torch.rand(elements, generator=generator) for number in range(tensors)}


def exact_bytes(*, size_bytes: int, tensors: int) -> int:
    """Number of bytes of a synthetic state: the requested size, rounded down so that all tensors have equal size."""
    return 4 * tensors * max(2, size_bytes // (4 * tensors))


def state_bytes(state: State) -> int:
    """Bytes of all tensors."""
    return sum(tensor.nbytes for tensor in state.values())
