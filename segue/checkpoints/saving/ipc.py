"""Sends messages and staging buffers between the trainer and its writer process.

A message consists of two lengths, a JSON head and a body of bytes. A file descriptor may be attached, for example the
descriptor of a staging buffer, which is shared memory. Messages do not use pickle, and no other process has access to
the socket. The module does not import torch.
"""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

_LENGTHS = struct.Struct("<II")
_MOST_DESCRIPTORS = 1


class Message(NamedTuple):
    """One message. The receiver must close the `descriptors`."""

    head: dict[str, Any]
    body: bytes
    descriptors: Sequence[int]


def send(channel: socket.socket, head: dict[str, Any], body: bytes = b"", *, descriptors: Sequence[int] = ()) -> None:
    """Send one whole message.

    Raises:
        OSError: the other process has ended.
    """
    text = json.dumps(head).encode()
    lengths = _LENGTHS.pack(len(text), len(body))
    if descriptors:
        socket.send_fds(channel, [lengths], descriptors)
    else:
        channel.sendall(lengths)
    channel.sendall(text + body)


def receive(channel: socket.socket) -> Message | None:
    """Return the next message. Return None if the other process has ended.

    Raises:
        OSError: the connection broke in the middle of a message.
    """
    lengths, descriptors, _, _ = socket.recv_fds(channel, _LENGTHS.size, _MOST_DESCRIPTORS)
    if not lengths:
        return None
    lengths += _exactly(channel, _LENGTHS.size - len(lengths))
    head_bytes, body_bytes = _LENGTHS.unpack(lengths)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    head = json.loads(_exactly(channel, head_bytes))
    return Message(head, _exactly(channel, body_bytes), descriptors)


def _exactly(channel: socket.socket, count: int) -> bytes:
    blocks = []
    while count:
        block = channel.recv(min(count, 2**20))
        if not block:
            raise ConnectionResetError("the other process ended in the middle of a message")
        blocks.append(block)
        count -= len(block)
    return b"".join(blocks)


class StagingBuffer:
    """Shared memory for one shard file, identified by a file descriptor that can be sent to another process.

    The memory has no name in a file system. The memory is therefore freed when the last process that uses it ends.
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
        """The whole memory, which is writable and begins at a memory page."""
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
