"""Files that a program's run has written itself: no part of its state, and not of the same moment as its checkpoint."""

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
    """Files that a run wrote in its earlier attempts, by the paths that the program knows, the newest first."""

    read: tuple[str, ...] = ()
    """The files that the program has read in this attempt."""
    written: tuple[str, ...] = ()
    """The files in and below the working folder, if the program is not known to have read any file: a library that
    opens files outside of Python reads without a trace, and so does a script before its session begins."""


def own_files(*, since: datetime, until: datetime, folder: Path, apart: Sequence[Path]) -> OwnFiles:
    """The files of the run, as seen from the working folder; none below `apart`, where segue itself writes.

    `since` is when the run's first step was due, `until` when this attempt began. A file counts by the time at which it
    changed: files that a program prepares before its first step, such as a cache of its data, are the same in each
    attempt.
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
    """Files in and below a folder, by their path in it: some thousands at most, none that is hidden or installed."""
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
    """Whether a folder with this name is hidden, or is one that holds installed packages or the like."""
    return folder.startswith(".") or folder in _OF_NOBODY
