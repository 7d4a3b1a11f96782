"""Readings that all parents of a process need alike, such as what keeps a pool waiting: made once for all of them."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SharedReadings(Generic[_T]):
    """The newest reading about each thing, reused for a period by every thread of this process.

    No thread waits for the reading of another: it takes the one before, and makes its own if there is none. A reading
    that fails is not kept.
    """

    def __init__(self, *, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._known: dict[Hashable, tuple[float, _T]] = {}
        self._reads: defaultdict[Hashable, Lock] = defaultdict(Lock)

    def newest(self, about: Hashable, read: Callable[[], _T]) -> _T:
        """A reading that is at most the period old, or the one before while another thread makes a new one.

        Raises:
            What `read` raises.
        """
        known = self._known.get(about)
        if known is not None and time.monotonic() - known[0] < self._period_seconds:
            return known[1]
        lock = self._reads[about]
        is_mine = lock.acquire(blocking=False)
        if not is_mine and known is not None:
            return known[1]
        try:
            found = read()
            self._known[about] = (time.monotonic(), found)
            return found
        finally:
            if is_mine:
                lock.release()
