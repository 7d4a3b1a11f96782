"""The contract every store keeps. `put_if_absent` is the one primitive the run's log rests on."""

from __future__ import annotations

import re
import uuid
from typing import NamedTuple, Protocol

from segue.errors import BadKeyError, MissingObjectError, StoreError, StoreUnreachableError


class ObjectInfo(NamedTuple):
    """One stored object."""

    key: str
    size_bytes: int


class StoreWriteError(StoreError):
    """The bytes did not reach the store; what was there before is untouched."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(f"store {url}: could not write {key}: {why}. Free space or fix access; the save is retried.")


class StoreReadError(StoreError):
    """The store answered a read with something other than the bytes or their absence."""

    def __init__(self, *, url: str, key: str, why: str) -> None:
        self.url, self.key, self.why = url, key, why
        super().__init__(f"store {url}: could not read {key}: {why}. Check the store's health and access.")


class Store(Protocol):
    """Bytes under plain relative keys. Safe to use from several threads."""

    @property
    def url(self) -> str:
        """Where this is, for messages; never holds a secret."""
        ...

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write a small object unless one is there; True when this call created it.

        Atomic and durable: of any number of callers, on any machine, at most one is told True, and from
        then on every reader sees exactly its bytes, also after a crash. A caller whose answer got lost may be
        told False about its own write: compare the bytes.

        Raises:
            StoreWriteError: nothing is known to have been written. It may have been, when only the answer was lost.
        """
        ...

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        """Write or replace an object as a whole. With `durable` it survives a power cut once this returns.

        Raises:
            StoreWriteError: readers still see what was there before.
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
        """Fill `into` with the bytes from `start`; returns how many there were. Large ones in few copies.

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

    def list_objects(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix that ends with '/', sorted by key; the empty prefix lists all.

        Strangers' objects whose names are no keys of a store are passed over.

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
        """Remove objects; those that are not there are passed over.

        Raises:
            StoreWriteError: this one and those after it may still be there.
        """
        ...

    def drop_unfinished(self, prefix: str) -> None:
        """Remove what writers that died left behind below a prefix that ends with '/': bytes no reader can see.

        A writer that is alive after all fails with a StoreWriteError and may try again.

        Raises:
            StoreReadError, StoreWriteError: some of it may still be there.
        """
        ...

    def check(self) -> None:
        """Prove that this store can be written and keeps `put_if_absent`'s promise.

        Raises:
            StoreUnreachableError: with the reason and the fix.
        """
        ...


STAGED = ".staged-"
"""How the names of files being written begin in a folder. No key may, or a reader would not find its object."""

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
    return all(_PART.fullmatch(part) and part not in {".", ".."} and not part.startswith(STAGED) for part in parts)


def checked_range(start: int, length: int) -> tuple[int, int]:
    """Both, when neither is negative: stores differ in what they make of those."""
    if start < 0 or length < 0:
        raise ValueError(f"start {start} and length {length} must not be negative")
    return start, length


def check_by_writing(store: Store) -> None:
    """The part of `check` that every store shares: two puts to one new key, of which one must win."""
    key = f".segue-check/{uuid.uuid4().hex}"
    try:
        first, second = store.put_if_absent(key, b"first"), store.put_if_absent(key, b"second")
        found = store.get(key)
        store.delete([key])
    except StoreWriteError as error:
        fix = "Give a place you may write to, or ask for write access."
        raise StoreUnreachableError(url=store.url, why=f"cannot be written ({error.why}).", fix=fix) from None
    except StoreReadError as error:
        fix = "Ask for read access to what you may write."
        raise StoreUnreachableError(url=store.url, why=f"cannot be read ({error.why}).", fix=fix) from None
    except MissingObjectError:
        raise StoreUnreachableError(
            url=store.url,
            why="does not hold an object that it has just taken.",
            fix="The run's log cannot be kept there; use a store that reads back what was written.",
        ) from None
    if (first, second, found) != (True, False, b"first"):
        raise StoreUnreachableError(
            url=store.url,
            why="overwrites an object when told to write only if absent (If-None-Match: * is ignored).",
            fix="The run's log cannot be kept there; use AWS S3, a store with conditional puts, or a folder.",
        )
