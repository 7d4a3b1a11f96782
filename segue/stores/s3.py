"""A store in an S3 bucket: obstore moves the bytes, boto3 finds the credentials."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from segue.errors import MissingExtraError, MissingObjectError, StoreError, StoreUnreachableError
from segue.stores.base import (
    ObjectInfo,
    StoreReadError,
    StoreWriteError,
    check_by_writing,
    checked_key,
    checked_range,
    is_key,
)

try:
    import boto3
    import botocore.config
    import botocore.exceptions
    import obstore
    import obstore.exceptions
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store as ObstoreS3

    from segue.stores.botocore_random import use_own_random_stream
except ImportError:
    raise MissingExtraError(extra="s3", needed_for="a store on s3://") from None

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Config

_DEFAULT_REGION = "us-east-1"
_RETRY: RetryConfig = {"max_retries": 8, "retry_timeout": timedelta(seconds=60)}
_CLIENT_TIMEOUT = timedelta(seconds=60)
_CONNECT_TIMEOUT = timedelta(seconds=5)
_PART_BYTES = 16 * 2**20
_PARTS_AT_ONCE = 8
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_FORBIDDEN = 403
"""S3's answer to a question about the whole bucket, where a policy permits only what is below a prefix."""
_MOST_PARTS = 9_000
"""S3 takes 10,000."""


def is_payload_exposed(endpoint_url: str | None) -> bool:
    """Whether someone on the network path could change the bytes: each request's signature then covers them too.

    Over TLS only the request itself is signed, as by the AWS SDKs, because hashing a checkpoint once more costs more
    than sending it. Loopback has no network path.
    """
    if endpoint_url is None:
        return False
    parts = urlsplit(endpoint_url)
    return parts.scheme == "http" and parts.hostname not in _LOOPBACK


