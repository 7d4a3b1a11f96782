"""A framework's own checkpoint folder as part of a run's state: its files, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from segue.errors import SessionError

_MARKER = ".segue-folder"
"""In a folder that holds a run's files and nothing else, so that they may be replaced."""


class Folder:
    """The files below one folder, as a component. Files are mapped into memory, and read when they are saved."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.step = 0
        """Number of steps after which the folder was written."""
        self._instead: Mapping[str, bytes | Path] = {}
        self._restored: dict[str, torch.Tensor] = {}

    def capture(self) -> Any:
        if self.path is None:
            return {}
        return {"files": _files(self.path) | {name: _given(content) for name, content in self._instead.items()}}

    def restore(self, tree: Any) -> None:
        self._restored = tree.get("files", {})

    def write_to(self, path: Path) -> Path | None:
        """Replace the folder by the restored files; None, and nothing is changed, where there are none.

        Raises:
            SessionError: the folder has files of somebody else's.
        """
        if not self._restored:
            return None
        _empty(path)
        for name, content in self._restored.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.numpy().tobytes())
        self._restored, self.path, self._instead = {}, path, {}
        return path

    def take(self, path: Path, *, step: int, instead: Mapping[str, bytes | Path]) -> None:
        """The folder holds the state after this many steps from now on.

        Raises:
            SessionError: there is no such folder, or it is empty.
        """
        if not path.is_dir() or not _files(path):
            raise SessionError(what=f"run.commit_folder({str(path)!r}): {_lack(path)}.", fix="write it before.")
        (path / _MARKER).touch()
        self.path, self.step, self._instead = path, step, instead


def _files(folder: Path) -> dict[str, torch.Tensor]:
    found = sorted(file for file in folder.rglob("*") if file.is_file() and file.name != _MARKER)
    return {file.relative_to(folder).as_posix(): _content(file) for file in found}


def _content(file: Path) -> torch.Tensor:
    size = file.stat().st_size
    # Mapped privately: a file that is deleted or replaced until it is saved stays readable.
    return torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8) if size else torch.empty(0).byte()


def _given(content: bytes | Path) -> torch.Tensor:
    return _content(content) if isinstance(content, Path) else _tensor(content)


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else torch.empty(0).byte()


def _empty(path: Path) -> None:
    if path.is_dir() and any(path.iterdir()):
        if not (path / _MARKER).exists():
            what = f"run.restore_folder({str(path)!r}): the folder has files that are not of this run."
            raise SessionError(what=what, fix="name a folder that is empty or does not exist.")
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / _MARKER).touch()


def _lack(path: Path) -> str:
    return "it has no files" if path.is_dir() else "there is no such folder"
