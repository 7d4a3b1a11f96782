"""The files that the program itself has written. These files are not part of the program's state, and may be newer than
its checkpoint."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from segue.trainer.workloads.opened_files import opened_files

_MOST_NAMED, _MOST_LOOKED_AT = 3, 2000
_OF_NOBODY = ("__pycache__", "node_modules", "site-packages")


class OwnFiles(NamedTuple):
    """Files that earlier attempts of the run wrote, with the paths that the program uses. The newest file is first."""

    read: tuple[str, ...] = ()
    """Files that the program has read in this attempt."""
    written: tuple[str, ...] = ()
    """Files in and below the working folder. If `read` contains a file, this tuple is empty. Segue does not see every
    read: a library may open files outside of Python, and a script may read a file before its session begins."""


def own_files(*, since: datetime, until: datetime, folder: Path, apart: Sequence[Path]) -> OwnFiles:
    """Find the files of the run, relative to the working folder, except files below `apart`, where segue writes.

    `since` is the time at which the run's first step was due, and `until` is the start of this attempt. The result has
    only files that changed between `since` and `until`. Files that a program prepares before its first step, for
    example a cache of its data, are the same in each attempt.
    """
    read = _changed(opened_files(), folder, since=since, until=until)
    if read:
        return OwnFiles(read)
    return OwnFiles(written=_changed(files_below(folder, apart=apart), folder, since=since, until=until))


def _changed(paths: Iterable[str], folder: Path, *, since: datetime, until: datetime) -> tuple[str, ...]:
    found = []
    for path in paths:
        try:
            changed_at = (folder / path).stat().st_mtime
        except (OSError, ValueError):
            continue
        if since.timestamp() <= changed_at < until.timestamp():
            found.append((changed_at, path))
    return tuple(path for _, path in sorted(found, reverse=True)[:_MOST_NAMED])


def files_below(folder: Path, *, apart: Sequence[Path]) -> Iterator[str]:
    """Yield the relative paths of the files in and below a folder, up to a few thousand. Hidden files and installed
    files are left out."""
    places = {place.absolute() for place in apart}
    looked_at = 0
    for here, folders, files in os.walk(folder):
        above = Path(here)
        kept = (each for each in folders if not is_of_nobody(each))
        folders[:] = [each for each in kept if (above / each).absolute() not in places]
        for name in files:
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT:
                return
            if not name.startswith("."):
                yield str((above / name).relative_to(folder))


def is_of_nobody(folder: str) -> bool:
    """Whether a folder with this name is hidden, or usually holds installed packages or similar files."""
    return folder.startswith(".") or folder in _OF_NOBODY
