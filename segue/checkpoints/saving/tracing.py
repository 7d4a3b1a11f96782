"""`SEGUE_TRACE=FILE`: how training processes spend their time, as events that chrome://tracing and Perfetto show.

Every process with that variable appends to the file: one event per line, written at once, so that the events of a
killed process remain. Without the variable nothing is measured.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache

from segue.clock import SystemClock

VARIABLE = "SEGUE_TRACE"
_NOTHING: AbstractContextManager[dict[str, object]] = nullcontext({})


def span(name: str, **facts: object) -> AbstractContextManager[dict[str, object]]:
    """A block of code as one event of this thread, with these facts and those that the block adds to the dict."""
    path = os.environ.get(VARIABLE)
    return _NOTHING if not path else _measured(_opened(path), name, facts)


@contextmanager
def _measured(descriptor: int, name: str, facts: dict[str, object]) -> Iterator[dict[str, object]]:
    began = SystemClock().monotonic()
    try:
        yield facts
    finally:
        took = SystemClock().monotonic() - began
        event = {"name": name, "ph": "X", "ts": 1e6 * began, "dur": 1e6 * took, "pid": os.getpid()}
        _append(descriptor, event | {"tid": threading.current_thread().name, "args": facts})


def _append(descriptor: int, event: dict[str, object]) -> None:
    os.write(descriptor, json.dumps(event, default=str).encode() + b",\n")  # Whole: the file is opened for appending.


@cache
def _opened(path: str) -> int:
    """The file, which begins with the bracket of a list; readers of such traces do not ask for the closing one."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(descriptor, b"[\n")
    except FileExistsError:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    return descriptor
