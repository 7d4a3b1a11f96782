"""Reads many small objects, in parallel if the store is remote."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from segue.errors import MissingObjectError
from segue.stores.base import ObjectInfo, Store

READERS = 32
"""Number of parallel requests."""
_AHEAD_OBJECTS = 4 * READERS
_AHEAD_BYTES = 64 * 2**20
"""Maximum number of bytes that are requested in advance, before the caller uses the bytes. A single object may be
larger."""


def read_each(store: Store, wanted: Iterable[ObjectInfo], *, most_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the key and the bytes of each of these objects, in the given order.

    If an object is missing, yield None instead of the bytes. Read at most `most_bytes` of each object. The
    function uses the given sizes only to limit its memory.

    Raises:
        StoreReadError: the store could not be read.
    """
    if not store.is_remote:
        # Threads would take more time than opening a local file.
        return ((item.key, _read(store, item.key, most_bytes)) for item in wanted)
    return _read_ahead(store, wanted, most_bytes)


def _read_ahead(store: Store, wanted: Iterable[ObjectInfo], most_bytes: int) -> Iterator[tuple[str, bytes | None]]:
    asked: deque[tuple[ObjectInfo, Future[bytes | None]]] = deque()
    ahead_bytes = 0
    with ThreadPoolExecutor(READERS, thread_name_prefix="segue-read") as pool:
        try:
            for item in wanted:
                while asked and (len(asked) >= _AHEAD_OBJECTS or ahead_bytes + item.size_bytes > _AHEAD_BYTES):
                    done, future = asked.popleft()
                    ahead_bytes -= done.size_bytes
                    yield done.key, future.result()
                asked.append((item, pool.submit(_read, store, item.key, most_bytes)))
                ahead_bytes += item.size_bytes
            while asked:
                done, future = asked.popleft()
                yield done.key, future.result()
        finally:
            for _, future in asked:  # After an error, the pool waits only for the requests that have started.
                future.cancel()


def _read(store: Store, key: str, most_bytes: int) -> bytes | None:
    try:
        return store.get_range(key, 0, most_bytes)
    except MissingObjectError:
        return None
