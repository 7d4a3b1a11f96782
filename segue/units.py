"""Defines numbers with a unit: the bounds for numbers in records, and texts that show numbers.

Records come from other processes. A clock that jumped, a broken disk or another writer can leave a time of 1e12
seconds, nan, infinity, or a negative number. If segue refused this record as damaged, the rest of its content would be
lost. Therefore, when segue reads the record, it replaces each number outside its bounds by the nearest bound. Other
code need not handle such numbers. `segue.cli.options` parses durations that people write.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime

_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
MOST_SECONDS = 10 * 366 * 86_400.0
"""Ten years in seconds. No attempt takes longer. A permitted time plus ten years is also a valid time."""
LEAST_SECONDS = 1e-3
MOST_COUNT = 2**53
"""Largest count. Above this number, a 64-bit float cannot represent every whole number."""
MOST_MONEY = 1e12
EARLIEST, LATEST = datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC)
"""The earliest and the latest permitted time of a clock."""


def duration(seconds: float) -> str:
    """Return a duration as text in the best unit, with at least two digits: 20 ms, 2.5 s, 84 s, 4.1 min, 2.0 h."""
    length = abs(seconds)
    if length < 0.01:
        return f"{1000 * seconds:.2g} ms" if seconds else "0 s"
    if length < 2 * _MINUTE:
        return f"{seconds:.2g} s" if length < 10 else f"{seconds:.0f} s"
    if length < 2 * _HOUR:
        minutes = seconds / _MINUTE
        return f"{minutes:.2g} min" if abs(minutes) < 10 else f"{minutes:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if length < 3 * _DAY else f"{seconds / _DAY:.1f} days"


def unit_of_axis(seconds: float) -> tuple[str, float]:
    """Return the time unit for an axis of this length, and the seconds of one unit."""
    return ("seconds", 1.0) if seconds < 600 else ("minutes", 60.0) if seconds < 3 * _HOUR else ("hours", _HOUR)


DEFAULT_CURRENCY = "USD"


def money(amount: float, currency: str) -> str:
    """Return an amount as text with its currency, in enough digits to show small amounts.

    The currency of old records is empty.
    """
    digits = 2 if abs(amount) >= 1 or not amount else 4
    return f"{amount:.{digits}f} {currency or DEFAULT_CURRENCY}"


def size(count_bytes: float) -> str:
    """Return a number of bytes as text in the best decimal unit, with at least two digits: 900 B, 28 kB, 3.4 GB."""
    value, units = float(count_bytes), ["B", "kB", "MB", "GB", "TB"]
    while value >= 1000 and len(units) > 1:
        value, units = value / 1000, units[1:]
    return f"{value:.2g} {units[0]}" if value < 10 and units[0] != "B" else f"{value:.0f} {units[0]}"


def later(moment: datetime, seconds: float) -> datetime:
    """Return the moment that is `seconds` later. The result is at most ten years before or after `moment`."""
    return moment + timedelta(seconds=within(seconds, least=-MOST_SECONDS, most=MOST_SECONDS))


def within(value: float, *, least: float, most: float) -> float:
    """Return the nearest number within these bounds. For nan, return `least`."""
    return least if math.isnan(value) else min(max(value, least), most)


def _seconds(value: float) -> float:
    return within(value, least=0.0, most=MOST_SECONDS)


def _seconds_above_zero(value: float) -> float:
    return within(value, least=LEAST_SECONDS, most=MOST_SECONDS)


def _seconds_or_endless(value: float) -> float:
    return value if value == float("inf") else _seconds(value)


def _count(value: int) -> int:
    return min(max(value, 0), MOST_COUNT)


def _money(value: float) -> float:
    return within(value, least=0.0, most=MOST_MONEY)


def _moment(value: datetime) -> datetime:
    return value if EARLIEST <= value <= LATEST else min(max(value, EARLIEST), LATEST)


def _figures(values: dict[str, float]) -> dict[str, float]:
    return {name: _figure(name, value) for name, value in values.items()}


def _figure(name: str, value: float) -> float:
    most = MOST_SECONDS if name.endswith("seconds") else MOST_MONEY
    return 0.0 if math.isnan(value) else within(value, least=-most, most=most)


def _prices(values: dict[str, float]) -> dict[str, float]:
    # A price that is not a positive number counts as unknown: the pool keeps the price of its spec.
    return {name: min(price, MOST_MONEY) for name, price in values.items() if price > 0}


Seconds = Annotated[float, AfterValidator(_seconds)]
SecondsAboveZero = Annotated[float, AfterValidator(_seconds_above_zero)]
SecondsOrEndless = Annotated[float, AfterValidator(_seconds_or_endless)]
Count = Annotated[int, AfterValidator(_count)]
Money = Annotated[float, AfterValidator(_money)]
Moment = Annotated[AwareDatetime, AfterValidator(_moment)]
Figures = Annotated[dict[str, float], AfterValidator(_figures)]
"""The numbers behind a decision, by name. A number whose name ends in `seconds` may be negative, such as a slack."""
Prices = Annotated[dict[str, float], AfterValidator(_prices)]
"""Prices per hour, by deployment."""
