"""The folder in which both runs of a drill work: what one of them leaves there, the other one finds."""

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
    """Files of a working folder that change from now on."""

    def __init__(self, folder: Path | None, *, apart: RunPlace) -> None:
        """None: nothing is shared. What the drill itself keeps in its place does not count."""
        store = open_store(apart.store)
        fast = (Path(apart.fast_folder),) if apart.fast_folder is not None else ()
        self._folder, self._apart = folder, (*fast, *((store.root,) if isinstance(store, LocalStore) else ()))
        self._before = self._marks()
        self._known = frozenset(_paths_below(folder, apart=self._apart)) if folder is not None else frozenset()

    def written(self) -> tuple[str, ...]:
        """Files that were written since, by their path in the folder."""
        now = self._marks()
        return tuple(sorted(name for name, mark in now.items() if self._before.get(name) != mark))

    @contextmanager
    def hiding(self) -> Iterator[HiddenFiles]:
        """Files of this folder can be hidden in the block; they are there again when it ends."""
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
                continue  # Gone meanwhile, or a link to nothing.
            if (stat.st_dev, stat.st_ino) not in own:
                found[name] = (stat.st_size, stat.st_mtime_ns)
        return found


class HiddenFiles:
    """New files of a folder, hidden from its programs: they find the folder as on a machine where none of them ran.

    Moved into `.segue/drill-<hex>` in the folder, where it stays if this process is killed.
    """

    def __init__(self, folder: Path | None, known: frozenset[Path], *, apart: Sequence[Path]) -> None:
        """`known` is what was in the folder before. If a folder has more than can be known, nothing in it is hidden."""
        self._folder, self._known, self._apart = folder, known, apart
        self._hidden: list[Path] = []
        self.names: tuple[str, ...] = ()
        """The hidden files, by their paths in the folder."""

    def hide(self) -> None:
        """Hide each file and folder that was not there before."""
        if self._folder is None or len(self._known) >= _MOST_KNOWN:
            return
        found = (path for path in _paths_below(self._folder, apart=self._apart) if path not in self._known)
        new = {path for path in found if not self._holds_apart(path)}
        place = self._folder / _HIDDEN / f"drill-{uuid.uuid4().hex[:8]}"
        outermost = sorted(path for path in new if path.parent not in new)
        for path in outermost:
            there = place / path.relative_to(self._folder)
            there.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # Gone meanwhile.
                shutil.move(path, there)
        self.names = tuple(sorted({*self.names, *(str(path.relative_to(self._folder)) for path in outermost)}))
        if place.exists():
            self._hidden.append(place)

    def put_back(self) -> None:
        """Move everything back. A file that was written again since stays as it is now."""
        for place in reversed(self._hidden):
            for path in sorted(place.rglob("*")):
                here = (self._folder or Path()) / path.relative_to(place)
                if path.is_symlink() or not path.is_dir():
                    if not here.exists() and not here.is_symlink():
                        shutil.move(path, here)
                elif not here.exists():
                    here.mkdir()
            shutil.rmtree(place)
            with suppress(OSError):  # Others use it.
                place.parent.rmdir()
        self._hidden.clear()

    def _holds_apart(self, path: Path) -> bool:
        return any(place.absolute().is_relative_to(path.absolute()) for place in self._apart)


def _paths_below(folder: Path, *, apart: Sequence[Path]) -> Iterator[Path]:
    """Files and folders below a folder, as many as can be known, without hidden ones and installed packages."""
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
    """The files into which this process prints."""
    found = set()
    for descriptor in (1, 2):
        with suppress(OSError):
            stat = os.fstat(descriptor)
            found.add((stat.st_dev, stat.st_ino))
    return found
