"""Functions that make measured files durable, drop the files from the page cache, and check the result."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

COLD_SHARE = 0.01
"""If a smaller share of a file than this is in the page cache, the file counts as cold."""


def sync_tree(folder: Path) -> None:
    """Make a folder, all files below it and its entry in its parent survive a power cut."""
    for path in (folder.parent, folder, *folder.rglob("*")):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_cold(files: Iterable[Path], *, tries: int = 10) -> bool:
    """Drop files from the page cache, and return whether the files are no longer in the page cache. Some file systems
    keep all files in memory, and pages that a process has mapped stay.
    """
    paths = list(files)
    for _ in range(tries):
        for path in paths:
            _advise_unneeded(path)
        if resident_share(paths) < COLD_SHARE:
            return True
        time.sleep(0.05)
    return False


def resident_share(files: Iterable[Path]) -> float:
    """Share of these files that is in the page cache, from 0 to 1."""
    resident, pages = 0, 0
    for path in files:
        found = _resident_pages(path)
        resident, pages = resident + sum(found), pages + len(found)
    return resident / pages if pages else 0.0


def file_system(folder: Path) -> str:
    """Type of a folder's file system, for example ext4."""
    device = folder.stat().st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == wanted:
            return kind.split()[0]
    return "unknown"


def _advise_unneeded(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)  # Only clean pages are dropped.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _resident_pages(path: Path) -> list[int]:
    size_bytes = path.stat().st_size
    if size_bytes == 0:
        return []
    pages = (ctypes.c_ubyte * (-(-size_bytes // mmap.PAGESIZE)))()
    with path.open("r+b") as file, mmap.mmap(file.fileno(), size_bytes) as view:
        start = ctypes.c_char.from_buffer(view)
        try:
            if _libc.mincore(ctypes.addressof(start), size_bytes, ctypes.byref(pages)) != 0:
                raise OSError(ctypes.get_errno(), f"mincore of {path}")
        finally:
            del start  # The view cannot be closed while something points into it.
    return [page & 1 for page in pages]
