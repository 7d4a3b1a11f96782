"""Converts immutable values that JSON lacks (such as dates, exact numbers and paths) to JSON and back."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import torch

from segue.errors import UnsupportedStateError

Json = Any
CONSTANT_TAG = "constant"
MOMENTS = "mM"
"""Kind codes of the NumPy types for points in time and durations."""


def is_constant(value: Any) -> bool:
    """Whether the value is an instance of a supported class itself, and not of a subclass."""
    return type(value) in _WAYS


def encode_constant(value: Any, *, path: str) -> Json:
    """Return a constant as JSON: the name of its class and its content.

    Raises:
        UnsupportedStateError: the class of the value's time zone is not in the standard library, or a slice has bounds
            that are not numbers.
    """
    name, to_json, _ = _WAYS[type(value)]
    zone = getattr(value, "tzinfo", None)
    if zone is not None and not isinstance(zone, (timezone, ZoneInfo)):
        raise UnsupportedStateError(path=path, type_name=f"time in a zone of the class {type(zone).__qualname__}")
    if isinstance(value, slice) and not all(bound is None or isinstance(bound, int) for bound in _bounds_of(value)):
        raise UnsupportedStateError(path=path, type_name="slice with bounds that are not numbers")
    return [name, to_json(value)]


def decode_constant(value: Json) -> Any:
    """The constant that `encode_constant` encoded.

    Raises:
        KeyError, ValueError, TypeError: the data is not an encoded constant.
    """
    name, content = value
    return _FROM_JSON[name](content)


def moment(dtype: str, count: int) -> np.generic:
    """Return a NumPy point in time or duration, from its type and its number of units.

    Raises:
        ValueError: the type is not a time type.
    """
    kind = np.dtype(dtype)
    if kind.kind not in MOMENTS:
        raise ValueError(f"{dtype!r} is not a time type")
    found: np.generic = np.array([count], dtype=np.int64).view(kind)[0]
    return found


def _of_time(value: datetime | time) -> Json:
    zone = value.tzinfo
    key = zone.key if isinstance(zone, ZoneInfo) else None
    return [value.replace(tzinfo=None).isoformat() if key else value.isoformat(), key, value.fold]


def _to_time(kind: type[datetime] | type[time]) -> Callable[[Json], datetime | time]:
    def made(content: Json) -> datetime | time:
        text, key, fold = content
        found: datetime | time = kind.fromisoformat(text)
        return found.replace(tzinfo=ZoneInfo(key) if key else found.tzinfo, fold=fold)

    return made


def _of_timedelta(value: timedelta) -> Json:
    return [value.days, value.seconds, value.microseconds]


def _bounds_of(value: range | slice) -> Json:
    return [value.start, value.stop, value.step]


def _of_fraction(value: Fraction) -> Json:
    # A fraction is not stored as text, because computing a forged 1e999999999 would take hours.
    return [value.numerator, value.denominator]


def _to_fraction(content: Json) -> Fraction:
    numerator, denominator = map(int, content)
    return Fraction(numerator, denominator)


def _to_type_of_torch(text: str) -> torch.dtype:
    found = getattr(torch, text.removeprefix("torch."))
    if not isinstance(found, torch.dtype):
        raise TypeError(f"{text!r} is not a torch dtype")
    return found


_WAYS: dict[type, tuple[str, Callable[[Any], Json], Callable[[Json], Any]]] = {
    Decimal: ("decimal", str, Decimal),
    Fraction: ("fraction", _of_fraction, _to_fraction),
    UUID: ("uuid", str, UUID),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", _of_time, _to_time(time)),
    datetime: ("datetime", _of_time, _to_time(datetime)),
    timedelta: ("timedelta", _of_timedelta, lambda content: timedelta(*content)),
    type(Path()): ("path", str, Path),
    PurePosixPath: ("posix path", str, PurePosixPath),
    PureWindowsPath: ("windows path", str, PureWindowsPath),
    range: ("range", _bounds_of, lambda content: range(*content)),
    slice: ("slice", _bounds_of, lambda content: slice(*content)),
    torch.dtype: ("dtype", str, _to_type_of_torch),
    torch.device: ("device", str, torch.device),
}
"""Maps each class to its name in a checkpoint, and to the functions that convert it to JSON and from JSON."""
_FROM_JSON = {name: from_json for name, _, from_json in _WAYS.values()}
CONSTANTS: tuple[type, ...] = tuple(_WAYS)
