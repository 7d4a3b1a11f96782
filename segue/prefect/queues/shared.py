"""Cached readings that all parents of a process share, such as the state of a pool."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

_T = TypeVar("_T")


class SharedReadings(Generic[_T]):
    """The newest reading of each subject. All threads of this process reuse this reading for a period.

    No thread waits for another thread's reading. The thread uses the previous reading, or reads by itself if there is
    no previous reading. A failed reading is not kept.
    """

    def __init__(self, *, period_seconds: float) -> None:
        self._period_seconds = period_seconds
        self._known: dict[Hashable, tuple[float, _T]] = {}
        self._reads: defaultdict[Hashable, Lock] = defaultdict(Lock)

    def newest(self, about: Hashable, read: Callable[[], _T]) -> _T:
        """A reading that is not older than the period. While another thread reads, the result may be an older reading.

        Raises:
            Any exception of `read`.
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
