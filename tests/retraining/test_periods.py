"""Periods of a calendar with a time zone, also where the clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.retraining.periods import newest_complete, period_at, periods_until

BERLIN, KOLKATA, UNITS = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata"), ("hour", "day", "week", "month")
ODD_HOURS = ("Australia/Lord_Howe", "Pacific/Chatham")
NO_DELAY = timedelta(0)


def at(text: str, zone=UTC) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=zone)


@pytest.mark.parametrize(
    ("moment", "unit", "zone", "name"),
    [
        (at("2013-07-03T06:00"), "month", UTC, "2013-07"),
        (at("2013-07-03T06:00"), "week", UTC, "2013-07-01"),
        (at("2013-06-30T22:30"), "day", BERLIN, "2013-07-01"),
        (at("2013-06-30T22:30"), "month", BERLIN, "2013-07"),
        (at("2013-06-30T22:10"), "hour", KOLKATA, "2013-07-01T03+0530"),
        (at("2026-10-25T00:30"), "hour", BERLIN, "2026-10-25T02+0200"),
        (at("2026-10-25T01:30"), "hour", BERLIN, "2026-10-25T02+0100"),
    ],
)
def test_a_moment_lies_in_the_period_of_the_calendar_there(moment, unit, zone, name):
    assert period_at(moment, unit, zone).name == name


def test_the_newest_complete_period_has_ended_at_least_the_delay_before():
    slot = at("2013-07-03T06:00")
    assert newest_complete(slot, "month", UTC, delay=NO_DELAY).name == "2013-06"
    assert newest_complete(slot, "month", UTC, delay=timedelta(days=3)).name == "2013-05"
    assert newest_complete(at("2013-07-01T00:00"), "month", UTC, delay=NO_DELAY).name == "2013-06"
    assert newest_complete(at("2013-06-30T23:59"), "month", UTC, delay=NO_DELAY).name == "2013-05"


def test_days_with_23_and_25_hours_are_one_period_each():
    spring = period_at(at("2026-03-29T12:00"), "day", BERLIN)
    autumn = period_at(at("2026-10-25T12:00"), "day", BERLIN)
    assert [(day.ends.timestamp() - day.begins.timestamp()) / 3600 for day in (spring, autumn)] == [23, 25]
    last = period_at(at("2026-10-26T12:00"), "day", BERLIN)
    assert [day.name for day in periods_until(last, count=3)] == ["2026-10-24", "2026-10-25", "2026-10-26"]


def test_the_place_of_a_period_comes_from_its_begin():
    period = period_at(at("2013-07-03T06:00"), "week", UTC)
    assert period.place("s3://lake/%Y/%m/%d-*.parquet") == "s3://lake/2013/07/01-*.parquet"


def test_no_period_lies_before_one_that_comes_later():
    last = period_at(at("2013-07-03T06:00"), "month", UTC)
    assert periods_until(last, since=period_at(at("2013-08-01T00:00"), "month", UTC)) == []


@given(
    moment=st.integers(946_684_800, 2_208_988_800).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)),
    unit=st.sampled_from(UNITS),
    zone=st.sampled_from((UTC, BERLIN, KOLKATA, *map(ZoneInfo, ("America/New_York", "America/Havana", *ODD_HOURS)))),
    count=st.integers(1, 30),
)
def test_periods_follow_each_other_without_gaps_and_have_names_of_their_own(moment, unit, zone, count):
    last = period_at(moment, unit, zone)
    assert last.begins.timestamp() <= moment.timestamp() < last.ends.timestamp()
    periods = periods_until(last, count=count)
    assert len(periods) == count
    assert all(a.ends.timestamp() == b.begins.timestamp() for a, b in pairwise(periods))
    assert len({period.name for period in periods}) == count
    assert periods_until(last, since=periods[0]) == periods
    assert newest_complete(moment, unit, zone, delay=NO_DELAY) == periods_until(last, count=2)[0]
