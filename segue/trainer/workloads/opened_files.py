"""Files that the user's code opens for reading or writing, even if the code computes their names at run time.

Python calls an audit hook for every opened file (PEP 578). A hook cannot be removed, so each process has only one hook.
After the hook has recorded enough files, the hook does little work.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from segue.credentials import names_secret
from segue.data.config import CONFIG_VARIABLE
from segue.user_objects import installed_folders

_MOST_FILES, _MOST_WRITTEN, _MOST_ALIKE = 64, 1024, 8
"""Limits on the number of recorded files. If many files have the same folder and suffix, they are most likely samples
of one data set."""
_MOST_FRAMES = 25
_OF_CODE = (".py", ".pyc", ".pyi", ".so", ".dist-info", ".pth")
_OF_SYSTEM = ("/proc/", "/sys/", "/dev/", "/run/", "/var/run/")
_OF_SECRETS = (".pem", ".key", ".p12", ".crt", "_rsa", "_ed25519")

_opened: dict[str, None] = {}
_written: set[str] = set()
_read_back: set[str] = set()
"""Files that the user's code read after it had written them."""
_alike: Counter[tuple[str, str]] = Counter()
_hooks: list[Any] = []


def watch_opened_files() -> None:
    """Record the files that the user's code opens from now on in this process."""
    if not _hooks:
        _hooks.append(_hook)
        sys.addaudithook(_hook)


def opened_files() -> tuple[str, ...]:
    """Paths of the first files that the user's code opened for reading."""
    return tuple(_opened)


def is_only_written(path: str) -> bool:
    """Whether the user's code opened this file only for writing, like a log file."""
    whole = _absolute(path)
    return whole in _written and whole not in _read_back and whole not in map(_absolute, _opened)


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        # If the hook raised an exception, the user's call would raise this exception.
        with suppress(Exception):
            _note(*args)


def _note(path: Any, mode: Any, flags: Any) -> None:
    name = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(name, str):
        return
    if _is_only_written(mode):
        _note_in(_written, name)
        return
    if _written and _absolute(name) in _written:
        _note_in(_read_back, name)
    if len(_opened) < _MOST_FILES and name not in _opened and _is_read(mode, flags) and _is_telling(name):
        kind = (name.rpartition("/")[0], name.rpartition(".")[2])
        if _alike[kind] < _MOST_ALIKE and _is_by_user(sys._getframe(2)):
            _opened[name] = None
            _alike[kind] += 1


def _note_in(files: set[str], name: str) -> None:
    whole = _absolute(name)
    if whole not in files and len(files) < _MOST_WRITTEN and _is_by_user(sys._getframe(3)):
        files.add(whole)


def _absolute(name: str) -> str:
    return os.path.abspath(name)  # noqa: PTH100 - at each open of a file, and without a look at it


def _is_only_written(mode: Any) -> bool:
    return isinstance(mode, str) and bool(set(mode) & set("wax")) and "+" not in mode


def _is_read(mode: Any, flags: Any) -> bool:
    if isinstance(mode, str):
        return not set(mode) & set("wax")
    return isinstance(flags, int) and not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_DIRECTORY)


def _is_telling(path: str) -> bool:
    is_of_system = path.startswith(_OF_SYSTEM) and not path.startswith("/dev/shm/")  # noqa: S108 - a name, not a place
    name = path.rpartition("/")[2]
    is_secret = name.startswith(".") or name.endswith(_OF_SECRETS) or names_secret(name)
    is_ours = path == os.environ.get(CONFIG_VARIABLE)  # A different file in each process.
    return path.isprintable() and not (is_of_system or is_secret or is_ours or path.endswith(_OF_CODE))


def _is_by_user(frame: Any) -> bool:
    """Whether the nearest caller is the user's code and not segue's code."""
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return False
        owner = _owner_of(frame.f_code.co_filename)
        if owner is not None:
            return owner == "user"
        frame = frame.f_back
    return False


@cache
def _owner_of(file: str) -> str | None:
    """The owner of a source file: "user" or "segue"; None for Python itself and for other packages."""
    if file.startswith("<"):
        return None
    if file.startswith(_OWN_FOLDER):
        return "segue"
    return None if file.startswith(installed_folders()) else "user"


_OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep
