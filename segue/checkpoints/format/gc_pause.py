"""Python's garbage collector, kept still where tens of thousands of small objects are made at once. No torch here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """No automatic collection meanwhile: many new objects set it off, and it looks at every object of the program."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
