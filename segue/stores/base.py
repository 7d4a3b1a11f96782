"""The interface of all stores. The log of a run needs only one special operation, `put_if_absent`."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from segue.errors import BadKeyError, MissingObjectError, StoreError, StoreUnreachableError


class ObjectInfo(NamedTuple):
    """The key and the size of one stored object."""

    key: str
    size_bytes: int


class StoreWriteError(StoreError):
    """The bytes were not written; the earlier content of the store is unchanged."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(
            f"store {url}: could not write {key}: {why}.", fix="free space or restore access; the write is retried."
        )


WRONG_CLOCK = "the clock of this machine is wrong by more than the server permits"
"""The reason in an error message if the server reports a wrong clock."""


class StoreReadError(StoreError):
    """A read failed, so it is not known whether the object exists."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(f"store {url}: could not read {key}: {why}.", fix="check the store's health and your access.")


class StoreGoneError(StoreReadError, StoreWriteError):
    """The folder of the store was unmounted, renamed, deleted, or replaced by another store."""

    def __init__(self, *, url: str, why: str) -> None:
        self.url, self.key, self.why = url, MARKER, why
        StoreError.__init__(
            self, f"store {url}: {why}.", fix="mount the folder again, or move it back; the operation is retried."
        )


class Store(Protocol):
    """Objects of bytes, each with a relative path as its key. Safe to use from several threads."""

    @property
    def url(self) -> str:
        """The address of this store, for messages; it never contains a secret."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each request takes a network round trip and costs money, so requests must be few and parallel."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write a small object unless the key exists; True if this call created the object.

        Atomic and durable: of all callers on all machines, at most one gets True. After that, every reader sees
        exactly the bytes of this caller, even after a crash. If an answer was lost, a caller may get False for its
        own write; to find out, compare the bytes.

        Raises:
            StoreWriteError: it is unknown whether the object was written, because the answer may have been lost.
        """
        ...

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        """Write or replace a whole object. With `durable`, the object survives a power cut after this call returns.

        Raises:
            StoreWriteError: readers still see the earlier content.
        """
        ...

    def get(self, key: str) -> bytes:
        """The whole object.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer bytes at the end of the object, no bytes after it.

        Raises:
            ValueError: `start` or `length` is negative.
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        """Fill `into` with the bytes from `start`, and return the number of bytes. Large objects need few copies.

        If `into` begins at a memory page (see `stores.direct_io.page_buffer`), the read bypasses the page cache.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read; the content of `into` is undefined.
        """
        ...

    def size(self, key: str) -> int:
        """The size of the object in bytes.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """All objects below a prefix that ends with '/', sorted by key; the empty prefix means all objects.

        With `after`, only objects with keys greater than `after` are listed; except on Azure, this needs fewer
        requests. Objects of other programs with names that cannot be keys are skipped.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def folders(self) -> list[str]:
        """The sorted names of the top-level folders, which are the run ids.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def delete(self, keys: list[str]) -> None:
        """Delete objects; missing objects are skipped.

        Raises:
            StoreWriteError: the object in the error and all later objects in `keys` may still exist.
        """
        ...

    def drop_unfinished(self, prefix: str) -> None:
        """Remove the bytes of unfinished writes below a prefix that ends with '/'; readers never see these bytes.

        If the writer is still alive, it gets a StoreWriteError and may retry. On Azure nothing is removed: uncommitted
        data cannot be removed, but expires after a week.

        Raises:
            StoreReadError, StoreWriteError: some of these bytes may still exist.
        """
        ...

    def check(self) -> None:
        """Test that this store can be written and that `put_if_absent` works as described.

        Raises:
            StoreUnreachableError: the test failed; the error has the reason and the fix.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store with methods for examining it, beyond the interface `Store`."""

    def reach(self) -> None:
        """Test within seconds whether the store exists, regardless of the access rights.

        Raises:
            StoreUnreachableError: the test failed; the error has the reason and the fix.
        """
        ...

    def modified_at(self, key: str) -> datetime:
        """Time at which an object was written, on the clock of the store; some stores give whole seconds only.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...


