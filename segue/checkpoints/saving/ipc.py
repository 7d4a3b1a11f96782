"""Sends messages between the trainer and its writer process.

A message consists of two lengths, a JSON head and a body of bytes. File descriptors may be attached. Pickle is not
used, and no other process has access to the socket.
"""

from __future__ import annotations

import json
import os
import socket
import struct
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
