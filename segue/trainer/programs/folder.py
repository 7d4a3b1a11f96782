"""The component that makes a framework's own checkpoint folder a part of the run's state, byte for byte."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from segue.checkpoints.format.names import FOLDER, leads_out
from segue.errors import MalformedCheckpointError, SessionError

_MARKER = ".segue-folder"
"""Name of the marker file. A folder with this file contains only files of the run, which segue may replace."""


class Folder:
    """A component that holds the files below one folder. The files are mapped into memory, and are read during a
    save."""

    def __init__(self) -> None:
        self.path: Path | None = None
        self.step = 0
        """Number of the step after which the folder was written."""
        self._instead: Mapping[str, bytes | Path] = {}
        self._best: Mapping[str, str] = {}
        self._restored: dict[str, torch.Tensor] = {}

    def is_of(self, step: int) -> bool:
        """Whether the folder holds the state after this step."""
        return self.path is not None and self.step == step

    def capture(self) -> Any:
        if self.path is None:
            return {}
        files = _files(self.path) | {name: _given(content) for name, content in self._instead.items()}
        return {"files": files, "best": dict(self._best)} if self._best else {"files": files}

    def restore(self, tree: Any) -> None:
        self._restored, self._best = tree.get("files", {}), tree.get("best", {})

    def write_to(self, path: Path) -> Path | None:
        """Replace the folder's content by the restored files and return its path; without restored files, return None.

        Raises:
            SessionError: the folder has files that do not belong to the run.
            MalformedCheckpointError: the path of a restored file leads out of the folder; nothing was written.
        """
        if not self._restored:
            return None
        outside = next(filter(leads_out, self._restored), None)
        if outside is not None:
            raise MalformedCheckpointError(key=FOLDER, why=f"the path {outside!r} leads out of the folder")
        _empty(path)
        for name, content in self._restored.items():
            file = path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content.numpy().tobytes())
        self._restored, self.path, self._instead = {}, path, {}
        return path

    def take(
        self, path: Path, *, step: int, instead: Mapping[str, bytes | Path], best: Mapping[str, str] | None = None
    ) -> None:
        """Use the folder as the state after `step` steps.

        `best` maps names in an export to files of the best model so far.

        Raises:
            SessionError: the folder does not exist or is empty, or a file of the best model is not among the committed
                files.
        """
        if not path.is_dir() or not _files(path):
            raise SessionError(what=f"run.commit_folder({str(path)!r}): {_lack(path)}.", fix="write the folder first.")
        lost = sorted({*(best or {}).values()} - {*_files(path), *instead})
        if lost:
            what = f"run.commit_folder({str(path)!r}, best=...): {lost[0]!r} is not among the committed files."
            raise SessionError(what=what, fix="give paths in the folder, or names that instead=... has.")
        (path / _MARKER).touch()
        self.path, self.step, self._instead, self._best = path, step, instead, best or {}


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
            what = f"run.restore_folder({str(path)!r}): the folder has files that do not belong to this run."
            raise SessionError(what=what, fix="name a folder that is empty or does not exist.")
        shutil.rmtree(path)
    path.mkdir(parents=True, exist_ok=True)
    (path / _MARKER).touch()


def _lack(path: Path) -> str:
    return "it has no files" if path.is_dir() else "there is no such folder"
