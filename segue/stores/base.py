"""The contract of every store. The run's log is built on one primitive, `put_if_absent`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from segue.errors import BadKeyError, MissingObjectError, StoreError, StoreUnreachableError


class ObjectInfo(NamedTuple):
    """One stored object."""

    key: str
    size_bytes: int


class StoreWriteError(StoreError):
    """The bytes did not reach the store; its earlier content is untouched."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(
            f"store {url}: could not write {key}: {why}.", fix="free space or restore access; the write is retried."
        )


WRONG_CLOCK = "the clock of this machine is wrong by more than the server permits"
"""The reason of an error, if the server names this one."""


class StoreReadError(StoreError):
    """A read failed, so it is not known whether the object exists."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(f"store {url}: could not read {key}: {why}.", fix="check the store's health and your access.")


class StoreGoneError(StoreReadError, StoreWriteError):
    """The store itself is not where it was: unmounted, renamed, deleted, or replaced by another one."""

    def __init__(self, *, url: str, why: str) -> None:
        self.url, self.key, self.why = url, MARKER, why
        StoreError.__init__(self, f"store {url}: {why}.", fix="mount it or move it back; the work is retried.")


class Store(Protocol):
    """Bytes under plain relative keys. Safe to use from several threads."""

    @property
    def url(self) -> str:
        """The address of this store, for messages; it never holds a secret."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each request takes a round trip over a network and costs money: ask rarely, and in parallel."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write a small object unless the key exists; True if this call created the object.

        Atomic and durable: of any number of callers, on any machine, at most one gets True, and from then on
        every reader sees exactly its bytes, even after a crash. A caller whose answer got lost may get False
        for its own write: compare the bytes.

        Raises:
            StoreWriteError: it is unknown whether the object was written, because the answer may have been lost.
        """
        ...

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        """Write or replace an object as a whole. With `durable` it survives a power cut once this returns.

        Raises:
            StoreWriteError: readers still see the earlier content.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            MissingObjectError: there is none.
            StoreReadError: the store could not be read.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer at the object's end, none beyond it.

        Raises:
            ValueError: `start` or `length` is negative.
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        """Fill `into` with the bytes from `start`; returns their number. Large objects are read with few copies.

        Memory that begins on a page (`stores.direct.page_buffer`) is filled without passing the page cache.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read; `into` holds anything.
        """
        ...

    def size(self, key: str) -> int:
        """The object's size in bytes.

        Raises:
            MissingObjectError: there is none.
            StoreReadError: the store could not be read.
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """All objects below a prefix that ends with '/', sorted by key; the empty prefix lists all.

        With `after`, only objects with greater keys; the objects before them cost nothing, except on Azure.

        Objects of other programs, whose names cannot be keys of a store, are skipped.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def folders(self) -> list[str]:
        """The names of the top-level folders, sorted: the runs.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def delete(self, keys: list[str]) -> None:
        """Remove objects; missing ones are skipped.

        Raises:
            StoreWriteError: the object it names and the following ones may still be there.
        """
        ...

    def drop_unfinished(self, prefix: str) -> None:
        """Remove unfinished writes of dead writers below a prefix that ends with '/': bytes that no reader can see.

        A writer that is still alive gets a StoreWriteError and may retry. On Azure nothing is removed: uncommitted data
        cannot be removed, and expires by itself after a week.

        Raises:
            StoreReadError, StoreWriteError: some of these writes may still be there.
        """
        ...

    def check(self) -> None:
        """Prove that this store can be written and keeps `put_if_absent`'s promise.

        Raises:
            StoreUnreachableError: with the reason and the fix.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store that can say more about itself than the contract requires."""

    def reach(self) -> None:
        """Ask whether the store exists, whatever access rights it grants. Answers within seconds.

        Raises:
            StoreUnreachableError: with the reason and the fix.
        """
        ...

    def modified_at(self, key: str) -> datetime:
        """When an object was written, by the clock of the store; some stores count whole seconds.

        Raises:
            MissingObjectError: there is none.
            StoreReadError: the store could not be read.
        """
        ...


@runtime_checkable
class HasRules(Protocol):
    """A store that shows whether anything besides segue removes its objects. Not every kind of store can."""

    def removed_by(self) -> str | None:
        """The rule that removes objects without a delete, as far as can be seen; None if there is none.

        Raises:
            StoreReadError: its rules could not be read.
        """
        ...


@runtime_checkable
class Refreshable(Protocol):
    """A store that can be read in another way: this corrects bytes that a fault on the way has changed."""

    def afresh(self) -> Store:
        """The same store, read past the page cache or over new connections. For repeated reads."""
        ...


def ways_to(store: Store, *, reads: int) -> Iterator[Store]:
    """The store itself, then the same store read in other ways, or the store again if it has none; `reads` in all."""
    yield store
    for _ in range(reads - 1):
        yield store.afresh() if isinstance(store, Refreshable) else store


MARKER = ".segue-store"
"""Name of the file that marks a folder as a store and holds the store's uuid. No object can have this name."""

