"""Ends a process without destroying the objects of libraries. Their destructors take long, and those of process groups
may never return."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from ctypes import CDLL
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from segue.user_objects import is_users_file

log = logging.getLogger(__name__)

_END_SECONDS = 60.0
"""Longest time, in seconds, that the threads and exit functions of the process may take."""
_LOCKED_SECONDS = 10.0
"""Additional seconds after which the process ends even if one thread keeps Python's lock and no other thread can
run."""
_STANDARD_ERROR = 2


def end_process(code: int, *, last: Callable[[], None] | None = None) -> NoReturn:
    """End this process in the same way as Python, but without destroying its objects. The process ends after at most 70
    s.

    The function waits for non-daemon threads, calls exit functions, then `last`, and closes open files. Only the main
    thread may call this function.
    """
    # This timer needs no Python thread and no stream. The user may have replaced the streams.
    faulthandler.dump_traceback_later(_END_SECONDS + _LOCKED_SECONDS, file=_STANDARD_ERROR, exit=True)
    force = threading.Timer(_END_SECONDS, _end_at_once, (code,))
    force.daemon = True
    force.start()
    steps: dict[str, Callable[[], None] | None] = {
        "threads": threading._shutdown,  # type: ignore[attr-defined]
        "exit functions": atexit._run_exitfuncs,
        "objects": last,
        "files": close_files,
    }
    for what, step in steps.items():
        if step is None:
            continue
        try:
            step()
        except BaseException:
            # Catch any exception, because Python also shows the exception and continues.
            log.exception("the %s of this process ended with an error", what)
    os._exit(code)


def _end_at_once(code: int) -> None:
    with suppress(OSError):  # A hung thread may hold locks of logging.
        os.write(
            _STANDARD_ERROR, b"threads or exit functions of this process did not end within a minute, they are left\n"
        )
    os._exit(code)


def destroy_users_objects() -> None:
    """Destroy the objects that the modules of the user's code hold, as Python does at its end.

    A file of a C library, for example a Parquet file, may be complete only then. Threads of the user's code that still
    run fail without a message, because their modules are empty.
    """
    threading.excepthook = lambda *_: None
    for module in tuple(sys.modules.values()):
        # Libraries make modules of classes of their own, whose files have made-up names.
        file = getattr(module, "__file__", None) if type(module) is ModuleType else None
        if isinstance(file, str) and Path(file).is_absolute() and is_users_file(file):
            # The newest name is first, because destructors need the imports at the top of their module.
            for name in reversed([name for name in vars(module) if not name.startswith("__")]):
                vars(module)[name] = None
    gc.collect()


def close_files() -> None:
    """Close all files that are open for writing. Python itself closes files only when it destroys the file objects."""
    standard: list[Any] = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    kept = {id(stream) for stream in (*standard, *(getattr(stream, "buffer", None) for stream in standard))}
    for file in _open_files():
        if id(file) not in kept:
            with suppress(Exception):  # Any exception: a class of the user's may raise it. The others must be closed.
                file.close()
    for stream in (*standard[1:3], *standard[4:6]):
        with suppress(OSError, ValueError, AttributeError):  # They may be replaced, or None.
            stream.flush()
    CDLL(None).fflush(None)


def _open_files() -> Iterator[Any]:
    """Yield open files in the order in which they must be closed. Text files are closed first, then file objects that
    compress or upload, then buffers.

    Within each kind, the newest file is first. A file writes its data only into older files.
    """
    by_turn: tuple[list[Any], ...] = ([], [], [])
    turns: dict[type, int | None] = {}
    for found in reversed(gc.get_objects()):
        kind = type(found)
        if kind not in turns:  # A process may have millions of objects, but only thousands of classes.
            turns[kind] = _turn_of(kind)
        turn = turns[kind]
        if turn is not None:
            by_turn[turn].append(found)
    for files in by_turn:
        yield from filter(_is_written, files)


def _turn_of(kind: type) -> int | None:
    """The turn in which files of this class are closed; None if the class is no file."""
    if issubclass(kind, io.TextIOWrapper):
        return 0
    if issubclass(kind, (io.BufferedWriter, io.BufferedRandom)):
        return 2
    archive = getattr(sys.modules.get("zipfile"), "ZipFile", None)
    is_file = issubclass(kind, io.IOBase) and not issubclass(kind, io.RawIOBase)
    return 1 if is_file or kind is archive else None


def _is_written(file: Any) -> bool:
    """Whether the file may hold unwritten data. For a file that is only read, the result is False: while another thread
    reads such a file, closing the file would block."""
    if isinstance(file, io.BufferedReader) or isinstance(getattr(file, "buffer", None), io.BufferedReader):
        return False
    with suppress(Exception):  # Any exception: a class of the user's may raise it, or the file is closed.
        return not hasattr(file, "writable") or bool(file.writable()) or not file.readable()
    return False
