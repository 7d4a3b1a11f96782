"""The frame of a record: a checksum before its body, so that flipped bits are detected."""

from __future__ import annotations

import json

import crc32c

from segue.errors import DamagedRecordError

_HEAD = b'{"crc32c":"%08x","entry":'
_HEAD_BYTES = len(_HEAD % 0)


def framed(body: bytes) -> bytes:
    """Return a record: first the checksum of the body, then the body.

    The body is the entry and, if the record is signed, its signature.
    """
    return _HEAD % crc32c.crc32c(body) + body + b"}"


def unframed(data: bytes, *, key: str) -> bytes:
    """Return the body of a record.

    Raises:
        DamagedRecordError: the bytes are not what `framed` made.
    """
    if not is_intact(data):
        raise DamagedRecordError(key=key, why="its checksum does not match its bytes")
    return data[_HEAD_BYTES:-1]


def is_intact(data: bytes) -> bool:
    """Whether the bytes are an undamaged record, written by any version of segue."""
    return data[-1:] == b"}" and data[:_HEAD_BYTES] == _HEAD % crc32c.crc32c(memoryview(data)[_HEAD_BYTES:-1])


def entry_id_in(data: bytes) -> str | None:
    """Return the id of a record of any version, signed or not.

    Return None if the bytes are not a record. The function verifies nothing.
    """
    try:
        found = json.loads(data)["entry"]["entry_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None