class S3Store:
    """Objects below `bucket/prefix`.

    `put_if_absent` is a single PUT with `If-None-Match: *` and nothing else: not every store honours conditional
    multipart uploads, and `If-Match` differs between stores.
    """

    def __init__(
        self, *, bucket: str, prefix: str = "", endpoint_url: str | None = None, region: str | None = None
    ) -> None:
        use_own_random_stream()
        session = boto3.Session(region_name=region)
        self.bucket, self.prefix = bucket, prefix.strip("/")
        self._endpoint_url = endpoint_url
        self._session = session
        try:
            provider = Boto3CredentialProvider(session)
        except ValueError:
            raise StoreUnreachableError(
                url=self.url,
                why="boto3 finds no AWS credentials.",
                fix="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the machine's role.",
            ) from None
        config: S3Config = {
            "region": session.region_name or _DEFAULT_REGION,
            "unsigned_payload": not is_payload_exposed(endpoint_url),
            # One request for each object: some servers ask for the right to delete in the whole bucket otherwise.
            "disable_bulk_delete": True,
        }
        client: ClientConfig = {"timeout": _CLIENT_TIMEOUT, "connect_timeout": _CONNECT_TIMEOUT}
        if endpoint_url is not None:
            config["endpoint"] = endpoint_url
            config["virtual_hosted_style_request"] = False
            client["allow_http"] = urlsplit(endpoint_url).scheme == "http"
        try:
            self._store = ObstoreS3(
                bucket,
                prefix=self.prefix or None,
                config=config,
                client_options=client,
                retry_config=_RETRY,
                credential_provider=provider,
            )
        except ValueError:
            why, fix = f"{self.prefix!r} cannot be a prefix.", "use plain folder names between single slashes."
            raise StoreUnreachableError(url=self.url, why=why, fix=fix) from None

    @property
    def url(self) -> str:
        return "/".join(part for part in (f"s3://{self.bucket}", self.prefix) if part)

    @property
    def is_remote(self) -> bool:
        return True

    def put_if_absent(self, key: str, data: bytes) -> bool:
        try:
            with self._writing(key):
                obstore.put(self._store, checked_key(key), data, mode="create", use_multipart=False)
        except obstore.exceptions.AlreadyExistsError:
            return False
        return True

    def put(self, key: str, data: bytes | memoryview, *, durable: bool = True) -> None:
        data = memoryview(data).cast("B")
        part_bytes = max(_PART_BYTES, -(-len(data) // _MOST_PARTS))
        with self._writing(key):
            obstore.put(self._store, checked_key(key), data, chunk_size=part_bytes, max_concurrency=_PARTS_AT_ONCE)

    def get(self, key: str) -> bytes:
        with self._reading(key):
            return bytes(obstore.get(self._store, checked_key(key)).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        start, length = checked_range(start, length)
        if length == 0:  # HTTP has no empty range.
            self.size(key)
            return b""
        try:
            with self._reading(key):
                return bytes(obstore.get_range(self._store, checked_key(key), start=start, length=length))
        except StoreReadError:
            # A range that starts at the object's end is refused (416); only the size tells that apart from a failure.
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

    def list_objects(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        folder = checked_key(prefix.rstrip("/")) if prefix else None
        with self._reading(prefix or "/"):
            found = [item for page in obstore.list(self._store, folder, offset=after) for item in page]
        # Consoles create an empty object for a folder; it is listed under the folder's own name.
        below = f"{folder}/" if folder else ""
        keys = ((item["path"], int(item["size"])) for item in found if item["path"].startswith(below))
        return sorted(ObjectInfo(key, size) for key, size in keys if is_key(key))

    def folders(self) -> list[str]:
        with self._reading("/"):
            prefixes = obstore.list_with_delimiter(self._store)["common_prefixes"]
        names = (prefix.rstrip("/").rsplit("/", 1)[-1] for prefix in prefixes)
        return sorted(name for name in names if not name.startswith("."))

    def delete(self, keys: list[str]) -> None:
        for key in keys:
            with self._writing(key), suppress(FileNotFoundError):  # obstore's NotFoundError is one; gone is gone.
                obstore.delete(self._store, checked_key(key))

    def drop_unfinished(self, prefix: str) -> None:
        below = "/".join(part for part in (self.prefix, f"{checked_key(prefix.rstrip('/'))}/") if part)
        try:
            client = self._client()
            for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=below):
                for upload in page.get("Uploads", ()):
                    client.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])
        except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
            raise StoreReadError(url=self.url, key=prefix, why=type(error).__name__) from None

    def check(self) -> None:
        refusal: StoreUnreachableError | None = None
        try:
            self._client().head_bucket(Bucket=self.bucket)
        except botocore.exceptions.ClientError as error:
            refusal = self._unreachable(error)
            if error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") != _FORBIDDEN:
                raise refusal from None
        except (ValueError, botocore.exceptions.ParamValidationError):
            raise StoreUnreachableError(
                url=self.url,
                why=f"{self.bucket!r} at {self._endpoint_url or 'AWS'} is not the address of a bucket.",
                fix="write the store as s3://bucket/prefix and the endpoint with http:// or https://.",
            ) from None
        except botocore.exceptions.BotoCoreError as error:
            raise StoreUnreachableError(
                url=self.url,
                why=f"no answer ({type(error).__name__}).",
                fix=f"check the endpoint ({self._endpoint_url or 'AWS'}), the network and the region.",
            ) from None
        try:
            check_by_writing(self)
        except StoreUnreachableError as error:
            if refusal is None:
                raise
            why = f"{error.why.removesuffix('.')}, and {refusal.why}"
            raise StoreUnreachableError(url=self.url, why=why, fix=refusal.fix or "") from None

    def _client(self) -> Any:
        config = botocore.config.Config(
            connect_timeout=_CONNECT_TIMEOUT.total_seconds(), read_timeout=10, retries={"total_max_attempts": 2}
        )
        return self._session.client(
            "s3",
            endpoint_url=self._endpoint_url,
            region_name=self._session.region_name or _DEFAULT_REGION,
            config=config,
        )

    def _unreachable(self, error: Any) -> StoreUnreachableError:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        if status == 404:
            why, fix = f"there is no bucket {self.bucket!r}.", "create it, or correct [store] url."
        elif status in (401, 403):
            why, fix = (
                "the credentials give no access to the bucket.",
                "check them, the bucket's policy and the region.",
            )
        else:
            why, fix = f"the bucket answered {status}.", "check the endpoint and the region."
        return StoreUnreachableError(url=self.url, why=why, fix=fix)

    def _is_absent(self, key: str) -> bool:
        """Whether a listing shows that there is no such object.

        S3 says so by itself only to those who may list the whole bucket; to others it denies access.
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

    def _writing(self, key: str) -> AbstractContextManager[None]:
        missing = StoreWriteError(url=self.url, key=key, why="there is no such bucket")
        return self._translated(key, StoreWriteError, missing=missing)

    @contextmanager
    def _translated(
        self, key: str, failure: Callable[..., StoreReadError | StoreWriteError], *, missing: StoreError
    ) -> Iterator[None]:
        try:
            yield
        except obstore.exceptions.AlreadyExistsError:
            raise
        except FileNotFoundError:
            raise missing from None
        except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError):
            if failure is StoreReadError and self._is_absent(key):
                raise missing from None
            # The server's answer can quote the request, so it is not passed on.
            raise failure(url=self.url, key=key, why="access denied or credentials expired") from None
        except obstore.exceptions.BaseError as error:
            # One line of the cause; after it come the server's answer and the debug form of the same.
            raise failure(url=self.url, key=key, why=str(error).split("\n", 1)[0].split(": <", 1)[0]) from None


def from_url(url: str, *, endpoint_url: str | None, region: str | None) -> S3Store:
    """The store that `s3://bucket/prefix` names.

    Raises:
        StoreUnreachableError: the URL is more or less than bucket and prefix, or no credentials are found.
    """
    parts = urlsplit(url)
    fix = "write it as s3://bucket/prefix."
    if not parts.netloc:
        raise StoreUnreachableError(url=url, why="the URL has no bucket.", fix=fix)
    if parts.query or parts.fragment:
        raise StoreUnreachableError(url=url, why="the URL has a '?' or '#' after the prefix.", fix=fix)
    return S3Store(bucket=parts.netloc, prefix=parts.path, endpoint_url=endpoint_url, region=region)
