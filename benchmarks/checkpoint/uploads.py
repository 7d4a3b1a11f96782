"""Methods to upload a state to S3, and the bucket for these uploads."""

from __future__ import annotations

import importlib
import io
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast
from urllib.parse import urlsplit

import torch

from benchmarks.checkpoint.savers import OURS, State

BOTO3_DEFAULT = "boto3_default"
_PART_BYTES = 64 * 1024 * 1024
_MADE_UP = "segue-bench"
_REGION = "us-east-1"

UPLOADERS = {
    OURS: "benchmarks.checkpoint.ours:OurUploader",
    BOTO3_DEFAULT: "benchmarks.checkpoint.uploads:Boto3Default",
    "boto3_64mb_x4": "benchmarks.checkpoint.uploads:Boto3Parts",
    "obstore_signed": "benchmarks.checkpoint.uploads:ObstoreSigned",
    "obstore_unsigned": "benchmarks.checkpoint.uploads:ObstoreUnsigned",
}
"""The path of each uploader's class, by the uploader's name in the report. Each uploader is made without arguments, in
a separate process."""


@dataclass(frozen=True)
class Bucket:
    """The destination of uploads."""

    endpoint_url: str | None
    """URL of the S3 endpoint; None: AWS itself."""
    name: str
    is_null: bool
    """Whether the destination is segue's null server, which accepts any credentials and keeps nothing."""


class Uploader(Protocol):
    """One method to upload a state's bytes. Only `wait` may be called from another thread."""

    note: ClassVar[str]
    """Notes for readers of the figures. The text may be empty."""

    def prepare(self, state: State, bucket: Bucket) -> None:
        """Prepare once: connect, and lay out the bytes. The time is not measured. boto3 can find the credentials."""
        ...

    def start(self, key: str) -> None:
        """Begin to upload the state as the object(s) at `key` or below `key/`. The call blocks only for the stall."""
        ...

    def wait(self) -> None:
        """Block until the store has acknowledged the last upload. The call sleeps, and does not hold the interpreter
        lock."""
        ...

    def close(self) -> None:
        """End helpers and connections."""
        ...


class ThreadUploader:
    """The common part of the peers: the bytes as one block, and one thread that uploads the block."""

    note: ClassVar[str] = ""

    def prepare(self, state: State, bucket: Bucket) -> None:
        self.bucket = bucket
        self.payload = torch.cat([tensor.view(-1) for tensor in state.values()]).view(torch.uint8).numpy().tobytes()
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._uploading: Future[None] | None = None
        self.connect()

    def connect(self) -> None:
        """Make the client."""
        raise NotImplementedError

    def upload(self, key: str) -> None:
        """Upload the payload; blocks until it is stored."""
        raise NotImplementedError

    def start(self, key: str) -> None:
        self._uploading = self._thread.submit(self.upload, key)

    def wait(self) -> None:
        if self._uploading is not None:
            self._uploading.result()

    def close(self) -> None:
        self._thread.shutdown()


class Boto3Default(ThreadUploader):
    """`upload_fileobj` with its defaults: 8 MB parts, ten threads."""

    note = "8 MB parts, 10 threads."
    _options: ClassVar[dict[str, int]] = {}

    def connect(self) -> None:
        from boto3.s3.transfer import TransferConfig

        self._client = boto3_client(self.bucket)
        self._config = TransferConfig(**self._options)

    def upload(self, key: str) -> None:
        self._client.upload_fileobj(io.BytesIO(self.payload), self.bucket.name, key, Config=self._config)


class Boto3Parts(Boto3Default):
    """boto3 with part size and threads for large files."""

    note = "64 MB parts, 4 threads."
    _options: ClassVar[dict[str, int]] = {
        "multipart_threshold": _PART_BYTES,
        "multipart_chunksize": _PART_BYTES,
        "max_concurrency": 4,
    }


class ObstoreSigned(ThreadUploader):
    """obstore with its defaults: the payload is hashed for the signature."""

    note = "5 MB parts, 12 at a time; the payload is signed."
    _is_payload_signed: ClassVar[bool] = True

    def connect(self) -> None:
        self._store = obstore_store(self.bucket, is_payload_signed=self._is_payload_signed)

    def upload(self, key: str) -> None:
        import obstore

        obstore.put(self._store, key, self.payload)


class ObstoreUnsigned(ObstoreSigned):
    """obstore with a signature of the request but not of the payload, which is safe only over HTTPS or loopback."""

    note = "5 MB parts, 12 at a time; the request is signed, the payload is not."
    _is_payload_signed = False


def make_uploader(name: str) -> Uploader:
    """The uploader of this name in `UPLOADERS`.

    Raises:
        ImportError: the uploader's module, or a module that it needs, is not installed.
    """
    module, _, cls = UPLOADERS[name].partition(":")
    return cast("Uploader", getattr(importlib.import_module(module), cls)())


def use_keys_of(bucket: Bucket) -> None:
    """For the null server, set made-up credentials that every client of this process finds."""
    if bucket.is_null:
        os.environ.pop("AWS_PROFILE", None)
        os.environ.pop("AWS_SESSION_TOKEN", None)
        os.environ |= {"AWS_ACCESS_KEY_ID": _MADE_UP, "AWS_SECRET_ACCESS_KEY": _MADE_UP}


def boto3_client(bucket: Bucket) -> Any:
    """A client with the credentials that boto3 finds, or made-up ones for the null server."""
    import boto3

    keys = {"aws_access_key_id": _MADE_UP, "aws_secret_access_key": _MADE_UP} if bucket.is_null else {}
    session = boto3.Session(**keys)
    return session.client("s3", endpoint_url=bucket.endpoint_url, region_name=session.region_name or _REGION)


def obstore_store(bucket: Bucket, *, is_payload_signed: bool) -> Any:
    """An obstore store of the whole bucket, with the credentials that boto3 finds."""
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    session = boto3.Session()
    endpoint_url = bucket.endpoint_url
    where: dict[str, Any] = {"endpoint": endpoint_url, "virtual_hosted_style_request": False} if endpoint_url else {}
    return S3Store(
        bucket.name,
        region=session.region_name or _REGION,
        unsigned_payload=not is_payload_signed,
        client_options={"allow_http": urlsplit(endpoint_url or "").scheme == "http"},
        credential_provider=Boto3CredentialProvider(session),
        **where,
    )


@contextmanager
def made_bucket(*, endpoint_url: str | None, is_null: bool) -> Iterator[Bucket]:
    """A bucket for this run. At the end, the bucket, its objects and its incomplete uploads are deleted."""
    bucket = Bucket(endpoint_url=endpoint_url, name=f"segue-bench-{uuid.uuid4().hex[:12]}", is_null=is_null)
    client = boto3_client(bucket)
    client.create_bucket(Bucket=bucket.name)
    try:
        yield bucket
    finally:
        empty(bucket, client)
        client.delete_bucket(Bucket=bucket.name)
        client.close()


def empty(bucket: Bucket, client: Any) -> None:
    """Delete all objects and all incomplete uploads."""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=bucket.name):
        for upload in page.get("Uploads", ()):
            client.abort_multipart_upload(Bucket=bucket.name, Key=upload["Key"], UploadId=upload["UploadId"])
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket.name):
        for found in page.get("Contents", ()):
            client.delete_object(Bucket=bucket.name, Key=found["Key"])
