"""Pauses the garbage collector while tens of thousands of small objects are created.

The module does not import torch.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused_collector() -> Iterator[None]:
    """A context manager that disables automatic garbage collection in its block.

    Without this context manager, the garbage collector would visit all objects of the program many times.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
