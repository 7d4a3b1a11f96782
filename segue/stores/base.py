"""The interface of all stores. The only special operation that a run's log needs is `put_if_absent`."""

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
    """The bytes were not written. The earlier content of the store is unchanged."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(
            f"store {url}: could not write {key}: {why}.", fix="free space or restore access; the write is retried."
        )


WRONG_CLOCK = "the clock of this machine is wrong by more than the server permits"
"""The reason in an error message if the server reports that this machine's clock is wrong."""


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
    """A store of objects, each with a relative path as its key and bytes as its content.

    Several threads may use a store at the same time.
    """

    @property
    def url(self) -> str:
        """The address of this store, for messages. It never contains a secret."""
        ...

    @property
    def is_remote(self) -> bool:
        """Whether each request to this store takes a network round trip and costs money.

        If the store is remote, callers must send few requests, and send them in parallel.
        """
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write a small object if the key does not exist yet. Return True if this call created the object.

        The write is atomic and durable: of all callers on all machines, at most one gets True. After a call has
        returned True, every reader sees exactly the bytes of this call, even after a crash. If the store's answer was
        lost, a caller may get False for its own write. To find out who wrote the object, compare the bytes.

        Raises:
            StoreWriteError: it is unknown whether the object was written, because the answer may have been lost.
        """
        ...

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        """Write or replace a whole object. With `durable`, the object survives a power cut after this call returns.

        Raises:
            StoreWriteError: the write failed, and readers still see the earlier content.
        """
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from position `start`.

        If the object ends earlier, the result has fewer bytes. After the end, the result is empty.

        Raises:
            ValueError: `start` or `length` is negative.
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        """Fill `into` with the bytes from position `start`, and return the number of bytes.

        For large objects, the method makes few copies in memory.

        If `into` begins at a memory page (see `stores.direct_io.page_buffer`), the read bypasses the operating system's
        page cache.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read. The content of `into` is then undefined.
        """
        ...

    def size(self, key: str) -> int:
        """Return the size of the object in bytes.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """Return all objects whose keys begin with a prefix that ends with '/', sorted by key.

        If the prefix is empty, the result contains all objects. With `after`, the result contains only keys greater
        than `after`. On all stores except Azure, `after` also saves requests. The result does not contain objects of
        other programs whose names cannot be keys.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def folders(self) -> list[str]:
        """Return the sorted names of the top-level folders. Each name is a run id.

        Raises:
            StoreReadError: the store could not be read.
        """
        ...

    def delete(self, keys: list[str]) -> None:
        """Delete the objects that exist.

        Raises:
            StoreWriteError: the object that the error names and all later objects in `keys` may still exist.
        """
        ...

    def drop_unfinished(self, prefix: str) -> None:
        """Remove the bytes of unfinished writes, which readers never see, below a prefix that ends with '/'.

        If the writer of an unfinished object is still alive, it gets a StoreWriteError and may retry. On Azure, the
        method removes nothing: no program can remove uncommitted data, and the data expires after a week.

        Raises:
            StoreReadError, StoreWriteError: some bytes of unfinished writes may still exist.
        """
        ...

    def check(self) -> None:
        """Test that this store can be written and that `put_if_absent` works as described.

        Raises:
            StoreUnreachableError: the test failed. The error contains the reason and the fix.
        """
        ...


@runtime_checkable
class Examinable(Protocol):
    """A store with additional methods that examine the store."""

    def reach(self) -> None:
        """Test within seconds whether the store exists, even without access rights.

        Raises:
            StoreUnreachableError: the test failed. The error contains the reason and the fix.
        """
        ...

    def modified_at(self, key: str) -> datetime:
        """Return the time at which an object was written, by the clock of the store.

        Some stores give the time in whole seconds only.

        Raises:
            MissingObjectError: there is no such object.
            StoreReadError: the store could not be read.
        """
        ...


@runtime_checkable
class HasRules(Protocol):
    """A store that can show whether a rule of the bucket removes its objects. Some stores cannot show their rules."""

    def removed_by(self) -> str | None:
        """Return a text about the rule that removes objects automatically. If there is no such rule, return None.

        Raises:
            StoreReadError: the rules could not be read.
        """
        ...


@runtime_checkable
class Refreshable(Protocol):
    """A store with a second way to read. If the first way gives damaged bytes, the second way gives the bytes as
    stored."""

    def afresh(self) -> Store:
        """Return the same store for a second read of an object. Its reads bypass the page cache or use new
        connections."""
        ...


def ways_to(store: Store, *, reads: int) -> Iterator[Store]:
    """Yield a store for each of several reads of one object. The first store is `store` itself. The others bypass its
    caches, if they can."""
    yield store
    for _ in range(reads - 1):
        yield store.afresh() if isinstance(store, Refreshable) else store


MARKER = ".segue-store"
"""Name of the file that marks a folder as a store.

The file contains the store's uuid. No object can have this name.
"""

STAGED = ".staged-"
"""Prefix of the names of unfinished files. No part of a key may begin with this prefix."""

_MOST_KEY_BYTES, _MOST_PART_BYTES = 1024, 255
"""Maximum length of a key and of one part of a key in bytes, as buckets and file systems permit."""
_PART = re.compile(r"[\w=.,@+-][\w=.,@+ -]*")


def checked_key(key: str) -> str:
    """Return the key, if it is a plain relative path.

    Other programs may write to the storage of manifests, so segue does not trust the keys in a manifest.

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
    """Return both numbers, if neither is negative.

    Negative numbers are refused, because stores treat them differently.
    """
    if start < 0 or length < 0:
        raise ValueError(f"start {start} and length {length} must not be negative")
    return start, length


def put_new(store: Store, key: str, data: bytes) -> bool:
    """Write an object by `put_if_absent`, and return whether this call created the object.

    If the store's answer was lost, the function compares the stored bytes with `data`. This comparison is correct only
    if no other writer writes the same bytes to this key.

    Raises:
        StoreWriteError, StoreReadError, MissingObjectError: it is not known whether the object was created.
    """
    return store.put_if_absent(key, data) or store.get(key) == data


def check_by_writing(store: Store) -> None:
    """Test that exactly one of two `put_if_absent` calls with one new key succeeds. Then delete the test object."""
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
