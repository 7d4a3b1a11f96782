"""Stores to test against: a folder, servers of three clouds' protocols, and a wire that can be tampered with."""

from __future__ import annotations

import fcntl
import functools
import http.client
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import boto3
import pytest

from segue.spec import StoreSpec
from segue.stores import Store, open_store
from tests.support.clouds import azurite as azure
from tests.support.clouds.gcs import FakeGcs

ACCESS_KEY, SECRET_KEY = "test", "testtest"
BUCKET = "models"
"""Of the fake GCS and of Azurite, which live as long as the session; moto and radosgw have a new one each."""
RADOSGW_URL = "http://127.0.0.1:4405"
RADOSGW_PORTS = (4405, 4410)
MOTO = "import sys; sys.setswitchinterval(60); from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
"""Its put-if-absent looks first and puts then: a switch of threads in between would let both of two writers win."""
PLACES = ("local", "moto", "gcs", "azurite", pytest.param("radosgw", marks=(pytest.mark.radosgw, pytest.mark.matrix)))


@pytest.fixture(scope="session")
def aws_keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Made-up credentials in the environment, and no way to the real ones."""
    nowhere = str(tmp_path_factory.mktemp("aws") / "none")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_CONFIG_FILE", nowhere)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
        yield


@pytest.fixture(scope="session")
def moto_url(aws_keys: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Moto's server in a process of its own."""
    log = tmp_path_factory.mktemp("moto") / "output"
    with log.open("wb") as output:
        command = [sys.executable, "-c", MOTO]
        server = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        give_up_at = time.monotonic() + 60
        while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < give_up_at, log.read_text()
            time.sleep(0.05)
        yield found[0]
    finally:
        server.terminate()
        server.wait(timeout=10)


@pytest.fixture(scope="session")
def radosgw_url(radosgw_config: Path) -> str:
    """A one-node Ceph object gateway: real signatures, a second opinion on conditional puts."""
    return RADOSGW_URL


