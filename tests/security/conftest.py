"""Keys for signed runs, and what somebody without the key can write."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segue.checkpoints.saving.write import CHUNK_BYTES
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.runlog.framing import framed
from segue.runlog.log import RunLog
from segue.spec import RunSpec

SECRET = "5f" * 32
HEAD_BYTES = len(framed(b"")) - 1


@pytest.fixture(params=["hmac", "ed25519"])
def key(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The reference to a key of each kind."""
    return new_key(tmp_path / "key", kind=request.param)


def new_key(path: Path, *, kind: str = "hmac", secret: str = SECRET) -> str:
    """Write a key; return the reference to it."""
    if kind == "hmac":
        path.write_text(f"{secret}\n")
    else:
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", path], check=True, capture_output=True)
    return f"file:{path}"


@pytest.fixture
def make_signed(make_spec: Callable[..., RunSpec], tmp_path: Path) -> Callable[..., RunSpec]:
    """A small run with a key."""
    reference = new_key(tmp_path / "run-key")

    def make(**fields: object) -> RunSpec:
        return make_spec(store={"url": str(tmp_path / "store"), "signing_key": reference}, **fields)

    return make


@pytest.fixture
def open_log() -> Iterator[Callable[[RunSpec], RunLog]]:
    return lambda spec: open_run(spec, clock=SystemClock())


def with_checksum(data: bytes) -> bytes:
    """A changed record with the checksum that fits it, as an attacker would write it."""
    return framed(data[HEAD_BYTES:-1])


def with_same_crc32c(data: bytes, wanted: Callable[[bytes], int], *, target: int) -> bytes:
    """Bytes whose last four are chosen so that the checksum of their last chunk is `target`."""
    chunk = bytearray(data[len(data) // CHUNK_BYTES * CHUNK_BYTES :])
    start = wanted(bytes(chunk))
    rows = []
    for bit in range(32):
        flipped = bytearray(chunk)
        flipped[len(chunk) - 4 + bit // 8] ^= 1 << bit % 8
        rows.append((wanted(bytes(flipped)) ^ start, 1 << bit))
    needed, flips = start ^ target, 0
    for place in reversed(range(32)):  # Each single bit changes the checksum independently: solve for those to flip.
        pivot = next((row for row in rows if row[0] >> place == 1), None)
        if pivot is None:
            continue
        rows = [(row[0] ^ pivot[0], row[1] ^ pivot[1]) if row[0] >> place & 1 else row for row in rows if row != pivot]
        if needed >> place & 1:
            needed, flips = needed ^ pivot[0], flips ^ pivot[1]
    for bit in range(32):
        if flips >> bit & 1:
            chunk[len(chunk) - 4 + bit // 8] ^= 1 << bit % 8
    assert wanted(bytes(chunk)) == target
    return data[: len(data) - len(chunk)] + bytes(chunk)