STAGED = ".staged-"
"""Prefix of the names of files being written. No key may begin with it, or a reader would not find its object."""

_MOST_KEY_BYTES, _MOST_PART_BYTES = 1024, 255
"""Limits of buckets and file systems."""
_PART = re.compile(r"[\w=.,@+-][\w=.,@+ -]*")


def checked_key(key: str) -> str:
    """The key itself, when it is a plain relative path.

    Raises:
        BadKeyError: it is empty, absolute, climbs with '..', or has odd characters. Manifests come from
            storage that others may write, so a key is never trusted.
    """
    if not is_key(key):
        raise BadKeyError(key=key)
    return key


def is_key(name: str) -> bool:
    """Whether an object of a store can have this name."""
    parts = name.split("/")
    reserved = {".", "..", MARKER}
    if not all(_PART.fullmatch(part) and part not in reserved and not part.startswith(STAGED) for part in parts):
        return False
    # A store that cannot hold the name would report that it cannot be read, and the reader would ask for ever.
    return len(name.encode()) <= _MOST_KEY_BYTES and all(len(part.encode()) <= _MOST_PART_BYTES for part in parts)


def checked_range(start: int, length: int) -> tuple[int, int]:
    """Both numbers, if none is negative: stores differ in how they treat negative numbers."""
    if start < 0 or length < 0:
        raise ValueError(f"start {start} and length {length} must not be negative")
    return start, length


def put_new(store: Store, key: str, data: bytes) -> bool:
    """Whether `put_if_absent` created the object, even if its answer was lost and a retry found its own bytes.

    `data` must be bytes that no other writer has.

    Raises:
        StoreWriteError, StoreReadError, MissingObjectError: it is not known whether it did.
    """
    return store.put_if_absent(key, data) or store.get(key) == data


def check_by_writing(store: Store) -> None:
    """The check that every store shares: of two puts to one new key, exactly one must succeed. It leaves no object."""
    key = f".segue-check/{uuid.uuid4().hex}"
    try:
        _require_one_winner(store, key)
    finally:
        refused = _refused_deletion(store, key)
    if refused is not None:
        why = f"its objects cannot be deleted ({refused.why}); {key} stays."
        raise StoreUnreachableError(url=store.url, why=why, fix="ask for the right to delete there.")


def _refused_deletion(store: Store, key: str) -> StoreWriteError | None:
    try:
        store.delete([key])
    except StoreWriteError as error:
        return error
    return None


def _require_one_winner(store: Store, key: str) -> None:
    first = uuid.uuid4().hex.encode()
    try:
        is_created = put_new(store, key, first)
        is_replaced = store.put_if_absent(key, b"second")
        is_kept = store.get(key) == first
    except StoreWriteError as error:
        fix = "give a place you may write to, or ask for write access."
        raise StoreUnreachableError(url=store.url, why=f"it cannot be written ({error.why}).", fix=fix) from None
    except StoreReadError as error:
        fix = "ask for read access to the same place."
        raise StoreUnreachableError(url=store.url, why=f"it cannot be read ({error.why}).", fix=fix) from None
    except MissingObjectError:
        raise StoreUnreachableError(
            url=store.url,
            why="an object that was just written is missing, so the run's log cannot be kept there.",
            fix="use a store that reads back what was written.",
        ) from None
    if not is_created or is_replaced or not is_kept:
        raise StoreUnreachableError(
            url=store.url,
            why="a put on the condition that no object is there overwrote one, so the run's log cannot be kept there.",
            fix="use AWS S3, Google Cloud, Azure, another store with conditional puts, or a folder.",
        )
