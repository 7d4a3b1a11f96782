"""Memory and processor time of a process and its descendants, read from another process, so that the process is not
slowed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK_AGAIN_SECONDS = 0.1


class _Stat(NamedTuple):
    pid: int
    parent_pid: int
    session_id: int
    cpu_ticks: int
    """Processor time of the process and of its ended descendants."""


def family(pid: int) -> list[int]:
    """Process ids of a session leader, of its session, and of all descendants, including descendants in other
    sessions."""
    found = list(_processes())
    members = {pid} | {process.pid for process in found if process.session_id == pid}
    while added := {p.pid for p in found if p.parent_pid in members and p.pid not in members}:
        members |= added
    return sorted(members)


def pss_bytes(pids: Iterable[int]) -> int:
    """Total memory of these processes. A page that several of them share is counted once. Mapped files of a disk do not
    count, because the kernel can drop them, and because the shared part of a library depends on other processes. Mapped
    files of /dev/shm count.
    """
    return sum(_pss_bytes(pid) for pid in pids)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process and its descendants so far, in steps of a clock tick (10 ms)."""
    members = set(family(pid))
    return sum(process.cpu_ticks for process in _processes() if process.pid in members) / _TICKS_PER_SECOND


class PeakMemory:
    """Peak memory of a session leader and its descendants in a `with` block."""

    def __init__(self, pid: int, *, interval_seconds: float = 0.01) -> None:
        self._pid, self._interval_seconds = pid, interval_seconds
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, name="peak-memory", daemon=True)
        self.peak_bytes = 0
        self.samples = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        pids, look_again_at = family(self._pid), time.monotonic() + _LOOK_AGAIN_SECONDS
        while True:
            # A page that one process begins to share between the two reads would count twice; in the other order it
            # counts half, so the smaller sum is never too much, and both are right as soon as nothing moves.
            self.peak_bytes = max(self.peak_bytes, min(pss_bytes(pids), pss_bytes(pids[::-1])))
            self.samples += 1
            if self._done.wait(self._interval_seconds):
                return
            if time.monotonic() > look_again_at:
                pids, look_again_at = family(self._pid), time.monotonic() + _LOOK_AGAIN_SECONDS


def _pss_bytes(pid: int) -> int:
    # A process may end between the look and the read.
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:"))) * 1024
    return 0


def _processes() -> Iterable[_Stat]:
    for folder in os.listdir("/proc"):  # noqa: PTH208 - a thousand Paths every tenth of a second are not free
        if not folder.isdigit():
            continue
        with suppress(OSError):
            # The name of the program stands in brackets and may hold anything, brackets too.
            fields = Path(f"/proc/{folder}/stat").read_text().rpartition(")")[2].split()
            yield _Stat(int(folder), int(fields[1]), int(fields[3]), sum(map(int, fields[11:15])))
