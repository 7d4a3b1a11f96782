"""A store on moto's S3, whose requests are counted by its log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from segue.errors import OrchestratorError

# Its put-if-absent looks first and puts then: a switch of threads in between would let both of two writers win.
_MOTO = "import sys; sys.setswitchinterval(60); from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
_KEYS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_DEFAULT_REGION": "us-east-1"}
_START_SECONDS = 60.0


@contextmanager
def served_s3(log: Path) -> Iterator[dict[str, Any]]:
    """The fields of a store spec, valid until the block ends. The keys are in the environment."""
    import boto3

    os.environ.update(_KEYS)
    with log.open("wb") as output:
        server = subprocess.Popen([sys.executable, "-c", _MOTO], stdout=output, stderr=subprocess.STDOUT)
    try:
        url = _url_in(log, server)
        client = boto3.client("s3", endpoint_url=url)
        client.create_bucket(Bucket="fleet")
        client.close()
        yield {"url": "s3://fleet/runs", "endpoint_url": url}
    finally:
        server.terminate()
        server.wait()


def _url_in(log: Path, server: subprocess.Popen[bytes]) -> str:
    give_up_at = time.monotonic() + _START_SECONDS
    while (found := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())) is None:
        if server.poll() is not None or time.monotonic() > give_up_at:
            raise OrchestratorError(what="moto's server did not start.", fix="install `moto[s3,server]`.")
        time.sleep(0.05)
    return found[0]
