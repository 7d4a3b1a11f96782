"""A pause of Python's garbage collector while tens of thousands of small objects are created. No torch here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """No automatic collection inside: many new objects trigger it, and it visits every object of the program."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
