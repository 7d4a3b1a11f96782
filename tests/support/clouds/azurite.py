"""Azurite, Microsoft's own emulator of Azure Blob Storage, in a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import ContainerClient

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Public: every Azurite has this key."""
VERSION = "3.35.0"
"""Later ones need Node 22."""
_OPTIONS = ("--inMemoryPersistence", "--blobHost", "127.0.0.1", "--blobPort", "0", "--disableTelemetry")
_LISTENS = re.compile(r"listens on (http://127\.0\.0\.1:[1-9]\d*)")
_START_SECONDS = 120.0


@contextmanager
def serving(output: Path) -> Iterator[str]:
    """Azurite while the block runs, as the endpoint of its account. Skips the test where it is not installed."""
    # The versions of the API that obstore and adlfs ask for may be newer than those that it knows.
    command = [_program(), *_OPTIONS, "--skipApiVersionCheck", "--silent"]
    with output.open("wb") as log:
        server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=output.parent)
    try:
        give_up_at = time.monotonic() + _START_SECONDS
        while (found := _LISTENS.search(output.read_text())) is None:
            assert server.poll() is None, output.read_text()
            assert time.monotonic() < give_up_at, output.read_text()
            time.sleep(0.05)
        yield f"{found[1]}/{ACCOUNT}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def create_container(endpoint_url: str, name: str) -> None:
    """Make a container; an existing one stays as it is."""
    with container(endpoint_url, name) as client:
        try:
            client.create_container()
        except ResourceExistsError:
            return


def connection_string(endpoint_url: str) -> str:
    return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={endpoint_url};"


def container(endpoint_url: str, name: str) -> ContainerClient:
    """A client of Microsoft's own, for what tests do past the store."""
    return ContainerClient(endpoint_url, name, credential=KEY)


def _program() -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    installed = cache / "segue" / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    program = shutil.which("azurite-blob") or (str(installed) if installed.exists() else None)
    if program is None:
        pytest.skip(f"not installed: azurite-blob; npm install --prefix {installed.parents[2]} azurite@{VERSION}")
    return program
