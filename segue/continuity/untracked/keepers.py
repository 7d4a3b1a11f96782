"""Finds objects of Python's standard library whose state cannot be stored, and the parts of them that can be
compared.
"""

from __future__ import annotations

import io
from typing import Any

_HASHES = frozenset({"_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha3"})
"""Modules of hash objects."""
_READERS = frozenset({("_csv", "reader"), ("csv", "DictReader")})
_HELD = frozenset({("collections", "UserDict"), ("collections", "UserList"), ("collections", "UserString")})
_CHAIN = ("collections", "ChainMap")
_UNREAD = frozenset(
    {("queue", "Queue"), ("queue", "LifoQueue"), ("queue", "PriorityQueue"), ("_queue", "SimpleQueue")}
    | {("sqlite3", "Connection"), ("sqlite3", "Cursor"), ("builtins", "callable_iterator")}
)
"""The content of a queue depends on threads, and the positions of the other objects cannot be read.

A hash is most often only shown to people.
"""


def keeps_state(value: Any) -> bool:
    """Whether the value is an object of the standard library whose state cannot be stored.

    Files that are open for writing do not count, because such files are usually for people.
    """
    if isinstance(value, io.IOBase):
        try:
            is_text = isinstance(value, (io.StringIO, io.BytesIO))
            return not value.closed and value.readable() and (is_text or not value.writable())
        except Exception:  # A class of the user may raise any exception.
            return False
    kind = _kind_of(value)
    return kind[0] in _HASHES or kind in _READERS or kind in _HELD or kind in _UNREAD or kind == _CHAIN


def state_of(value: Any) -> Any:
    """Return the part of the object that can be compared: its content or its read position.

    Raises:
        TypeError: no part of the object can be compared.
        OSError: the object is a text file that is being iterated, and such a file has no position.
    """
    kind = _kind_of(value)
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return [value.getvalue(), value.tell()]
    if isinstance(value, io.IOBase):
        return value.tell()
    if kind in _READERS:
        return value.line_num
    if kind == _CHAIN:
        return [dict(each) for each in value.maps]
    if kind in _HELD:
        return value.data
    raise TypeError(f"the state of a {kind[1]} cannot be read")


def _kind_of(value: Any) -> tuple[str, str]:
    """The module and name of the class. A subclass counts as a class of the user."""
    return (type(value).__module__, type(value).__qualname__)
