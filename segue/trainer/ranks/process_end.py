"""The end of a process whose objects must not be destroyed, because destructors in it may never return."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import NoReturn

log = logging.getLogger(__name__)

_END_SECONDS = 60.0
"""Longest time for the threads and exit functions of the process."""
_TEXT, _BYTES = (io.TextIOWrapper,), (io.BufferedWriter, io.BufferedRandom)


def end_process(code: int) -> NoReturn:
    """End this process as Python does, but leave its objects as they are; after a minute in any case.

    Threads that are no daemons are waited for, exit functions are called, and what was written to open files is kept.
    Main thread only.
    """
    force = threading.Timer(_END_SECONDS, os._exit, (code,))
    force.daemon = True
    force.start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        # Of any kind, as in the next step: Python shows it and goes on, too.
        log.exception("the threads of this process did not end")
    try:
        atexit._run_exitfuncs()
        flush_files()
    except BaseException:
        log.exception("the exit functions of this process failed")
    finally:
        os._exit(code)


def flush_files() -> None:
    """Write what open files still hold in memory, which the end of Python would do when it destroys them."""
    gc.collect()  # What has no reference any more is destroyed, and so closed.
    objects = gc.get_objects()
    for kinds in (_TEXT, _BYTES):  # Those of text first: they write into those of bytes.
        for file in objects:
            if issubclass(type(file), kinds):
                with suppress(OSError, ValueError):
                    file.flush()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # They may be replaced, or None.
            stream.flush()
    ctypes.CDLL(None).fflush(None)
