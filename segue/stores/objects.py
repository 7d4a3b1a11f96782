"""The base class of all bucket stores, which converts the errors of the library obstore to store errors."""

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
from segue.stores.endpoint import CA_AS_SERVER, CLIENT_TIMEOUT, certificate_fault

if TYPE_CHECKING:
    from obstore.store import ObjectStore as Obstore
    from obstore.store import RetryConfig

RETRY: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
FEW_RETRIES: RetryConfig = {"max_retries": 1, "retry_timeout": timedelta(seconds=10)}
"""Retries of `check` and `reach`. There are few retries, because a person waits for the answer."""
_BULK_RETRY: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(minutes=4)}
"""Retries of large requests.

Retries end within five minutes. After this time, the credentials expire, and obstore does not renew them for a retry.
"""
_BULK_TIMEOUT = timedelta(minutes=2)
"""Timeout of a request with a part of a large object.

Eight requests share the connection, so 1.2 MB/s in total suffices.
"""
_PART_BYTES = 16 * 2**20
_PARTS_AT_ONCE = 8
_MOST_PARTS = 9_000
"""Maximum number of parts of an upload. S3 and GCS permit 10,000 parts, and Azure permits 50,000."""
_CODES = {
    "ExpiredToken": "the session token has expired",
    "InvalidToken": "the session token is not valid",
    "RequestTimeTooSkewed": WRONG_CLOCK,
}
"""Maps error codes of the S3 API to reasons in error messages."""
_CONFLICT_PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses in seconds between repeated requests, if the bucket wrongly answers that the object already exists."""


class ObjectStore(ABC):
    """Objects below `bucket/prefix`. A subclass connects to its cloud.

    `put_if_absent` uses only a single conditional PUT, because some stores do not support conditional multipart
    uploads, and conditional updates differ between stores.
    """

    scheme: ClassVar[str]
    holder: ClassVar[str] = "bucket"
    """The word that the cloud uses for a bucket, for messages."""
    cloud: ClassVar[str]
    """The name of the cloud, for messages."""
    variables: ClassVar[str]
    """Names of the environment variables that obstore reads, as a pattern that messages show."""
    ca_variable: ClassVar[str] = "SSL_CERT_FILE"
    """Names of the environment variables with the file of trusted CAs, for messages."""

    def __init__(self, *, bucket: str, prefix: str, endpoint_url: str | None) -> None:
        self.bucket, self.prefix = bucket, prefix.strip("/")
        self._endpoint_url = endpoint_url
        try:
            self._store = self._opened(RETRY)
        except ValueError:
            why, fix = f"{self.prefix!r} cannot be a prefix.", "use plain folder names between single slashes."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None
        except obstore.exceptions.BaseError:
            # The message of the error is not used, because it may contain a secret key.
            why, fix = f"a setting for {self.cloud} in the environment is wrong.", f"check {self.variables}."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None

    @cached_property
    def _bulk(self) -> Obstore:
        """The bucket, opened with the timeouts for large objects."""
        return self._opened(_BULK_RETRY, timeout=_BULK_TIMEOUT)

    @abstractmethod
    def _opened(self, retry: RetryConfig, *, timeout: timedelta = CLIENT_TIMEOUT) -> Obstore:
        """Return the bucket as an obstore object, without sending a request.

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
            # S3 answers 409 to overlapping writes, and then it may have accepted none of them.
            SystemClock().sleep(pause_seconds)
        why = f"the bucket answered {len(_CONFLICT_PAUSES)} times that the object exists, but it does not exist"
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
            return False  # A later read of the object raises this error with its reason.
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
        if length == 0:  # HTTP has no empty ranges.
            self.size(key)
            return b""
        store = self._bulk if length > _PART_BYTES else self._store
        try:
            with self._reading(key):
                return bytes(obstore.get_range(store, checked_key(key), start=start, length=length))
        except StoreReadError:
            # A range that starts at the end of the object is refused (416). Only the size shows whether this happened.
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
        # Cloud consoles create an empty object for a folder; it has the name of the folder itself.
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
                self._delete(key)  # On Azure, obstore does not repeat a throttled delete.

    def _delete(self, key: str) -> None:
        with self._writing(key), suppress(FileNotFoundError):  # obstore's NotFoundError is a FileNotFoundError.
            obstore.delete(self._store, checked_key(key))

    def afresh(self) -> Self:
        # obstore keeps connections per client, so a new client has new connections.
        fresh = copy(self)
        fresh._store = self._opened(RETRY)
        vars(fresh).pop("_bulk", None)
        return fresh

    @abstractmethod
    def drop_unfinished(self, prefix: str) -> None: ...

    def _unfinished_below(self, prefix: str) -> str:
        """Return the prefix in the bucket for `drop_unfinished`, including the prefix of the store."""
        return "/".join(part for part in (self.prefix, f"{checked_key(prefix.rstrip('/'))}/") if part)

    def check(self) -> None:
        error = self._first_write(self._opened(FEW_RETRIES))
        if error is not None:
            raise self._unreachable(error)
        check_by_writing(self)

    def reach(self) -> None:
        store = self._opened(FEW_RETRIES)
        try:
            next(iter(obstore.list(store, chunk_size=1)), None)
            error = None
        except (obstore.exceptions.BaseError, FileNotFoundError):
            # A failed listing does not distinguish a missing permission from a missing bucket, but a write does.
            error = self._first_write(store)
        if error is not None and not isinstance(error, obstore.exceptions.PermissionDeniedError):
            raise self._unreachable(error)

    def _first_write(self, store: Obstore) -> Exception | None:
        """Write and delete a test object. If the write failed, return its error."""
        key = f".segue-check/{uuid.uuid4().hex}"
        try:
            # If the object exists, it is the test object itself: only the first answer was lost.
            with suppress(obstore.exceptions.AlreadyExistsError):
                obstore.put(store, key, b"", mode="create", use_multipart=False)
        except (obstore.exceptions.BaseError, FileNotFoundError) as error:
            return error
        finally:
            with suppress(obstore.exceptions.BaseError, FileNotFoundError):
                obstore.delete(store, key)
        return None

    def _unreachable(self, error: Exception) -> StoreUnreachableError:
        """Return the error to raise after the first request of a check failed."""
        if isinstance(error, FileNotFoundError):
            return self.missing_bucket()
        if isinstance(error, obstore.exceptions.PermissionDeniedError | obstore.exceptions.UnauthenticatedError):
            return self.denied_bucket(f"and their roles in the {self.holder}")
        if (fault := certificate_fault(str(error))) is not None:
            return self.untrusted(fault)
        return StoreUnreachableError(
            url=self.url,
            why=f"the first write failed ({_cause(error)}).",
            fix=f"check the {self.holder}'s name, the endpoint ({self._endpoint_url or self.cloud}) and the network.",
        )

    def missing_bucket(self) -> StoreUnreachableError:
        why, fix = f"there is no {self.holder} {self.bucket!r}.", f"create the {self.holder}, or correct [store] url."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)

    def untrusted(self, fault: str) -> StoreUnreachableError:
        """Return the error for a server whose certificate was refused with this reason."""
        fix = (
            f"if a private CA signed the certificate, set {self.ca_variable} to a PEM file with the public CAs and "
            "this CA, on every machine (docs/object-stores.md, Endpoints). Otherwise check the host name of the "
            "endpoint, and until when the certificate is valid."
        )
        if fault == CA_AS_SERVER:
            fix = "give the server a certificate with basicConstraints=CA:FALSE; it may be self-signed."
        where = self._endpoint_url or self.cloud
        return StoreUnreachableError(url=self.url, why=f"the certificate of {where} is not trusted ({fault}).", fix=fix)

    def denied_bucket(self, else_check: str) -> StoreUnreachableError:
        why, fix = f"the credentials give no access to the {self.holder}.", f"check the credentials, {else_check}."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)

    def _is_absent(self, key: str) -> bool:
        """Whether a listing shows that the object does not exist.

        If a client may not list the whole bucket, S3 and GCS answer "access denied" for a missing object.
        """
        if key.endswith("/"):
            return False  # The denied request was itself a listing.
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
            # The answer of the server is not used, because it can contain parts of the request.
            raise failure(
                url=self.url, key=key, why=_by_code(error) or "access denied or credentials expired"
            ) from None
        except obstore.exceptions.BaseError as error:
            raise failure(url=self.url, key=key, why=_by_code(error) or _cause(error)) from None


def _by_code(error: Exception) -> str | None:
    """Return the reason for the error code in the server's answer. If the code is unknown, return None."""
    found = re.search(r"<Code>(\w+)</Code>", str(error))
    return _CODES.get(found[1]) if found is not None else None


def _cause(error: Exception) -> str:
    """Return the first line of an error message, without the server's answer."""
    if (fault := certificate_fault(str(error))) is not None:
        return f"the server's certificate is not trusted: {fault}"
    return str(error).split("\n", 1)[0].split(": <", 1)[0]
