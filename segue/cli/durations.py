"""Times and lengths of time as people write them: `+8h24m`, `06:00`, `24h`."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from segue.errors import COMMAND_LINE, SpecError

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|s|m|h|d)\s*")
_SPAN = re.compile(rf"\+?\s*(?:{_PART.pattern})+")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_deadline(text: str, *, now: datetime) -> datetime:
    """Read `+90m`, `+8h24m`, `06:00` (the next one, local time) or an ISO time.

    Raises:
        SpecError: none of these.
    """
    try:
        return _moment(text.strip(), now=now)
    except (ValueError, OverflowError):
        problem = f"deadline: {text!r} is not a time; write +2h, +8h30m, 06:00 or 2026-12-01T06:00:00+00:00"
        raise SpecError(source=COMMAND_LINE, problems=(problem,)) from None


def parse_seconds(text: str, *, name: str) -> float:
    """Read a length of time: `24h`, `90m`, `600s`, `1d12h`; `name` is the option it is for.

    Raises:
        SpecError: it is none, or not above zero.
    """
    seconds = _span_seconds(text.strip()) or 0.0
    if not 0 < seconds < math.inf:
        problem = f"{name}: {text!r} is not a length of time; write 24h, 8h30m, 600s or 2d"
        raise SpecError(source=COMMAND_LINE, problems=(problem,))
    return seconds


def _span_seconds(text: str) -> float | None:
    """None unless it is one, with every unit at most once and the longer ones first."""
    if not _SPAN.fullmatch(text):
        return None
    parts = [(_UNIT_SECONDS[unit], float(count)) for count, unit in _PART.findall(text)]
    units = [unit for unit, _ in parts]
    if units != sorted(set(units), reverse=True):
        return None
    return sum(unit * count for unit, count in parts)


def _moment(text: str, *, now: datetime) -> datetime:
    span = _span_seconds(text)
    if span is not None:
        return now + timedelta(seconds=span)
    if clock := _CLOCK.fullmatch(text):
        # Without an offset until the end: the next 06:00 may lie behind a change to or from summer time.
        today = now.astimezone().replace(tzinfo=None, hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        days = (today, today + timedelta(days=1))
        return next(moment for day in days if (moment := day.astimezone(UTC)) > now)
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.astimezone()
