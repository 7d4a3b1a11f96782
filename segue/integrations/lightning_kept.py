"""Commits the files that Lightning's `ModelCheckpoint` keeps, such as the best file, as a part of a run's folder."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import Any

log = logging.getLogger(__name__)

_KEPT = "kept"
_SCHEME = "segue:"
_MOST_NAMED = 3


class KeptFiles:
    """Copies of the best files with names in place of paths, so that equal runs have equal copies."""

    def __init__(self, folder: Path) -> None:
        """`folder` is on this machine. If a file is deleted from this folder, the file is only not committed."""
        self._folder = folder

    def add(self, path: Any) -> Path:
        """Return the path for the copy of a file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy = self._copy_of(path)
        # A save may have the previous copy mapped into memory, so the copy must not be overwritten.
        copy.unlink(missing_ok=True)
        return copy

    def of(self, committed: Path, paths: dict[str, str]) -> dict[str, bytes | Path]:
        """Return the files to commit with the checkpoint.

        They are the copies of the best files, by their names in the checkpoint. Other copies, and files that a resume
        left in the folder, are removed, because the last commit is captured.
        """
        shutil.rmtree(committed / _KEPT, ignore_errors=True)
        copies = {_name_in_folder(name): self._copy_of(path) for name, path in paths.items()}
        for other in {*self._folder.glob("*.ckpt")} - {*copies.values()}:
            other.unlink(missing_ok=True)
        return {name: copy for name, copy in copies.items() if copy.is_file()}

    def put_back(self, committed: Path, paths: dict[str, str]) -> None:
        """Write the files of a restored folder to their places on this machine, if they are missing there."""
        missing = []
        for name, path in paths.items():
            file = committed / _name_in_folder(name)
            if file.is_file():
                shutil.copyfile(file, self.add(path))
            if Path(path).exists():
                continue
            if not file.is_file():
                missing.append(path)
                continue
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            staged = Path(f"{path}.segue")
            shutil.copyfile(file, staged)
            staged.replace(path)
        if missing:
            shown = ", ".join([*missing[:_MOST_NAMED], *(["..."] if len(missing) > _MOST_NAMED else [])])
            log.warning("%d files of ModelCheckpoint are not on this machine: %s", len(missing), shown)

    def _copy_of(self, path: Any) -> Path:
        return self._folder / f"{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}.ckpt"


def exported(names: Collection[str]) -> dict[str, str]:
    """Return the names of committed best files, by their names in an export.

    If a file name is unique, the file keeps its own name in the export.
    """
    own = [PurePosixPath(name).name for name in names]
    return {
        short if own.count(short) == 1 else name.removeprefix(f"{_KEPT}/"): name
        for short, name in zip(own, names, strict=True)
    }


def _name_in_folder(name: str) -> str:
    return f"{_KEPT}/{name.removeprefix(_SCHEME)}"
