"""Other savers with their best options. Each saver syncs the bytes and the folders."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, cast

import safetensors.torch
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from benchmarks.checkpoint.savers import FolderSaver, State
from benchmarks.common.files import sync_tree


class TorchSave(FolderSaver):
    """`torch.save` to a file, then fsync of file and folder."""

    def save(self, state: State, step: int) -> None:
        _torch_save(state, self.step_folder(step))

    def load(self, step: int) -> dict[str, torch.Tensor]:
        path = self.step_folder(step) / "state.pt"
        return cast("dict[str, torch.Tensor]", torch.load(path, weights_only=True))


class TorchSaveThread(TorchSave):
    """A common hand-written saver: a copy into buffers that are kept, and then `torch.save` in a thread."""

    is_background = True
    note = "Copies into buffers allocated once."

    def prepare(self, state: State, folder: Path) -> None:
        super().prepare(state, folder)
        self._copies = {name: tensor.clone() for name, tensor in state.items()}
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._written: Future[None] | None = None

    def save(self, state: State, step: int) -> None:
        for name, tensor in state.items():
            self._copies[name].copy_(tensor)
        self._written = self._thread.submit(_torch_save, self._copies, self.step_folder(step))

    def wait(self) -> None:
        if self._written is not None:
            self._written.result()

    def close(self) -> None:
        self._thread.shutdown()


class SafetensorsSave(FolderSaver):
    """`safetensors.torch.save_file`, then fsync of file and folder."""

    def save(self, state: State, step: int) -> None:
        folder = self.step_folder(step)
        folder.mkdir(parents=True)
        safetensors.torch.save_file(dict(state), folder / "state.safetensors")
        sync_tree(folder)

    def load(self, step: int) -> dict[str, torch.Tensor]:
        return safetensors.torch.load_file(self.step_folder(step) / "state.safetensors")


class DcpSave(FolderSaver):
    """`torch.distributed.checkpoint.save` of one process. DCP syncs its data file, and this class syncs the other
    files."""

    def prepare(self, state: State, folder: Path) -> None:
        super().prepare(state, folder)
        # Told at every call of a program that has one rank: it would drown what matters in the log.
        warnings.filterwarnings("ignore", message=".*torch.distributed is (disabled|unavailable).*")
        self._names = {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}

    def save(self, state: State, step: int) -> None:
        state_dict_saver.save(dict(state), checkpoint_id=self.step_folder(step))
        sync_tree(self.step_folder(step))

    def load(self, step: int) -> dict[str, torch.Tensor]:
        # It loads in place, into tensors that the caller allocates; the others allocate inside their call.
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in self._names.items()}
        state_dict_loader.load(cast("dict[str, Any]", tensors), checkpoint_id=self.step_folder(step))
        return tensors


class DcpAsyncThread(DcpSave):
    """`async_save` as in its documentation, with a new stager, and therefore new memory, at every save."""

    is_background = True
    note = "As documented: stages into new memory at every save."
    _kind: ClassVar[AsyncCheckpointerType] = AsyncCheckpointerType.THREAD

    def prepare(self, state: State, folder: Path) -> None:
        super().prepare(state, folder)
        self._saving: Future[Any] | None = None
        self._step = 0
        self._stager = self._make_stager()

    def _make_stager(self) -> DefaultStager | None:
        return None

    def save(self, state: State, step: int) -> None:
        options: Mapping[str, Any] = {"async_checkpointer_type": self._kind, "async_stager": self._stager}
        saving = _async_save(dict(state), checkpoint_id=self.step_folder(step), **options)
        self._step = step
        self._saving = saving.upload_completion if isinstance(saving, AsyncSaveResponse) else saving

    def wait(self) -> None:
        if self._saving is not None:
            self._saving.result()
            # It never syncs the folder, and its metadata only before the bytes are in the file.
            sync_tree(self.step_folder(self._step))

    def close(self) -> None:
        if self._stager is not None:
            self._stager.close()


class DcpAsyncThreadReused(DcpAsyncThread):
    """`async_save` with one stager, which keeps its memory, for all saves."""

    note = "One stager kept for all saves."

    def _make_stager(self) -> DefaultStager | None:
        return _kept_stager(shared=False)


class DcpAsyncProcess(DcpAsyncThread):
    """`async_save` with a process that writes, and one stager in shared memory for all saves."""

    note = "One stager in shared memory kept for all saves; one file descriptor a tensor."
    _kind = AsyncCheckpointerType.PROCESS

    def prepare(self, state: State, folder: Path) -> None:
        os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
        # The process type refuses to work without a process group, even for one rank.
        dist.init_process_group("gloo", init_method=f"file://{folder.absolute()}/rendezvous", rank=0, world_size=1)
        super().prepare(state, folder)

    def _make_stager(self) -> DefaultStager | None:
        return _kept_stager(shared=True)

    def close(self) -> None:
        super().close()
        dist.destroy_process_group()


def _kept_stager(*, shared: bool) -> DefaultStager:
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=False, use_shared_memory=shared, use_async_staging=False, use_non_blocking_copy=False
        )
    )


def _torch_save(state: State, folder: Path) -> None:
    folder.mkdir(parents=True)
    torch.save(dict(state), folder / "state.pt")
    sync_tree(folder)


# Its own annotations do not describe its arguments.
_async_save = cast("Callable[..., Future[Any] | AsyncSaveResponse]", state_dict_saver.async_save)
