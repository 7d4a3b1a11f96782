"""Ends a process without destroying its objects, because their destructors may never return."""

from __future__ import annotations

import atexit
import faulthandler
import gc
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from ctypes import CDLL
from typing import Any, NoReturn

log = logging.getLogger(__name__)

_END_SECONDS = 60.0
"""Longest time, in seconds, that the threads and exit functions of the process may take."""
_LOCKED_SECONDS = 10.0
"""Additional seconds after which the process ends even if one thread keeps Python's lock and no other thread can
run."""
_STANDARD_ERROR = 2


def end_process(code: int) -> NoReturn:
    """End this process in the same way as Python, but without destroying its objects. The process ends after at most 70
    s.

    The function waits for non-daemon threads, calls exit functions, and closes open files. Only the main thread may
    call this function.
    """
    # This timer needs no Python thread and no stream. The user may have replaced the streams.
    faulthandler.dump_traceback_later(_END_SECONDS + _LOCKED_SECONDS, file=_STANDARD_ERROR, exit=True)
    force = threading.Timer(_END_SECONDS, _end_at_once, (code,))
    force.daemon = True
    force.start()
    for what, step in (("threads", threading._shutdown), ("exit functions", _call_exit_functions)):  # type: ignore[attr-defined]
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


def _call_exit_functions() -> None:
    atexit._run_exitfuncs()
    close_files()


def close_files() -> None:
    """Close all files that are open for writing. Python itself closes files only when it destroys the file objects."""
    standard: list[Any] = [sys.stdin, sys.stdout, sys.stderr, sys.__stdin__, sys.__stdout__, sys.__stderr__]
    kept = {id(stream) for stream in (*standard, *(getattr(stream, "buffer", None) for stream in standard))}
    for file in _open_files():
        if id(file) not in kept:
            with suppress(Exception):  # Any exception: a class of the user's may raise it. The others must be closed.
                file.close()
    for stream in standard[1:3]:
        with suppress(OSError, ValueError, AttributeError):  # They may be replaced, or None.
            stream.flush()
    CDLL(None).fflush(None)


def _open_files() -> Iterator[Any]:
    """Yield open files in the order in which they must be closed. Text files are first, then files that compress or
    upload, then buffers.

    Within each kind, the newest file is first. A file writes its data only into older files.
    """
    archive = getattr(sys.modules.get("zipfile"), "ZipFile", None)
    by_turn: tuple[list[Any], ...] = ([], [], [])
    for found in reversed(gc.get_objects()):
        kind = type(found)
        if issubclass(kind, io.TextIOWrapper):
            by_turn[0].append(found)
        elif issubclass(kind, (io.BufferedWriter, io.BufferedRandom)):
            by_turn[2].append(found)
        elif (issubclass(kind, io.IOBase) and not issubclass(kind, io.RawIOBase)) or kind is archive:
            by_turn[1].append(found)
    for files in by_turn:
        yield from filter(_is_written, files)


def _is_written(file: Any) -> bool:
    """Whether the file may hold unwritten data. For a file that is only read, the result is False: while another thread
    reads such a file, closing the file would block."""
    if isinstance(file, io.BufferedReader) or isinstance(getattr(file, "buffer", None), io.BufferedReader):
        return False
    with suppress(Exception):  # Any exception: a class of the user's may raise it, or the file is closed.
        return not hasattr(file, "writable") or bool(file.writable()) or not file.readable()
    return False
