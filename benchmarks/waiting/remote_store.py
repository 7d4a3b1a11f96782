"""A store that simulates a remote store. Each request takes time, and is counted."""

from __future__ import annotations

import math
import threading
from collections import Counter

from segue.clock import Clock, SystemClock
from segue.stores.base import ObjectInfo, Store

_PAGE_OBJECTS = 1000
"""Number of objects in one page of a listing, as on S3."""


class RemoteStore:
    """Wraps a real store. Every request takes `latency_seconds`, and `requests` counts the requests by operation."""

    is_remote = True

    def __init__(self, inner: Store, *, latency_seconds: float = 0.0, clock: Clock | None = None) -> None:
        self.inner, self.latency_seconds = inner, latency_seconds
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self.requests: Counter[str] = Counter()

    @property
    def url(self) -> str:
        return self.inner.url

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._travel("put_if_absent")
        return self.inner.put_if_absent(key, data)

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        self._travel("put")
        self.inner.put(key, data, durable=durable)

    def get(self, key: str) -> bytes:
        self._travel("get")
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._travel("get_range")
        return self.inner.get_range(key, start, length)

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        self._travel("read_into")
        return self.inner.read_into(key, start, into)

    def size(self, key: str) -> int:
        self._travel("size")
        return self.inner.size(key)

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        found = self.inner.list_objects(prefix, after=after)
        for _ in range(max(math.ceil(len(found) / _PAGE_OBJECTS), 1)):
            self._travel("list_objects")
        return found

    def folders(self) -> list[str]:
        self._travel("folders")
        return self.inner.folders()

    def delete(self, keys: list[str]) -> None:
        for _ in keys:
            self._travel("delete")
        self.inner.delete(keys)

    def drop_unfinished(self, prefix: str) -> None:
        self._travel("drop_unfinished")
        self.inner.drop_unfinished(prefix)

    def check(self) -> None:
        self.inner.check()

    def _travel(self, operation: str) -> None:
        with self._lock:
            self.requests[operation] += 1
        if self.latency_seconds:
            self._clock.sleep(self.latency_seconds)
