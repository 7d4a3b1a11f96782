"""Worker processes of a benchmark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of this number of new processes, each with one thread for linear algebra, so that all cores are used
    once."""
    before = {name: os.environ.get(name) for name in _THREADS}
    # A process takes over the environment when it starts, which is at the first tasks.
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
