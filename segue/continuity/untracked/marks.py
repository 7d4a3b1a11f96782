"""Computes marks of values, without calling code of the user. Equal marks in two processes mean equal values."""

from __future__ import annotations

import ctypes
import io
import itertools
import operator
import sys
import types
import warnings
from array import array
from collections import deque
from enum import Enum
from itertools import islice
from typing import Any

import numpy as np
import torch
import xxhash

from segue.checkpoints.format.collections import is_table
from segue.checkpoints.format.constants import CONSTANTS
from segue.checkpoints.format.dtensor import local_tensor
from segue.checkpoints.format.snapshot import raw_bytes
from segue.continuity.iterators import is_iterator, position_of
from segue.continuity.object_walk import PLAIN
from segue.data.streams import STREAMS, state_of_stream

Mark = bool | int | float | str | None
"""The mark of a value: the value itself if it is plain, or the hash of a larger value."""

ARRAYS = (torch.Tensor, np.ndarray, bytearray, memoryview, array)
_WHOLE, _SAMPLED = 1 << 20, 1 << 16
"""Maximum size of an array that is read whole, and number of evenly spaced elements that are read from a larger array.
"""
_MOST_ITEMS = 4096
_MOST_DEPTH = 4
_LONGEST = 100

UNREADABLE = "unreadable"


def mark_of(value: Any) -> Mark:
    """Return the mark of a value."""
    hasher = xxhash.xxh3_64()
    try:
        if isinstance(value, bool) or value is None:
            return value
        if type(value) in (int, float):
            return value  # type: ignore[no-any-return]
        if type(value) is str and len(value) <= _LONGEST:
            return value
        if isinstance(value, CONSTANTS) and len(text := str(value)) <= _LONGEST:
            return text
        _feed(value, hasher, 0)
    except Exception:  # The object cannot be read; this must not end an attempt.
        return UNREADABLE
    return f"#{hasher.hexdigest()}"


def _feed(value: Any, hasher: Any, depth: int) -> None:
    if isinstance(value, torch.Tensor):
        _feed_tensor(value, hasher)
    elif isinstance(value, np.ndarray):
        _feed_array(value, hasher, depth)
    elif isinstance(value, (bytes, bytearray, memoryview, array)):
        hasher.update(memoryview(value).cast("B")[: _WHOLE * 4])
    elif isinstance(value, (*PLAIN, *CONSTANTS, complex, np.generic, Enum)):
        hasher.update(f"{value!r};".encode())
    elif isinstance(value, STREAMS):
        _feed(state_of_stream(value), hasher, depth)
    elif isinstance(value, (dict, types.MappingProxyType, set, frozenset, list, tuple, deque)):
        _feed_items(value, hasher, depth)
    elif is_table(value):
        _feed_frame(value, hasher, depth)
    elif isinstance(value, ctypes._SimpleCData | ctypes.Array):
        hasher.update(bytes(value))
    elif keeps_state(value):
        _feed(state_of(value), hasher, depth)
    else:
        hasher.update(_position(value).encode())


