"""Computes periods of the calendar, and the places of a period's files. The module is pure.

Every moment is first converted to a `datetime` of the standard library, because a subclass may calculate differently.
Prefect uses Pendulum's subclass, for example. If the clocks of a zone go forward at midnight, Pendulum's subclass
returns the previous day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import Literal, NamedTuple

Unit = Literal["hour", "day", "week", "month"]


class Period(NamedTuple):
    """One hour, one day, one month, or one week from Monday, in the calendar of a time zone."""

    unit: Unit
    begins: datetime
    """The beginning of the period, with its time zone.

    The beginning is midnight, a full hour, or the moment at which the clocks change within an hour.
    """

    @property
    def ends(self) -> datetime:
        """The end of the period, which is the beginning of the next period."""
        return _shifted(self, 1).begins

    @property
    def name(self) -> str:
        """The name of the period, such as 2013-06, 2013-06-03 or 2013-06-03T14+0200.

        The name of a week is the date of its Monday.
        """
        return self.begins.strftime({"month": "%Y-%m", "hour": "%Y-%m-%dT%H%z"}.get(self.unit, "%Y-%m-%d"))

    def place(self, files: str) -> str:
        """Return the place of the period's files: the template `files`, filled with the beginning of the period."""
        return self.begins.strftime(files)


def in_utc(moment: datetime) -> datetime:
    """Convert a moment with a time zone to the standard library's `datetime` in UTC. The moment may be of any
    subclass.
    """
    plain = datetime.fromtimestamp(math.floor(moment.timestamp()), UTC)
    return plain.replace(microsecond=moment.microsecond)


def period_at(moment: datetime, unit: Unit, zone: tzinfo) -> Period:
    """Return the period that contains a moment."""
    there = in_utc(moment).astimezone(zone)
    if unit == "hour":
        return Period(unit, _hour_begin(there))
    day = there.date()
    if unit == "week":
        day -= timedelta(days=day.weekday())
    elif unit == "month":
        day = day.replace(day=1)
    return _from_day(unit, day, zone)


def newest_complete(moment: datetime, unit: Unit, zone: tzinfo, *, delay: timedelta) -> Period:
    """Return the newest period that had ended at least `delay` before the moment."""
    return _shifted(period_at(in_utc(moment) - delay, unit, zone), -1)


def periods_until(last: Period, *, count: int | None = None, since: Period | None = None) -> Sequence[Period]:
    """Return the periods up to `last`, oldest first.

    The result has `count` periods, or all periods from `since`. The result is empty if `since` is later than `last`.
    """
    found: list[Period] = []
    period = last
    while len(found) != count and (since is None or period.begins.timestamp() >= since.begins.timestamp()):
        found.append(period)
        period = _shifted(period, -1)
    return found[::-1]


def _shifted(period: Period, count: Literal[-1, 1]) -> Period:
    unit, begins = period
    zone = begins.tzinfo
    assert zone is not None
    if unit == "hour":
        return period_at(_later(begins, _minutes_of_hour(begins) if count == 1 else -1), unit, zone)
    if unit == "month":
        months = begins.year * 12 + begins.month - 1 + count
        return _from_day(unit, date(months // 12, months % 12 + 1, 1), zone)
    return _from_day(unit, begins.date() + timedelta(days=count * (7 if unit == "week" else 1)), zone)


def _from_day(unit: Unit, day: date, zone: tzinfo) -> Period:
    return Period(unit, datetime.combine(day, time(), zone))


def _later(moment: datetime, minutes: int) -> datetime:
    return (moment.astimezone(UTC) + timedelta(minutes=minutes)).astimezone(moment.tzinfo)


def _hour_begin(moment: datetime) -> datetime:
    """Return the first minute of the hour of `moment`. If the clocks changed in this hour before `moment`, return the
    first minute after the change."""
    hour = moment.replace(second=0, microsecond=0)
    earlier = (_later(hour, -minutes) for minutes in range(hour.minute, 0, -1))
    return next((begin for begin in earlier if _same_hour(begin, hour)), hour)


def _minutes_of_hour(begin: datetime) -> int:
    """Return the number of minutes of the hour.

    The number is less than 60 if the clocks change within the hour, as on Lord Howe Island.
    """
    return next(minutes for minutes in range(60, 0, -1) if _same_hour(_later(begin, minutes - 1), begin))


def _same_hour(one: datetime, other: datetime) -> bool:
    return (one.date(), one.hour, one.utcoffset()) == (other.date(), other.hour, other.utcoffset())
