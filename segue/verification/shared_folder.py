"""The folder in which both runs of a drill work: what one of them leaves there, the other one finds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from segue.stores import LocalStore, open_store
from segue.trainer.programs.own_files import files_below
from segue.verification.place import Place


class SharedFolder:
    """Files of a working folder that change from now on."""

    def __init__(self, folder: Path | None, *, apart: Place) -> None:
        """None: nothing is shared. What the drill itself keeps in its place does not count."""
        store = open_store(apart.store)
        fast = (Path(apart.fast_folder),) if apart.fast_folder is not None else ()
        self._folder, self._apart = folder, (*fast, *((store.root,) if isinstance(store, LocalStore) else ()))
        self._before = self._marks()

    def written(self) -> tuple[str, ...]:
        """Files that were written since, by their path in the folder."""
        now = self._marks()
        return tuple(sorted(name for name, mark in now.items() if self._before.get(name) != mark))

    def _marks(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        if self._folder is None:
            return found
        own = _output()
        for name in files_below(self._folder, apart=self._apart):
            try:
                stat = (self._folder / name).stat()
            except OSError:
                continue  # Gone meanwhile, or a link to nothing.
            if (stat.st_dev, stat.st_ino) not in own:
                found[name] = (stat.st_size, stat.st_mtime_ns)
        return found


def _output() -> set[tuple[int, int]]:
    """The files into which this process prints."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            stat = os.fstat(descriptor)
            found.add((stat.st_dev, stat.st_ino))
    return found