@pytest.fixture(scope="session")
def radosgw_config(aws_keys: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The configuration of the gateway while it runs, for its administration."""
    default = Path(__file__).parents[3] / "shared" / "tools" / "radosgw.sh"
    script = Path(os.environ.get("SEGUE_RADOSGW_SCRIPT", default))
    if not script.is_file():
        pytest.skip(f"no script to start radosgw at {script}; name one in SEGUE_RADOSGW_SCRIPT")
    if absent := [name for name in ("radosgw", "ceph-mon", "ceph-osd") if shutil.which(name) is None]:
        pytest.skip(f"not installed: {', '.join(absent)}; apt-get install radosgw ceph-mon ceph-osd ceph-common")
    with _turn_at(RADOSGW_PORTS):
        yield from _radosgw(script, tmp_path_factory.mktemp("radosgw"))


def _radosgw(script: Path, state: Path) -> Iterator[Path]:
    environment = os.environ | {"RADOSGW_DIR": str(state / "ceph")}
    try:
        if not (_is_up(script, state, environment) or _is_up(script, state, environment)):
            pytest.skip(f"radosgw did not start, twice: {(state / 'output').read_text()[-500:]}")
        yield state / "ceph" / "ceph.conf"
    finally:
        pids = [int(file.read_text()) for file in (state / "ceph" / "run").glob("*.pid")]
        subprocess.run(["bash", script, "down"], env=environment, timeout=30, check=True)
        _end(pids)


def _is_up(script: Path, state: Path, environment: dict[str, str]) -> bool:
    # Into a file: the daemons keep their output open, and a pipe would never come to its end.
    with (state / "output").open("ab") as output:
        # At the low priority of these tests its monitor may not be up in time. Without the right to raise the
        # priority, nice only prints a warning.
        command = ["nice", "-n", "-10", "bash", str(script), "up"]
        up = subprocess.run(command, env=environment, stdout=output, stderr=output, timeout=90, check=False)
        if up.returncode != 0:
            subprocess.run(["bash", script, "down"], env=environment, timeout=30, check=True)
    return up.returncode == 0


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeGcs]:
    """A fake of Google Cloud Storage, and a key file for it in the environment; no way to the real one."""
    folder = tmp_path_factory.mktemp("gcs")
    with FakeGcs().serving() as server, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("GOOGLE_")]:
            patch.delenv(name)
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(server.write_key(folder / "key.json")))
        patch.setenv("CLOUDSDK_CONFIG", str(folder / "none"))
        patch.setenv("NO_GCE_CHECK", "true")
        # Of gcsfs, which otherwise asks by gRPC of which kind a bucket is, and waits a minute for the answer.
        patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture(scope="session")
def gcs_url(gcs: FakeGcs) -> str:
    return gcs.url


@pytest.fixture(scope="session")
def azurite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of Azurite, and its well-known key in the environment; no way to a real account."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AZURE_")]:
            patch.delenv(name)
        patch.setenv("AZURE_STORAGE_ACCOUNT_KEY", azure.KEY)
        # Where a managed identity would be asked for a token.
        patch.setenv("AZURE_MSI_ENDPOINT", "http://127.0.0.1:9/msi")
        with azure.serving(tmp_path_factory.mktemp("azurite") / "output") as endpoint_url:
            # Of adlfs, which takes no other endpoint with http://.
            patch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection_string(endpoint_url))
            yield endpoint_url


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    """A fresh store of the kind that the test's parameter names."""
    if request.param == "local":
        return StoreSpec(url=str(tmp_path / "store"))
    return place_at(request, request.param, prefix=f"{uuid.uuid4().hex}/pre fix")


def place_at(request: pytest.FixtureRequest, server: str, *, prefix: str) -> StoreSpec:
    """A prefix of a bucket on one of the servers, which is started if it is not up."""
    endpoint_url = request.getfixturevalue(f"{server}_url")
    if server == "gcs":
        request.getfixturevalue("gcs").buckets.create(BUCKET)
        bucket = f"gs://{BUCKET}"
    elif server == "azurite":
        azure.create_container(endpoint_url, BUCKET)
        bucket = f"az://{BUCKET}"
    else:
        bucket = bucket_at(endpoint_url)
    return StoreSpec(url=f"{bucket}/{prefix}", endpoint_url=endpoint_url)


@pytest.fixture
def store(place: StoreSpec) -> Store:
    opened = open_store(place)
    opened.check()
    return opened


@functools.cache
def bucket_at(endpoint_url: str) -> str:
    """The URL of a bucket made for this session; a test takes a prefix of its own in it."""
    bucket = f"segue-{uuid.uuid4().hex[:12]}"
    client = boto3.client("s3", endpoint_url=endpoint_url)
    client.create_bucket(Bucket=bucket)
    client.close()
    return f"s3://{bucket}"


class Bucket(NamedTuple):
    """A bucket of moto's server, with a client for it."""

    client: Any
    name: str
    url: str
    """The endpoint."""


@pytest.fixture
def bucket(moto_url: str) -> Iterator[Bucket]:
    """A new bucket, to put files into."""
    client = boto3.client("s3", endpoint_url=moto_url)
    yield Bucket(client, bucket_at(moto_url).removeprefix("s3://"), moto_url)
    client.close()


class Wire(ThreadingHTTPServer):
    """Passes requests on to a server. `observer` sees each one and may change its headers, or have its answer lost.

    A request that `conflicts` is answered with 409, and goes no further.
    """

    def __init__(self, onward_url: str) -> None:
        self.onward = urlsplit(onward_url).netloc
        self.observer: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        self.conflicts: Callable[[BaseHTTPRequestHandler], bool] = lambda request: False
        super().__init__(("127.0.0.1", 0), _Relay)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Relay(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Wire

    def relay(self) -> None:
        is_answer_lost = self.server.observer(self)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.conflicts(self):
            said = b"<Error><Code>ConditionalRequestConflict</Code></Error>"
            self.send_response_only(409)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            return
        onward = http.client.HTTPConnection(self.server.onward)
        onward.request(self.command, self.path, body, dict(self.headers))
        answer = onward.getresponse()
        data = answer.read()
        onward.close()
        if is_answer_lost:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = relay

    def log_message(self, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture
def wire(moto_url: str) -> Iterator[Wire]:
    """A way to moto's server that can be tampered with."""
    with Wire(moto_url) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@contextmanager
def _turn_at(ports: tuple[int, ...], *, patience_seconds: float = 60.0) -> Iterator[None]:
    """Keep other test runs off fixed ports; skip when they are taken for long."""
    give_up_at = time.monotonic() + patience_seconds
    with (Path(tempfile.gettempdir()) / f"segue-ports-{os.getuid()}-{ports[0]}").open("w") as turn:
        while True:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if all(_is_free(port) for port in ports):
                    break
                fcntl.flock(turn, fcntl.LOCK_UN)
            except BlockingIOError:
                pass
            if time.monotonic() > give_up_at:
                pytest.skip(f"ports {ports} of 127.0.0.1 are taken by another server; stop it")
            time.sleep(0.5)
        yield


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def _end(pids: list[int], *, grace_seconds: float = 1.0) -> None:
    """Wait for processes that were asked to end, and end those that do not."""
    give_up_at = time.monotonic() + grace_seconds
    while pids := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        for pid in pids if time.monotonic() > give_up_at else ():
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
