"""Manages staging buffers: shared memory that the trainer fills and the writer process reads.

The module does not import torch.
"""

from __future__ import annotations

import mmap
import os
import tempfile


class StagingBuffer:
    """Shared memory for one shard file, identified by a file descriptor that can be sent to another process.

    The memory has no name in a file system, so it is freed when the last process that uses it ends for any reason.
    """

    def __init__(self, *, number: int, size_bytes: int) -> None:
        self.number, self.size_bytes = number, size_bytes
        self.descriptor = _anonymous_file()
        os.truncate(self.descriptor, size_bytes)
        self._memory = mmap.mmap(self.descriptor, size_bytes)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._memory.madvise(mmap.MADV_HUGEPAGE)

    @property
    def memory(self) -> mmap.mmap:
        """The whole memory. It is writable and begins at a memory page."""
        return self._memory

    def close(self) -> None:
        """Close the descriptor. The memory is freed together with its last view."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("segue-staging-buffer", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix="segue-staging-buffer-") as file:
        return os.dup(file.fileno())
