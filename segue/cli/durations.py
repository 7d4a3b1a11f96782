"""Deadlines and durations as people write them, for example `+8h24m`, `06:00`, `24h`. The module `segue.units` writes
durations."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta

from segue.errors import OptionError

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(min|s|m|h|d)\s*")
_DURATION = re.compile(rf"\+?\s*(?:{_PART.pattern})+")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_UNIT_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_deadline(text: str, *, now: datetime) -> datetime:
    """Read a deadline: `+90m`, `+8h24m`, `06:00` (the next 06:00 in local time), or an ISO time with a time zone.

    Raises:
        SpecError: the text is no such time, or an ISO time has no time zone.
    """
    try:
        moment = _moment(text.strip(), now=now)
    except (ValueError, OverflowError):
        raise OptionError(
            f"deadline: {text!r} is not a time; write +2h, +8h30m, 06:00 or 2026-12-01T06:00:00+00:00"
        ) from None
    if moment.tzinfo is None:
        # The run spec also refuses a time without a zone, because the parent's machine may be in another time zone.
        raise OptionError(f"deadline: {text!r} has no time zone; add one, e.g. Z or +01:00")
    return moment


def parse_seconds(text: str, *, name: str) -> float:
    """Read a duration such as `24h`, `90m`, `600s` or `1d12h`. `name` is the name of the option, for error messages.

    Raises:
        SpecError: the text is not a duration, or the duration is not above zero.
    """
    seconds = _duration_seconds(text.strip()) or 0.0
    if not 0 < seconds < math.inf:
        raise OptionError(f"{name}: {text!r} is not a duration; write 24h, 8h30m, 600s or 2d")
    return seconds


def _duration_seconds(text: str) -> float | None:
    """The duration in seconds; None if the text is not a duration, or if a unit is repeated or out of order."""
    if not _DURATION.fullmatch(text):
        return None
    parts = [(_UNIT_SECONDS[unit], float(count)) for count, unit in _PART.findall(text)]
    units = [unit for unit, _ in parts]
    if units != sorted(set(units), reverse=True):
        return None
    return sum(unit * count for unit, count in parts)


def _moment(text: str, *, now: datetime) -> datetime:
    seconds = _duration_seconds(text)
    if seconds is not None:
        return now + timedelta(seconds=seconds)
    if clock := _CLOCK.fullmatch(text):
        # The offset is applied last, because summer time may begin or end before the next 06:00.
        today = now.astimezone().replace(tzinfo=None, hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        days = (today, today + timedelta(days=1))
        return next(moment for day in days if (moment := day.astimezone(UTC)) > now)
    return datetime.fromisoformat(text)