@runtime_checkable
class HasRules(Protocol):
    """A store that can show whether something other than segue removes its objects. Not every kind of store can."""

    def removed_by(self) -> str | None:
        """The known rule that removes objects automatically, in words; None if there is no such rule.

        Raises:
            StoreReadError: the rules could not be read.
        """
        ...


@runtime_checkable
class Refreshable(Protocol):
    """A store that can be read in another way, to correct bytes that were changed by a fault during the read."""

    def afresh(self) -> Store:
        """The same store for repeated reads, without the page cache or with new connections."""
        ...


def ways_to(store: Store, *, reads: int) -> Iterator[Store]:
    """Yield the store `reads` times: first the store itself, then a store that reads in another way, if possible."""
    yield store
    for _ in range(reads - 1):
        yield store.afresh() if isinstance(store, Refreshable) else store


MARKER = ".segue-store"
"""Name of the file that marks a folder as a store and contains the store's uuid. No object can have this name."""

STAGED = ".staged-"
"""Prefix of the names of unfinished files. No part of a key may begin with this prefix."""

_MOST_KEY_BYTES, _MOST_PART_BYTES = 1024, 255
"""Longest key, and longest part of a key, that buckets and file systems permit."""
_PART = re.compile(r"[\w=.,@+-][\w=.,@+ -]*")


def checked_key(key: str) -> str:
    """The key itself, if it is a plain relative path.

    Manifests come from storage that others may write, so their keys are not trusted.

    Raises:
        BadKeyError: the key is empty or absolute, or contains '..' or a character that is not permitted.
    """
    if not is_key(key):
        raise BadKeyError(key=key)
    return key


def is_key(name: str) -> bool:
    """Whether the name is a valid key of an object."""
    parts = name.split("/")
    reserved = {".", "..", MARKER}
    if not all(_PART.fullmatch(part) and part not in reserved and not part.startswith(STAGED) for part in parts):
        return False
    # For a name that is too long, a store would report a read error, and the reader would retry forever.
    return len(name.encode()) <= _MOST_KEY_BYTES and all(len(part.encode()) <= _MOST_PART_BYTES for part in parts)


def checked_range(start: int, length: int) -> tuple[int, int]:
    """Both numbers, if neither is negative. Stores treat negative numbers differently, so these are refused."""
    if start < 0 or length < 0:
        raise ValueError(f"start {start} and length {length} must not be negative")
    return start, length


def put_new(store: Store, key: str, data: bytes) -> bool:
    """Whether `put_if_absent` created the object; if an answer was lost, the stored bytes are compared with `data`.

    No other writer may write the same `data`.

    Raises:
        StoreWriteError, StoreReadError, MissingObjectError: it is not known whether the object was created.
    """
    return store.put_if_absent(key, data) or store.get(key) == data


def check_by_writing(store: Store) -> None:
    """Test that of two `put_if_absent` calls with one new key exactly one succeeds; the test object is deleted."""
    key = f".segue-check/{uuid.uuid4().hex}"
    try:
        _require_one_winner(store, key)
    finally:
        refused = _refused_deletion(store, key)
    if refused is not None:
        why = f"its objects cannot be deleted ({refused.why}); the test object {key} remains."
        raise StoreUnreachableError(url=store.url, why=why, fix="ask for the permission to delete objects there.")


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
        fix = "give another store that you may write to, or ask for write access."
        raise StoreUnreachableError(url=store.url, why=f"it cannot be written ({error.why}).", fix=fix) from None
    except StoreReadError as error:
        fix = "ask for read access to this store."
        raise StoreUnreachableError(url=store.url, why=f"it cannot be read ({error.why}).", fix=fix) from None
    except MissingObjectError:
        raise StoreUnreachableError(
            url=store.url,
            why="an object that was just written is missing, so this store cannot hold the log of a run.",
            fix="use a store in which a written object can be read immediately.",
        ) from None
    if not is_created or is_replaced or not is_kept:
        raise StoreUnreachableError(
            url=store.url,
            why="a conditional put replaced an existing object, so this store cannot hold the log of a run.",
            fix="use AWS S3, Google Cloud, Azure, another store with conditional puts, or a folder.",
        )
