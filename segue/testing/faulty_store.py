"""A store for tests, whose operations fail on request."""

from __future__ import annotations

from collections.abc import Callable

from segue.stores.base import ObjectInfo, Refreshable, Store, StoreReadError, StoreWriteError

Fault = Callable[[str, str], bool]
"""A function that gets the name of an operation and the key, and returns whether the call fails."""


class FaultyStore:
    """Wraps a real store, and makes some operations fail.

    A failing write has no effect. If `after` is true, the write takes effect, and only its answer is lost.
    """

    def __init__(self, inner: Store, *, fails: Fault, after: bool = False) -> None:
        self.inner, self.fails, self.after = inner, fails, after

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def is_remote(self) -> bool:
        return self.inner.is_remote

    def put_if_absent(self, key: str, data: bytes) -> bool:
        failing = self.fails("put_if_absent", key)
        if failing and not self.after:
            raise StoreWriteError(url=self.url, key=key, why="injected")
        created = self.inner.put_if_absent(key, data)
        if failing:
            raise StoreWriteError(url=self.url, key=key, why="injected: the answer was lost")
        return created

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        if self.fails("put", key):
            raise StoreWriteError(url=self.url, key=key, why="injected")
        self.inner.put(key, data, durable=durable)

    def get(self, key: str) -> bytes:
        self._read("get", key)
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._read("get_range", key)
        return self.inner.get_range(key, start, length)

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        self._read("read_into", key)
        return self.inner.read_into(key, start, into)

    def size(self, key: str) -> int:
        self._read("size", key)
        return self.inner.size(key)

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        self._read("list", prefix)
        return self.inner.list_objects(prefix, after=after)

    def folders(self) -> list[str]:
        self._read("folders", "")
        return self.inner.folders()

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            if self.fails("delete", key):
                raise StoreWriteError(url=self.url, key=key, why="injected")
        self.inner.delete(keys)

    def drop_unfinished(self, prefix: str) -> None:
        self._read("drop_unfinished", prefix)
        self.inner.drop_unfinished(prefix)

    def afresh(self) -> FaultyStore:
        inner = self.inner.afresh() if isinstance(self.inner, Refreshable) else self.inner
        return FaultyStore(inner, fails=self.fails, after=self.after)

    def check(self) -> None:
        self.inner.check()

    def _read(self, operation: str, key: str) -> None:
        if self.fails(operation, key):
            raise StoreReadError(url=self.url, key=key, why="injected")
