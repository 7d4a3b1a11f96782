"""If `SEGUE_TRACE=FILE` is set, writes trace events of training processes, for chrome://tracing and Perfetto.

If this environment variable is set, each process appends one line per event to the file. Each line is written
immediately, so that the events of a killed process remain. If the variable is not set, nothing is measured.
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
    """Record a block of code as one event of this thread. The block may add facts to the yielded dict."""
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
