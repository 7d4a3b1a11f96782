"""The limits of this machine, by which the figures of the savers are divided. One process measures all limits."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import socket
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.checkpoint.steps import StepSizes, calibrate

BLOCK_BYTES = 8 * 1024 * 1024
_ALIGNMENT_BYTES = 4096
_COPIES = 3
_MOST_CONNECTIONS = 4


@dataclass(frozen=True)
class Limits:
    """The times in which the machine copies and writes the bytes of the state."""

    memcpy_seconds: float
    write_seconds: float
    write_is_direct: bool
    """Whether the write uses O_DIRECT. If the file system refuses O_DIRECT, a buffered write and fsync are measured."""


class LimitBench:
    """Measures limits for any number of bytes up to a maximum, in buffers whose pages have all been touched."""

    def __init__(self, *, most_bytes: int, folder: Path) -> None:
        # One thread: the copy that a training process can always afford.
        torch.set_num_threads(1)
        self._folder = folder
        self._source = torch.rand(most_bytes // 4)
        self._target = torch.zeros_like(self._source)
        self._block = mmap.mmap(-1, BLOCK_BYTES)
        self._block.write(os.urandom(BLOCK_BYTES))
        folder.mkdir(parents=True, exist_ok=True)

    def measure(self, size_bytes: int) -> Limits:
        """Measure one more copy and one more write."""
        write_seconds, is_direct = self._write(size_bytes)
        memcpy_seconds = self._memcpy(size_bytes)
        return Limits(memcpy_seconds=memcpy_seconds, write_seconds=write_seconds, write_is_direct=is_direct)

    def read(self, files: list[Path], *, direct: bool) -> float:
        """Seconds to read files from beginning to end, block after block into the same memory. `direct` bypasses the
        page cache, for files that could not be dropped from the page cache.
        """
        started = time.perf_counter()
        with memoryview(self._block) as block:
            for path in files:
                with _opened(path, os.O_RDONLY, direct=direct) as (descriptor, _):
                    while os.readv(descriptor, [block]):
                        pass
        return time.perf_counter() - started

    def upload(self, size_bytes: int, port: int) -> float:
        """Seconds to send this number of bytes through plain connections to a server on this machine that reads the
        bytes. There is one connection for each core, and no signature, checksum or client library, so this is the limit
        of HTTP on loopback.
        """
        payload = self._source[: size_bytes // 4].view(torch.uint8).numpy().data
        connections = min(_MOST_CONNECTIONS, len(os.sched_getaffinity(0)))
        each_bytes = -(-size_bytes // connections)
        parts = [payload[start : start + each_bytes] for start in range(0, size_bytes, each_bytes)]
        with ThreadPoolExecutor(len(parts)) as threads:
            started = time.perf_counter()
            list(threads.map(_put_raw, [port] * len(parts), parts))
            return time.perf_counter() - started

    def calibrate_steps(self, threads: int) -> StepSizes:
        """The sizes with which a training step takes about the requested time, with this number of threads."""
        torch.set_num_threads(threads)
        try:
            return calibrate()
        finally:
            torch.set_num_threads(1)

    def close(self) -> None:
        self._block.close()

    def _memcpy(self, size_bytes: int) -> float:
        source, target = self._source[: size_bytes // 4], self._target[: size_bytes // 4]
        took = []
        for _ in range(_COPIES):
            started = time.perf_counter()
            target.copy_(source)
            took.append(time.perf_counter() - started)
        return statistics.median(took)

    def _write(self, size_bytes: int) -> tuple[float, bool]:
        path = self._folder / "limit"
        with memoryview(self._block) as block:
            try:
                started = time.perf_counter()
                with _opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, direct=True) as (descriptor, is_direct):
                    _write_blocks(descriptor, block, size_bytes)
                    os.fsync(descriptor)
                return time.perf_counter() - started, is_direct
            finally:
                path.unlink(missing_ok=True)


def _put_raw(port: int, part: memoryview) -> None:
    header = f"PUT /limit/{id(part)} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(part)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(header.encode())
        connection.sendall(part)
        answer = connection.recv(65536)
    if not answer.startswith(b"HTTP/1.1 200"):
        raise ConnectionError(f"the null server answered {answer[:80]!r}")


def _write_blocks(descriptor: int, block: memoryview, size_bytes: int) -> None:
    left = size_bytes
    while left >= _ALIGNMENT_BYTES:
        length = min(BLOCK_BYTES, left - left % _ALIGNMENT_BYTES)
        left -= os.write(descriptor, block[:length])
    # O_DIRECT takes whole sectors only: the last few bytes go through the page cache and the fsync.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
    while left:
        left -= os.write(descriptor, block[:left])


@contextmanager
def _opened(path: Path, flags: int, *, direct: bool) -> Iterator[tuple[int, bool]]:
    """A file descriptor, and whether its access bypasses the page cache."""
    try:
        descriptor, is_direct = os.open(path, flags | (os.O_DIRECT if direct else 0), 0o600), direct
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
        # Some file systems make the file before they refuse the flag.
        descriptor, is_direct = os.open(path, flags & ~os.O_EXCL, 0o600), False
    try:
        yield descriptor, is_direct
    finally:
        os.close(descriptor)
