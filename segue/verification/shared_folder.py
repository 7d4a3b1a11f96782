"""Watches the working folder that both runs of a drill share, where one run may find files of the other run."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from segue.stores import LocalStore, open_store
from segue.trainer.programs.own_files import files_below, is_of_nobody
from segue.verification.scratch_place import RunPlace

_HIDDEN = ".segue"
_MOST_KNOWN = 20_000


class SharedFolder:
    """Detects files in a working folder that change after the creation of this object."""

    def __init__(self, folder: Path | None, *, apart: RunPlace) -> None:
        """If `folder` is None, the runs share no folder. The object ignores the drill's own files, in `apart`."""
        store = open_store(apart.store)
        fast = (Path(apart.fast_folder),) if apart.fast_folder is not None else ()
        self._folder, self._apart = folder, (*fast, *((store.root,) if isinstance(store, LocalStore) else ()))
        self._before = self._marks()
        self._known = frozenset(_paths_below(folder, apart=self._apart)) if folder is not None else frozenset()

    def written(self) -> tuple[str, ...]:
        """Return the paths of files that were written after the creation of this object, relative to the folder."""
        now = self._marks()
        return tuple(sorted(name for name, mark in now.items() if self._before.get(name) != mark))

    @contextmanager
    def hiding(self) -> Iterator[HiddenFiles]:
        """Provide an object that hides new files of this folder on request. At the end of the block, the hidden files
        return."""
        hidden = HiddenFiles(self._folder, self._known, apart=self._apart)
        try:
            yield hidden
        finally:
            hidden.put_back()

    def _marks(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        if self._folder is None:
            return found
        own = _output()
        for name in files_below(self._folder, apart=self._apart):
            try:
                stat = (self._folder / name).stat()
            except OSError:
                continue  # The file was removed in the meantime, or is a broken link.
            if (stat.st_dev, stat.st_ino) not in own:
                found[name] = (stat.st_size, stat.st_mtime_ns)
        return found


class HiddenFiles:
    """Hides new files of a folder from programs, as if no program had run on this machine.

    Hidden files are in `.segue/drill-<hex>` in the folder. If this process is killed, they stay there.
    """

    def __init__(self, folder: Path | None, known: frozenset[Path], *, apart: Sequence[Path]) -> None:
        """`known` contains the paths that existed before.

        If the folder has too many files to list, no file is hidden.
        """
        self._folder, self._known, self._apart = folder, known, apart
        self._hidden: list[Path] = []
        self.names: tuple[str, ...] = ()
        """The paths of the hidden files, relative to the folder."""

    def hide(self) -> None:
        """Hide each file and folder that did not exist before."""
        if self._folder is None or len(self._known) >= _MOST_KNOWN:
            return
        found = (path for path in _paths_below(self._folder, apart=self._apart) if path not in self._known)
        new = {path for path in found if not self._holds_apart(path)}
        place = self._folder / _HIDDEN / f"drill-{uuid.uuid4().hex[:8]}"
        outermost = sorted(path for path in new if path.parent not in new)
        for path in outermost:
            there = place / path.relative_to(self._folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # The file was removed in the meantime.
                shutil.move(path, there)
        self.names = tuple(sorted({*self.names, *(str(path.relative_to(self._folder)) for path in outermost)}))
        if place.exists():
            self._hidden.append(place)

    def put_back(self) -> None:
        """Move all hidden files back, except files that a program has written again."""
        for place in reversed(self._hidden):
            for path in sorted(place.rglob("*")):
                here = (self._folder or Path()) / path.relative_to(place)
                if path.is_symlink() or not path.is_dir():
                    if not here.exists() and not here.is_symlink():
                        shutil.move(path, here)
                elif not here.exists():
                    here.mkdir()
            shutil.rmtree(place)
            with suppress(OSError):  # Other processes use the folder.
                place.parent.rmdir()
        self._hidden.clear()

    def _holds_apart(self, path: Path) -> bool:
        return any(place.absolute().is_relative_to(path.absolute()) for place in self._apart)


def _paths_below(folder: Path, *, apart: Sequence[Path]) -> Iterator[Path]:
    """Yield the files and folders below a folder, up to a limit, without hidden files and installed packages."""
    places = {place.absolute() for place in apart}
    found = 0
    for here, folders, files in os.walk(folder):
        above = Path(here)
        folders[:] = [each for each in folders if not is_of_nobody(each) and (above / each).absolute() not in places]
        for name in (*folders, *(each for each in files if not each.startswith("."))):
            found += 1
            if found > _MOST_KNOWN:
                return
            yield above / name


def _output() -> set[tuple[int, int]]:
    """Return the files to which this process writes its output."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            stat = os.fstat(descriptor)
            found.add((stat.st_dev, stat.st_ino))
    return found
