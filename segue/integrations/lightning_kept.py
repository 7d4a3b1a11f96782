"""The files that Lightning's `ModelCheckpoint` keeps, such as the best one, as a part of the folder of a run."""

from __future__ import annotations

import hashlib
import logging
import shutil
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_KEPT = "kept"
_SCHEME = "segue:"


class KeptFiles:
    """A copy of each of these files in which names stand in place of paths, so that equal runs have equal ones."""

    def __init__(self, folder: Path) -> None:
        """`folder` is on this machine; what is in it may be deleted, and is only not committed then."""
        self._folder = folder
        self._dropped: set[Path] = set()

    def add(self, path: Any) -> Path:
        """Where to write the copy of a file."""
        self._folder.mkdir(parents=True, exist_ok=True)
        copy = self._copy_of(path)
        copy.unlink(missing_ok=True)  # The one that was there may be mapped into memory, to be saved.
        self._dropped.discard(copy)
        return copy

    def drop(self, path: Any) -> None:
        """A file was deleted. Its copy may be part of what is saved at the next safe point, and goes later."""
        self._dropped.add(self._copy_of(path))

    def of(self, committed: Path, paths: dict[str, str]) -> dict[str, bytes | Path]:
        """What is committed beside the checkpoint: the copies of the files that it names, by these names.

        What a resume left of them in the folder is removed.
        """
        shutil.rmtree(committed / _KEPT, ignore_errors=True)
        for copy in self._dropped:
            copy.unlink(missing_ok=True)
        self._dropped.clear()
        copies = {_name_in_folder(name): self._copy_of(path) for name, path in paths.items()}
        return {name: copy for name, copy in copies.items() if copy.is_file()}

    def put_back(self, committed: Path, paths: dict[str, str]) -> None:
        """Write the files of a restored folder that are not on this machine where their names say that they are."""
        for name, path in paths.items():
            file = committed / _name_in_folder(name)
            if file.is_file():
                shutil.copyfile(file, self.add(path))
            if Path(path).exists():
                continue
            if not file.is_file():
                log.warning("a file of ModelCheckpoint was not committed and is not on this machine: %s", path)
                continue
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            staged = Path(f"{path}.segue")
            shutil.copyfile(file, staged)
            staged.replace(path)

    def _copy_of(self, path: Any) -> Path:
        return self._folder / f"{hashlib.sha256(str(Path(path).absolute()).encode()).hexdigest()[:16]}.ckpt"


def _name_in_folder(name: str) -> str:
    return f"{_KEPT}/{name.removeprefix(_SCHEME)}"
