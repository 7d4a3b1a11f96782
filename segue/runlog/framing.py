"""Frames a record: puts a checksum before the body of the record, to detect flipped bits."""

from __future__ import annotations

import json

import crc32c
from pydantic import ValidationError

from segue.errors import DamagedRecordError

_HEAD = b'{"crc32c":"%08x","entry":'
_HEAD_BYTES = len(_HEAD % 0)


def framed(body: bytes) -> bytes:
    """Return a record: the checksum of the body, then the body.

    The body consists of the entry, and of the signature if the record is signed.
    """
    return _HEAD % crc32c.crc32c(body) + body + b"}"


def unframed(data: bytes, *, key: str) -> bytes:
    """Return the body of a record.

    Raises:
        DamagedRecordError: `framed` did not make these bytes.
    """
    if not is_intact(data):
        raise DamagedRecordError(key=key, why="its checksum does not match its bytes")
    return data[_HEAD_BYTES:-1]


def is_intact(data: bytes) -> bool:
    """Whether the bytes are an undamaged record, written by any version of segue."""
    return data[-1:] == b"}" and data[:_HEAD_BYTES] == _HEAD % crc32c.crc32c(memoryview(data)[_HEAD_BYTES:-1])


def entry_id_in(data: bytes) -> str | None:
    """Return the id of a record of any version, signed or not, without verifying it. Return None for other bytes."""
    try:
        found = json.loads(data)["entry"]["entry_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def in_whole_characters(value: object) -> object:
    """Return the value with valid Unicode in its texts: a `?` replaces each incomplete character."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {in_whole_characters(key): in_whole_characters(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [in_whole_characters(item) for item in value]
    return value


def newest_version(error: ValidationError) -> int:
    """Return the highest schema version in the refused record or in its parts. Return 1 if there is no version."""
    found = []
    for problem in error.errors(include_url=False, include_context=False):
        value = problem["input"]
        if problem["type"] == "union_tag_invalid" and isinstance(value, dict):
            value = value.get("schema_version")  # For an unknown kind, pydantic reports only the whole record.
        elif problem["loc"][-1:] != ("schema_version",):
            continue
        found.append(value if isinstance(value, int) else 1)
    return max(found, default=1)
