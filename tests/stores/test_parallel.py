"""Many small objects of a remote store are read at the same time, in order, and in bounded memory."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from benchmarks.waiting.remote_store import RemoteStore
from segue.stores import LocalStore, Store, StoreReadError
from segue.stores.base import ObjectInfo
from segue.stores.parallel import READERS, read_each
from segue.testing.faulty_store import FaultyStore

MANY = 300


@pytest.fixture
def near(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store").create()
    for number in range(0, MANY, 2):
        store.put(f"a/{number}", b"%d" % number, durable=False)
    return store


def wanted(size_bytes: int = 3) -> list[ObjectInfo]:
    return [ObjectInfo(f"a/{number}", size_bytes) for number in range(MANY)]


@pytest.mark.parametrize("is_remote", [False, True])
def test_objects_are_read_in_order_and_missing_ones_are_none(near: LocalStore, is_remote: bool) -> None:
    store: Store = RemoteStore(near) if is_remote else near
    expected = [(f"a/{number}", b"%d" % number if number % 2 == 0 else None) for number in range(MANY)]
    assert list(read_each(store, wanted(), most_bytes=100)) == expected
    assert next(iter(read_each(store, wanted()[100:], most_bytes=2))) == ("a/100", b"10")


class Meeting(RemoteStore):
    """Lets no read return before a number of them are under way."""

    def __init__(self, inner: Store, *, readers: int) -> None:
        super().__init__(inner)
        self.barrier = threading.Barrier(readers)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self.barrier.wait(timeout=60)
        return super().get_range(key, start, length)


def test_a_remote_store_is_asked_by_many_readers_at_once(near: LocalStore) -> None:
    store = Meeting(near, readers=READERS)
    assert len(list(read_each(store, wanted()[:READERS], most_bytes=100))) == READERS


def test_large_objects_are_not_requested_long_before_they_are_taken(near: LocalStore) -> None:
    store = RemoteStore(near)
    reading = read_each(store, wanted(size_bytes=2**25), most_bytes=100)
    for taken in range(1, 20):
        next(reading)
        assert sum(store.requests.values()) <= taken + 2


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_failed_read_is_raised_and_ends_the_reading(near: LocalStore, is_remote: bool) -> None:
    counted = RemoteStore(near)
    failing = FaultyStore(counted, fails=lambda operation, key: key == "a/10")
    counted.is_remote = is_remote  # type: ignore[misc]
    with pytest.raises(StoreReadError):
        list(read_each(failing, wanted(), most_bytes=100))
    assert sum(counted.requests.values()) < MANY
