"""Periods of the calendar, and the places of the files that hold their data. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Literal, NamedTuple
from zoneinfo import ZoneInfo

Unit = Literal["hour", "day", "week", "month"]


class Period(NamedTuple):
    """One hour, day, week from Monday, or month of a time zone's calendar."""

    unit: Unit
    begins: datetime
    """With the time zone."""

    @property
    def ends(self) -> datetime:
        """Where the next one begins."""
        return _shifted(self, 1).begins

    @property
    def name(self) -> str:
        """As in 2013-06, 2013-06-03, or 2013-06-03T14+0200; a week is named after its Monday."""
        return self.begins.strftime({"month": "%Y-%m", "hour": "%Y-%m-%dT%H%z"}.get(self.unit, "%Y-%m-%d"))

    def place(self, files: str) -> str:
        """Where its files are: the template with the fields of `strftime` replaced by the begin of the period."""
        return self.begins.strftime(files)


def period_at(moment: datetime, unit: Unit, zone: ZoneInfo) -> Period:
    """The period that a moment lies in."""
    hour = moment.astimezone(zone).replace(minute=0, second=0, microsecond=0)
    if unit == "hour":
        return Period(unit, hour)
    day = hour.replace(hour=0, fold=0)
    if unit == "week":
        day -= timedelta(days=day.weekday())
    elif unit == "month":
        day = day.replace(day=1)
    return Period(unit, day)


def newest_complete(moment: datetime, unit: Unit, zone: ZoneInfo, *, delay: timedelta) -> Period:
    """The last period that had ended this long before the moment."""
    return _shifted(period_at(moment - delay, unit, zone), -1)


def periods_until(last: Period, *, count: int | None = None, since: Period | None = None) -> Sequence[Period]:
    """So many periods up to the last one, or all from `since` on; oldest first. None, if `since` is after the last."""
    found: list[Period] = []
    period = last
    while len(found) != count and (since is None or period.begins.timestamp() >= since.begins.timestamp()):
        found.append(period)
        period = _shifted(period, -1)
    return found[::-1]


def _shifted(period: Period, count: int) -> Period:
    unit, begins = period
    if unit == "hour":
        return Period(unit, (begins.astimezone(UTC) + timedelta(hours=count)).astimezone(begins.tzinfo))
    if unit == "month":
        months = begins.year * 12 + begins.month - 1 + count
        return Period(unit, begins.replace(year=months // 12, month=months % 12 + 1))
    # With a time zone, the sum of a date and days keeps the hour on the clock, also where the day has 23 or 25 hours.
    return Period(unit, begins + timedelta(days=count * (7 if unit == "week" else 1)))
