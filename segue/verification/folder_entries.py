"""Finds the files and entries in which two committed folders differ, without running code from the files.

The module is pure.
"""

from __future__ import annotations

import io
import json
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from itertools import pairwise, zip_longest
from typing import NamedTuple

from segue.continuity.recipe_diff import differences

_MOST_SHOWN, _MOST_CHARACTERS = 3, 60
_STRINGS = ("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINUNICODE8", "SHORT_BINSTRING", "BINSTRING")
_STORAGE = "storage"
"""The string that torch writes before a tensor in a pickle.

The next string is the number of the tensor's zip member.
"""


def folder_differences(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return a few sentences about the differences between two folders. A mapping of paths to contents is a folder."""
    found: list[str] = []
    for name in sorted(one.keys() | other.keys()):
        if name not in one or name not in other:
            found.append(f"only one of the runs has {name}")
        elif one[name] != other[name]:
            entries = list(_entries(one[name], other[name]))[:_MOST_SHOWN]
            found.append(f"{name}: {'; '.join(entries)}" if entries else f"{name} has other bytes")
    more = len(found) - _MOST_SHOWN
    return (*found[:_MOST_SHOWN], *([f"{more} more files"] if more > 0 else []))


def _entries(one: bytes, other: bytes) -> Iterator[str]:
    try:
        if zipfile.is_zipfile(io.BytesIO(one)) and zipfile.is_zipfile(io.BytesIO(other)):
            yield from _of_torch(_members(one), _members(other))
        else:
            yield from differences(json.loads(one), json.loads(other))
    except (ValueError, zipfile.BadZipFile, UnicodeDecodeError):
        return  # The entries of other kinds of files are unknown.


def _members(archive: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(archive)) as opened:
        return {name.partition("/")[2]: opened.read(name) for name in opened.namelist()}


class _Value(NamedTuple):
    """A plain value in a pickle, and the string before the value, which is the value's key in a dict."""

    key: str
    shown: str
    text: str | None
    """The value, if it is a string. For other values, the text is None."""


def _of_torch(one: Mapping[str, bytes], other: Mapping[str, bytes]) -> Iterator[str]:
    """Yield texts about the strings, numbers and tensors in which two files of `torch.save` differ."""
    pickles = one.get("data.pkl", b""), other.get("data.pkl", b"")
    for before, now in zip_longest(*map(_values, pickles)):
        if before != now:
            known = before or now
            yield f"{known.key} was {_short(before)}, now {_short(now)}"
            break  # Later values may differ only because they have moved.
    tensors = _tensors(pickles[0])
    for name in sorted(one.keys() & other.keys()):
        number = name.removeprefix("data/")
        if number != name and one[name] != other[name]:
            yield f"the values of {tensors.get(number, f'tensor {number}')}"


def _values(pickled: bytes) -> Iterator[_Value]:
    """Yield the plain values in a pickle, in their order."""
    remembered: dict[int, str | None] = {}
    key, last = "", None
    for operation, argument, _ in pickletools.genops(pickled):
        if operation.name in ("BINPUT", "LONG_BINPUT"):
            remembered[int(argument or 0)] = last
            continue
        is_again = operation.name in ("BINGET", "LONG_BINGET")
        last = remembered.get(int(argument or 0)) if is_again else argument if operation.name in _STRINGS else None
        if last is not None:
            yield _Value(key, repr(last), last)
            key = last
        elif argument is not None and not is_again and operation.name not in ("PROTO", "FRAME"):
            yield _Value(key, repr(argument), None)


def _tensors(pickled: bytes) -> dict[str, str]:
    """Return the name of each tensor, by the number of the zip member with the tensor's bytes."""
    texts = [value for value in _values(pickled) if value.text is not None]
    pairs = pairwise(texts)
    return {number.text or "": storage.key for storage, number in pairs if storage.text == _STORAGE}


def _short(value: _Value | None) -> str:
    if value is None:
        return "absent"
    return value.shown if len(value.shown) <= _MOST_CHARACTERS else f"...{value.shown[-_MOST_CHARACTERS:]}"
