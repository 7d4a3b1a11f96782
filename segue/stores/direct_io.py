"""Reads and writes large files without the page cache, by O_DIRECT if the file system supports it.

The page cache would copy a checkpoint once more, and would evict cached pages that the training uses.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

READ_BYTES = 8 * 2**20
WRITE_BYTES = 32 * 2**20
"""Number of bytes that one system call writes.

Large writes are faster, because other threads do not interrupt a system call.
"""
PAGE_BYTES = mmap.PAGESIZE

_O_DIRECT = getattr(os, "O_DIRECT", 0)  # macOS has no O_DIRECT.
_NOT_SUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP)
"""Errors of file systems that do not support O_DIRECT, at the opening of the file or at the first transfer."""


def page_buffer(size_bytes: int) -> memoryview:
    """Return zeroed memory that begins at a memory page, for direct reads.

    The last view of the memory frees the memory.
    """
    # Private memory, because shared memory rarely gets huge pages, and page faults of small pages take longer than
    # the read.
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(memory)[:size_bytes]


def write_new(path: Path, data: memoryview) -> None:
    """Write a file that must not exist yet, and sync the file. The caller must sync the folder.

    After an error or a crash, an incomplete file may exist.

    Raises:
        OSError: the error of the system call, for example FileExistsError.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        done = _direct(descriptor, lambda: _write(descriptor, data[: _whole_pages(data)], 0))
        _write(descriptor, data[done:], done)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_into(path: Path, start: int, into: memoryview) -> int:
    """Fill `into` with the bytes of a file from `start`, and return the number of bytes.

    Raises:
        OSError: the error of the system call.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
        whole = into[: _whole_pages(into)] if start % PAGE_BYTES == 0 else into[:0]
        done = _direct(descriptor, lambda: _read(descriptor, whole, start, unit_bytes=PAGE_BYTES))
        return done + _read(descriptor, into[done:], start + done, unit_bytes=1)
    finally:
        os.close(descriptor)


def _direct(descriptor: int, transfer: Callable[[], int]) -> int:
    """Return the number of bytes that `transfer` moved with O_DIRECT.

    If the file system does not support O_DIRECT, return 0.
    """
    if not _O_DIRECT:
        return 0
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | _O_DIRECT)
        return transfer()
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return 0  # The caller transfers all bytes again, which gives the same result.
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)


def _write(descriptor: int, data: memoryview, start: int) -> int:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done : done + WRITE_BYTES], start + done)
    return done


def _read(descriptor: int, into: memoryview, start: int, *, unit_bytes: int) -> int:
    done = 0
    while done < len(into):
        count = os.preadv(descriptor, [into[done : done + READ_BYTES]], start + done)
        done += count
        if count == 0 or count % unit_bytes:  # This is the end of the file; a direct read cannot continue there.
            break
    return done


def _whole_pages(data: memoryview) -> int:
    """Return the number of bytes of `data` that O_DIRECT can transfer.

    O_DIRECT transfers only whole pages, and `data` must begin at a page.
    """
    if data.readonly or len(data) < PAGE_BYTES:
        return 0  # ctypes gives only the address of writable memory; the buffers of segue are writable.
    is_aligned = ctypes.addressof(ctypes.c_char.from_buffer(data)) % PAGE_BYTES == 0
    return len(data) - len(data) % PAGE_BYTES if is_aligned else 0