def _feed_items(value: Any, hasher: Any, depth: int) -> None:
    if isinstance(value, (dict, types.MappingProxyType)):
        # The items are sorted, because the order of a set differs in each process.
        items = sorted(((_name(key), item) for key, item in islice(list(value.items()), _MOST_ITEMS)), key=_first)
        hasher.update(b"{")
        for name, item in items:
            hasher.update(name.encode())
            _feed_within(item, hasher, depth)
    elif isinstance(value, (set, frozenset)):
        hasher.update(",".join(sorted(_name(item) for item in islice(list(value), _MOST_ITEMS))).encode())
    else:
        # Only the content is hashed, because a state_dict may return the content of a deque as a list.
        hasher.update(f"[{len(value)}".encode())
        for item in islice(list(value), 0, None, max(len(value) // _MOST_ITEMS, 1)):
            _feed_within(item, hasher, depth)


def _feed_within(item: Any, hasher: Any, depth: int) -> None:
    if depth < _MOST_DEPTH:
        _feed(item, hasher, depth + 1)
    else:
        hasher.update(type(item).__qualname__.encode())


def _first(pair: tuple[str, Any]) -> str:
    return pair[0]


def _name(item: Any) -> str:
    return repr(item) if isinstance(item, (*PLAIN, np.generic)) or type(item) is tuple else type(item).__qualname__


def _feed_tensor(tensor: torch.Tensor, hasher: Any) -> None:
    tensor = local_tensor(tensor).detach()
    hasher.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if tensor.device.type == "meta":
        return
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided:
        for part in _parts_of_sparse(tensor):
            _feed_tensor(part, hasher)
        return
    flat = tensor.resolve_conj().resolve_neg().reshape(-1)
    if flat.numel() > _WHOLE:
        flat = flat[:: flat.numel() // _SAMPLED | 1]
    hasher.update(raw_bytes(flat.cpu().contiguous()))


def _parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """
    Raises:
        TypeError: the layout of the sparse tensor is unknown.
    """
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return whole.indices(), whole.values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    raise TypeError(f"the content of a {tensor.layout} tensor cannot be read")


def _feed_array(value: np.ndarray[Any, Any], hasher: Any, depth: int) -> None:
    hasher.update(f"{value.dtype}{value.shape}".encode())
    if value.dtype.hasobject:
        _feed(value.reshape(-1)[:_MOST_ITEMS].tolist(), hasher, depth)
        return
    flat = value.reshape(-1)
    if flat.size > _WHOLE:
        flat = flat[:: flat.size // _SAMPLED | 1]
    hasher.update(np.ascontiguousarray(flat).view(np.uint8))


def _feed_frame(value: Any, hasher: Any, depth: int) -> None:
    pandas = sys.modules["pandas"]
    hasher.update(f"{getattr(value, 'columns', '')}{len(value)}".encode())
    rows = value[:: max(len(value) // _SAMPLED, 1)]
    _feed(pandas.util.hash_pandas_object(rows).to_numpy(), hasher, depth)


def _position(value: Any) -> str:
    """Return the position of an iterator."""
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        held = [(name, mark_of(item)) for name, item in frame.f_locals.items() if _is_position(item)]
        return f"{frame.f_lasti} {held}"
    if isinstance(value, (itertools.count, itertools.repeat)):
        return repr(value)
    if isinstance(value, itertools.cycle):
        return f"{position_of(value)}"
    if is_iterator(value):
        left = operator.length_hint(value, -1)
        return f"{left}" if left >= 0 else _reduced(value)
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _is_position(item: Any) -> bool:
    return isinstance(item, (*PLAIN, *ARRAYS, *STREAMS, list, dict, deque)) or is_iterator(item)


def _reduced(value: Any) -> str:
    """Return the position of an iterator that Python can copy.

    The position is the count of the iterator or the number of its remaining items.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Later versions of Python cannot copy some iterators.
        try:
            parts = value.__reduce__()
        except TypeError:
            return UNREADABLE
    found = []
    for part in parts[1:]:
        for each in part if isinstance(part, tuple) else (part,):
            if isinstance(each, PLAIN):
                found.append(repr(each))
            elif isinstance(each, (list, tuple)):
                found.append(str(len(each)))
            elif is_iterator(each):
                found.append(_position(each))
    return " ".join(found)


_HASHES = frozenset({"_hashlib", "_blake2", "_md5", "_sha1", "_sha2", "_sha3"})
"""Modules of hash objects."""
_READERS = frozenset({("_csv", "reader"), ("csv", "DictReader")})
_HELD = frozenset({("collections", "UserDict"), ("collections", "UserList"), ("collections", "UserString")})
_CHAIN = ("collections", "ChainMap")
_UNREAD = frozenset(
    {("queue", "Queue"), ("queue", "LifoQueue"), ("queue", "PriorityQueue"), ("_queue", "SimpleQueue")}
    | {("sqlite3", "Connection"), ("sqlite3", "Cursor"), ("builtins", "callable_iterator")}
)
"""Types whose content cannot be compared. The content of a queue depends on threads. The other types have no readable
position.

Most programs only show a hash object to people.
"""


def keeps_state(value: Any) -> bool:
    """Whether the value is an object of the standard library whose state cannot be stored.

    The result is False for a file that is open for writing, because such a file is usually for people.
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
        OSError: code is iterating over a text file, which then has no position.
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
    """Return the module and name of the class. A subclass is a class of the user."""
    return (type(value).__module__, type(value).__qualname__)
