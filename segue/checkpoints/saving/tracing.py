"""Writes trace events of training processes for chrome://tracing and Perfetto, if `SEGUE_TRACE=FILE` is set.

The variable must be set at the start of a process. Each process appends one line per event to the file. A process
writes each line immediately, so the events of a killed process remain. If the variable is not set, nothing is measured.
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
_PATH = os.environ.get(VARIABLE)
IS_ON = bool(_PATH)
_NOTHING: AbstractContextManager[dict[str, object]] = nullcontext({})


def span(name: str, **facts: object) -> AbstractContextManager[dict[str, object]]:
    """Record a block of code as one event of this thread. The block may add values to the yielded dict."""
    return _measured(_opened(_PATH), name, facts) if _PATH else _NOTHING


@contextmanager
def _measured(descriptor: int, name: str, facts: dict[str, object]) -> Iterator[dict[str, object]]:
    began = SystemClock().monotonic()
    try:
        yield facts
    finally:
        _append(descriptor, name, began, SystemClock().monotonic(), facts)


def record(name: str, began: float, ended: float, **facts: object) -> None:
    """Record an event between two times of the monotonic clock. The caller must check `IS_ON`."""
    assert _PATH
    _append(_opened(_PATH), name, began, ended, facts)


def _append(descriptor: int, name: str, began: float, ended: float, facts: dict[str, object]) -> None:
    event = {"name": name, "ph": "X", "ts": 1e6 * began, "dur": 1e6 * (ended - began), "pid": os.getpid()}
    event |= {"tid": threading.current_thread().name, "args": facts}
    # The line is written whole, because the file was opened for appending.
    os.write(descriptor, json.dumps(event, default=str).encode() + b",\n")


@cache
def _opened(path: str) -> int:
    """Open the file. A new file begins with "[". Trace viewers do not need the closing bracket."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        os.write(descriptor, b"[\n")
    except FileExistsError:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    return descriptor
