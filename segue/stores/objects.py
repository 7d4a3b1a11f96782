"""The common part of all stores in a bucket: obstore moves the bytes, and its errors become a store's."""

from __future__ import annotations

import re
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from copy import copy
from datetime import datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self

import obstore
import obstore.exceptions

from segue.clock import SystemClock
from segue.errors import MissingObjectError, StoreError, StoreUnreachableError
from segue.stores.base import (
    WRONG_CLOCK,
    ObjectInfo,
    StoreReadError,
    StoreWriteError,
    check_by_writing,
    checked_key,
    checked_range,
    is_key,
)
from segue.stores.endpoint import CLIENT_TIMEOUT

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Obstore
    from obstore.store import RetryConfig

RETRY: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
_FEW_RETRIES: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}
"""For the check, because a person waits for its answer."""
_BULK_RETRY: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(minutes=4)}
"""obstore repeats a request with the credentials of the first try, which are valid for five minutes."""
_BULK_TIMEOUT = timedelta(minutes=2)
"""For requests with a part of a large object. Eight of them share the connection: 1.2 MB/s are enough for all."""
_PART_BYTES = 16 * 2**20
_PARTS_AT_ONCE = 8
_MOST_PARTS = 9_000
"""S3 and GCS take 10,000, Azure 50,000."""
_CODES = {
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": WRONG_CLOCK,
}
"""Source: the list of error codes in the S3 API."""
_CONFLICT_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pause in seconds after each false answer that an object exists."""


class ObjectStore(ABC):
    """Objects below `bucket/prefix`. A subclass says how its cloud is reached.

    `put_if_absent` is only a single conditional PUT: not every store honours conditional multipart uploads, and
    conditional updates differ between stores.
    """

    scheme: ClassVar[str]
    holder: ClassVar[str] = "bucket"
    """The cloud's own word for the container of the objects."""
    cloud: ClassVar[str]
    """The place of the bucket if no endpoint is given."""
    variables: ClassVar[str]
    """Names of the environment variables that obstore reads."""

    def __init__(self, *, bucket: str, prefix: str, endpoint_url: str | None) -> None:
        self.bucket, self.prefix = bucket, prefix.strip("/")
        self._endpoint_url = endpoint_url
        try:
            self._store = self._opened(RETRY)
        except ValueError:
            why, fix = f"{self.prefix!r} cannot be a prefix.", "use plain folder names between single slashes."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None
        except obstore.exceptions.BaseError:
            # Its message is not passed on, because it may quote a key.
            why, fix = f"a setting for {self.cloud} in the environment is wrong.", f"check {self.variables}."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None

    @cached_property
    def _bulk(self) -> Obstore:
        """The same bucket, with the settings for large objects."""
        return self._opened(_BULK_RETRY, timeout=_BULK_TIMEOUT)

    @abstractmethod
    def _opened(self, retry: RetryConfig, *, timeout: timedelta = CLIENT_TIMEOUT) -> Obstore:
        """The bucket in obstore. Nothing is requested yet.

        Raises:
            ValueError: the prefix is not valid.
            obstore.exceptions.BaseError: a variable in the environment has a wrong value.
        """

    @property
    def url(self) -> str:
        return "/".join(part for part in (f"{self.scheme}://{self.bucket}", self.prefix) if part)

    @property
    def is_remote(self) -> bool:
        return True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        for pause_seconds in _CONFLICT_PAUSES:
            if self._created(key, data):
                return True
            if not self._is_missing(key):
                return False
            # S3 answers 409 to writes that overlap, although it may have taken none of them.
            SystemClock().sleep(pause_seconds)
        why = f"the bucket answered {len(_CONFLICT_PAUSES)} times that the object is there, but it is not"
        raise StoreWriteError(url=self.url, key=key, why=why)

    def _created(self, key: str, data: bytes) -> bool:
        with self._writing(key):
            try:
                obstore.put(self._store, checked_key(key), data, mode="create", use_multipart=False)
            except obstore.exceptions.AlreadyExistsError:
                return False
        return True

    def _is_missing(self, key: str) -> bool:
        try:
            self.size(key)
        except MissingObjectError:
            return True
        except StoreReadError:
            return False  # The code that reads the object says why it cannot be read.
        return False

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        data = memoryview(data).cast("B")
        part_bytes = max(_PART_BYTES, -(-len(data) // _MOST_PARTS))
        has_parts = len(data) > part_bytes
        store = self._bulk if has_parts else self._store
        with self._writing(key, has_parts=has_parts):
            obstore.put(store, checked_key(key), data, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            return bytes(obstore.get(self._store, checked_key(key)).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        start, length = checked_range(start, length)
        if length == 0:  # HTTP has no empty range.
            self.size(key)
            return b""
        store = self._bulk if length > _PART_BYTES else self._store
        try:
            with self._reading(key):
                return bytes(obstore.get_range(store, checked_key(key), start=start, length=length))
        except StoreReadError:
            # A range that starts at the object's end is refused (416); only the size distinguishes that from a failure.
            if start < self.size(key):
                raise
            return b""

    def read_into(self, key: str, start: int, into: memoryview) -> int:
        data = self.get_range(key, start, len(into))
        into[: len(data)] = data
        return len(data)

    def size(self, key: str) -> int:
        with self._reading(key):
            return int(obstore.head(self._store, checked_key(key))["size"])

    def modified_at(self, key: str) -> datetime:
        with self._reading(key):
            return obstore.head(self._store, checked_key(key))["last_modified"]

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        folder = checked_key(prefix.rstrip("/")) if prefix else None
        with self._reading(prefix or "/"):
            found = [item for page in obstore.list(self._store, folder, offset=after) for item in page]
        # Consoles create an empty object for a folder; it is listed under the folder's own name.
        below = f"{folder}/" if folder else ""
        keys = ((item["path"], int(item["size"])) for item in found if item["path"].startswith(below))
        return sorted(ObjectInfo(key, size) for key, size in keys if is_key(key) and key > (after or ""))

    def folders(self) -> list[str]:
        with self._reading("/"):
            prefixes = obstore.list_with_delimiter(self._store)["common_prefixes"]
        names = (prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            try:
                self._delete(key)
            except StoreWriteError:
                self._delete(key)  # On Azure obstore does not repeat a delete that was throttled.

    def _delete(self, key: str) -> None:
        with self._writing(key), suppress(FileNotFoundError):  # obstore's NotFoundError is one of these.
            obstore.delete(self._store, checked_key(key))

    def afresh(self) -> Self:
        # obstore keeps the connections of a client, so a new client has new ones.
        fresh = copy(self)
        fresh._store = self._opened(RETRY)
        vars(fresh).pop("_bulk", None)
        return fresh

    @abstractmethod
    def drop_unfinished(self, prefix: str) -> None: ...

    def _unfinished_below(self, prefix: str) -> str:
        """The prefix in the bucket below which `drop_unfinished` looks."""
        return "/".join(part for part in (self.prefix, f"{checked_key(prefix.rstrip('/'))}/") if part)

    def check(self) -> None:
        error = self._first_write(self._opened(_FEW_RETRIES))
        if error is not None:
            raise self._unreachable(error)
        check_by_writing(self)

    def reach(self) -> None:
        store = self._opened(_FEW_RETRIES)
        try:
            next(iter(obstore.list(store, chunk_size=1)), None)
            error = None
        except (obstore.exceptions.BaseError, FileNotFoundError):
            # A failed listing does not distinguish a missing right from a missing bucket. A write does.
            error = self._first_write(store)
        if error is not None and not isinstance(error, obstore.exceptions.PermissionDeniedError):
            raise self._unreachable(error)

    def _first_write(self, store: Obstore) -> Exception | None:
        """The error of putting a new object, which is removed again; None if there was no error."""
        key = f".segue-check/{uuid.uuid4().hex}"
        try:
            with suppress(obstore.exceptions.AlreadyExistsError):  # It is this object: only its first answer was lost.
                obstore.put(store, key, b"", mode="create", use_multipart=False)
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            return error
        finally:
            with suppress(obstore.exceptions.BaseError, FileNotFoundError):
                obstore.delete(store, key)
        return None

    def _unreachable(self, error: Exception) -> StoreUnreachableError:
        """Why the first request of the check failed."""
        if isinstance(error, FileNotFoundError):
            return self.missing_bucket()
        if isinstance(error, obstore.exceptions.PermissionDeniedError | obstore.exceptions.UnauthenticatedError):
            return self.denied_bucket("and their roles in it")
        return StoreUnreachableError(
            url=self.url,
            why=f"the first write failed ({_cause(error)}).",
            fix=f"check the {self.holder}'s name, the endpoint ({self._endpoint_url or self.cloud}) and the network.",
        )

    def missing_bucket(self) -> StoreUnreachableError:
        why, fix = f"there is no {self.holder} {self.bucket!r}.", "create it, or correct [store] url."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)

    def denied_bucket(self, else_check: str) -> StoreUnreachableError:
        why, fix = f"the credentials give no access to the {self.holder}.", f"check them, {else_check}."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)

    def _is_absent(self, key: str) -> bool:
        """Whether a listing shows that there is no such object.

        S3 and GCS say so by themselves only to clients that may list the whole bucket; to others they deny access.
        """
        if key.endswith("/"):
            return False  # A listing was denied.
        folder = key.rpartition("/")[0] or None
        try:
            pages = obstore.list(self._store, folder, offset=key[:-1])
            following = next((item["path"] for page in pages for item in page), None)
        except (obstore.exceptions.BaseError, FileNotFoundError):
            return False
        return following != key

    def _reading(self, key: str) -> AbstractContextManager[None]:
        return self._translated(key, StoreReadError, missing=MissingObjectError(key=key))

    def _writing(self, key: str, *, has_parts: bool = False) -> AbstractContextManager[None]:
        why = f"there is no such {self.holder}{', or the upload was removed' if has_parts else ''}"
        missing = StoreWriteError(url=self.url, key=key, why=why)
        return self._translated(key, StoreWriteError, missing=missing)

    @contextmanager
    def _translated(
        self, key: str, failure: Callable[..., StoreReadError | StoreWriteError], *, missing: StoreError
    ) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise missing from None
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError) as error:
            if failure is StoreReadError and self._is_absent(key):
                raise missing from None
            # The server's answer can quote the request, so it is not passed on.
            raise failure(
                url=self.url, key=key, why=_by_code(error) or "access denied or credentials expired"
            ) from None
        except obstore.exceptions.BaseError as error:
            raise failure(url=self.url, key=key, why=_by_code(error) or _cause(error)) from None


def _by_code(error: Exception) -> str | None:
    """The problem, by the code in the server's answer; None if the code is not known here."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return _CODES.get(found[1]) if found is not None else None


def _cause(error: Exception) -> str:
    """The first line of an error's cause; the server's answer and its debug form, which follow, are left out."""
    return str(error).split("\n", 1)[0].split(": <", 1)[0]
