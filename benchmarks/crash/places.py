"""The stores in which runs are killed: a folder, and S3 on moto's server or at a given endpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

from benchmarks.common.child import child_environment
from benchmarks.crash.wire import PutTrap, Wire
from segue.runlog import keys
from segue.spec import StoreSpec
from segue.stores import LocalStore, Store, open_store
from segue.stores.base import STAGED

LOCAL, S3 = "local", "s3"
_REGION = "us-east-1"
_MADE_UP = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "testtest",
    "AWS_DEFAULT_REGION": _REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
_START_MOTO = "from benchmarks.crash.places import serve_moto; serve_moto()"


class Trap(Protocol):
    """Holds a writer process in the middle of a put."""

    def has_caught(self) -> bool:
        """Whether the trap holds a writer now. The caller must poll this method, because some traps check only in the
        call."""
        ...

    def release(self, *, is_late: bool) -> None:
        """Release the writer after its trainer was killed. If `is_late` is True, bytes that are on the way may still
        arrive."""
        ...


class Place(Protocol):
    """One store for many runs."""

    @property
    def name(self) -> str: ...

    @property
    def kind(self) -> str:
        """Description of the store for reports."""
        ...

    @property
    def pause_seconds(self) -> float:
        """Pause in each training step, so that a commit in this store does not take many steps."""
        ...

    def store(self) -> Store:
        """The store for the benchmark's main process."""
        ...

    def spec_for_trainer(self) -> StoreSpec:
        """The same store for trainers, whose requests can be trapped."""
        ...

    def trap(self, *, run_id: str, attempt_id: str, writer_pid: int) -> Trap:
        """Set a trap for a put of a shard of this attempt."""
        ...

    def unfinished(self, run_id: str) -> list[str]:
        """Leftovers of incomplete puts: files with temporary names, or uploads."""
        ...


class LocalPlace:
    """A folder."""

    name, kind, pause_seconds = LOCAL, "a folder", 0.0

    def __init__(self, root: Path) -> None:
        self.root = root

    def store(self) -> Store:
        return LocalStore(self.root).create()

    def spec_for_trainer(self) -> StoreSpec:
        return StoreSpec(url=str(self.root))

    def trap(self, *, run_id: str, attempt_id: str, writer_pid: int) -> Trap:
        return _FileTrap(self.root / keys.attempt_prefix(run_id, attempt_id), writer_pid)

    def unfinished(self, run_id: str) -> list[str]:
        folder = self.root / run_id
        return sorted(path.relative_to(folder).as_posix() for path in folder.rglob(f"{STAGED}*"))


class _FileTrap:
    """Looks for a file that is being written, and stops the writer while it is."""

    def __init__(self, folder: Path, writer_pid: int) -> None:
        self._folder, self._writer_pid = folder, writer_pid

    def has_caught(self) -> bool:
        if not self._is_writing():
            return False
        with suppress(ProcessLookupError):
            os.kill(self._writer_pid, signal.SIGSTOP)
        if self._is_writing():
            return True
        self._go_on()  # It was faster.
        return False

    def release(self, *, is_late: bool) -> None:
        if not is_late:
            with suppress(ProcessLookupError):
                os.kill(self._writer_pid, signal.SIGKILL)
        self._go_on()

    def _is_writing(self) -> bool:
        try:
            return any(self._folder.glob(f"step-*/{STAGED}*"))
        except OSError:
            return False  # A folder went away while we looked.

    def _go_on(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._writer_pid, signal.SIGCONT)


class S3Place:
    """A separate bucket, which trainers reach through a proxy that can hold their requests."""

    name, pause_seconds = S3, 0.01

    def __init__(self, *, bucket: str, endpoint_url: str, wire: Wire, kind: str) -> None:
        self.kind = kind
        self._url, self._endpoint_url, self._wire = f"s3://{bucket}/runs", endpoint_url, wire
        self._bucket = bucket

    def store(self) -> Store:
        return open_store(StoreSpec(url=self._url, endpoint_url=self._endpoint_url))

    def spec_for_trainer(self) -> StoreSpec:
        return StoreSpec(url=self._url, endpoint_url=self._wire.url)

    def trap(self, *, run_id: str, attempt_id: str, writer_pid: int) -> Trap:
        self._wire.trap = trap = PutTrap(f"{keys.attempt_prefix(run_id, attempt_id)}step-")
        return trap

    def unfinished(self, run_id: str) -> list[str]:
        client = s3_client(self._endpoint_url)
        pages = client.get_paginator("list_multipart_uploads").paginate(Bucket=self._bucket, Prefix=f"runs/{run_id}/")
        found = [upload["Key"] for page in pages for upload in page.get("Uploads", ())]
        client.close()
        return sorted(key.removeprefix(f"runs/{run_id}/") for key in found)


@contextmanager
def s3_place(endpoint_url: str | None) -> Iterator[S3Place]:
    """A bucket at this endpoint, or on a separate moto server. Afterwards, the bucket and all its objects are
    deleted."""
    if endpoint_url is None:
        with made_up_keys(), moto_server() as url, new_bucket(url) as bucket, Wire.to(url) as wire:
            yield S3Place(bucket=bucket, endpoint_url=url, wire=wire, kind="moto")
    else:
        with new_bucket(endpoint_url) as bucket, Wire.to(endpoint_url) as wire:
            yield S3Place(bucket=bucket, endpoint_url=endpoint_url, wire=wire, kind=endpoint_url)


def s3_client(endpoint_url: str) -> Any:
    """A client with the credentials that boto3 finds."""
    import boto3

    session = boto3.Session()
    return session.client("s3", endpoint_url=endpoint_url, region_name=session.region_name or _REGION)


def serve_moto() -> None:
    """The server process: print its address, then serve until standard input ends."""
    from moto.server import ThreadedMotoServer

    # Its put-if-absent looks first and puts then: a switch of threads in between would let both of two writers win.
    sys.setswitchinterval(60)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    sys.stdout.write(f"http://{host}:{port}\n")
    sys.stdout.flush()
    sys.stdin.read()


@contextmanager
def moto_server() -> Iterator[str]:
    """The address of moto's server in a separate process."""
    with subprocess.Popen(
        [sys.executable, "-c", _START_MOTO],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_environment(),
        # A session of its own: Ctrl-C goes to the benchmark's main process, which then ends this one in order.
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().decode().strip()
        finally:
            process.kill()


@contextmanager
def made_up_keys() -> Iterator[None]:
    """Set made-up credentials in the environment that trainers inherit, and hide the real credentials."""
    before = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
    for name in before:
        del os.environ[name]
    os.environ |= _MADE_UP
    try:
        yield
    finally:
        for name in _MADE_UP:
            os.environ.pop(name, None)
        os.environ |= before


@contextmanager
def new_bucket(endpoint_url: str) -> Iterator[str]:
    """The name of a new bucket. Afterwards, the bucket and all its objects are deleted."""
    name = f"segue-crash-{uuid.uuid4().hex[:12]}"
    client = s3_client(endpoint_url)
    client.create_bucket(Bucket=name)
    try:
        yield name
    finally:
        for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=name):
            for upload in page.get("Uploads", ()):
                client.abort_multipart_upload(Bucket=name, Key=upload["Key"], UploadId=upload["UploadId"])
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=name):
            for found in page.get("Contents", ()):
                client.delete_object(Bucket=name, Key=found["Key"])
        client.delete_bucket(Bucket=name)
        client.close()
