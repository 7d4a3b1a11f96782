"""Windows in every time zone, every day of 2020 to 2030: no day is lost, whatever class of datetime a slot comes as."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from pathlib import Path
from uuid import uuid4
from zoneinfo import TZPATH, ZoneInfo, available_timezones

import pandas as pd
import pendulum
import pytest
from prefect.client.schemas.objects import FlowRun

from segue.prefect.slots.slot_ticks import require_cron
from segue.retraining.periods import newest_complete, period_at, periods_until
from segue.retraining.slots import slot_at
from segue.retraining.spec import RetrainSpec
from segue.retraining.window import choose

FIRST, LAST, DAY, WEEK = date(2020, 1, 1), date(2030, 12, 31), timedelta(days=1), timedelta(days=7)
DAYS = [FIRST + number * DAY for number in range((LAST - FIRST).days + 1)]
NO_DELAY = timedelta(0)
STRANGE = (
    "America/Havana",  # The clocks go forward at midnight,
    "America/Santiago",
    "Africa/Cairo",
    "Asia/Beirut",  # and go back at midnight,
    "America/Nuuk",  # go forward to midnight,
    "Antarctica/Casey",  # by three hours,
    "Antarctica/Vostok",
    "Australia/Lord_Howe",  # by half an hour,
    "Pacific/Chatham",  # at 02:45.
)
SPEC = {
    "name": "m",
    "data": {"files": "/lake/%Y-%m-%d.parquet", "period": "day", "periods": 2},
    "publish": {"model": "r:m"},
    "evaluation": {"scores": "r:s"},
    "run": {"recipe": "r:b", "steps": 4},
}


def days_in_wrong_windows(name: str) -> list[str]:
    """Days of a zone whose slot, as Prefect gives it, has another window than the calendar says."""
    zone, found = ZoneInfo(name), []
    for day in DAYS:
        # At the first moment of the day; where there is no midnight, at that of the change.
        begins = datetime.combine(day, time(), zone).timestamp()
        last = newest_complete(pendulum.from_timestamp(begins), "day", zone, delay=NO_DELAY)
        if last.begins.date() != day - DAY:
            found.append(f"{name}: the slot of {day} ends with {last.name}")
        if day.weekday() == 0:
            week = newest_complete(pendulum.from_timestamp(begins), "week", zone, delay=NO_DELAY)
            if week.begins.date() != day - WEEK:
                found.append(f"{name}: the slot of {day} ends with the week of {week.name}")
        if day.day == 1:
            month = newest_complete(pendulum.from_timestamp(begins), "month", zone, delay=NO_DELAY)
            if month.name != f"{day - DAY:%Y-%m}":
                found.append(f"{name}: the slot of {day} ends with {month.name}")
    for unit, step in (("day", DAY), ("week", WEEK)):
        first, last = (period_at(pendulum.datetime(*each, 12), unit, zone) for each in ((2020, 1, 6), (2030, 12, 31)))
        begins = [period.begins.date() for period in periods_until(last, since=first)]
        if begins[0] not in {date(2020, 1, 6), date(2020, 1, 7)} or {b - a for a, b in pairwise(begins)} != {step}:
            found.append(f"{name}: a long window of {unit}s has a gap")
    return found


def rules_of(zone: str) -> bytes:
    """The content of a zone's file: many zones are names of another one."""
    found = [file for folder in TZPATH if (file := Path(folder, zone)).is_file()]
    return found[0].read_bytes() if found else zone.encode()


def as_prefect(slot: datetime) -> datetime:
    return FlowRun(flow_id=uuid4(), expected_start_time=slot).expected_start_time


def in_its_own_zone(slot: datetime) -> datetime:
    return pendulum.instance(slot).in_timezone("America/Havana")


@pytest.mark.parametrize("zone", STRANGE)
def test_every_day_is_in_the_windows_of_its_slots_where_clocks_change_in_strange_ways(zone):
    assert days_in_wrong_windows(zone) == []


@pytest.mark.matrix
def test_every_day_of_2020_to_2030_is_in_the_windows_of_its_slots_in_every_zone():
    zones = {rules_of(zone): zone for zone in sorted(available_timezones())}.values()
    assert [each for zone in zones for each in days_in_wrong_windows(zone)] == []


@pytest.mark.parametrize("given", [as_prefect, in_its_own_zone, pd.Timestamp], ids=["prefect", "pendulum", "pandas"])
@pytest.mark.parametrize("unit", ["hour", "day", "week"])
def test_a_slot_has_the_same_window_whatever_class_its_time_is(given, unit):
    template = {"hour": "/lake/%Y-%m-%dT%H%z", "week": "/lake/%G-W%V"}.get(unit, "/lake/%Y-%m-%d")
    data = {"files": template, "period": unit, "periods": 9}
    spec = RetrainSpec.model_validate(SPEC | {"timezone": "America/Havana", "data": data})
    for day in range(5, 12):
        slot = datetime(2026, 3, day, 5, 15, tzinfo=UTC)
        found = [
            choose(spec, each, find=lambda place: [place]) for each in (slot, given(slot), slot_at(given(slot), UTC))
        ]
        assert found[0] == found[1] == found[2]


def test_the_day_on_which_havana_has_no_midnight_is_held_back_once_and_trained_on_twice():
    spec = RetrainSpec.model_validate(SPEC | {"timezone": "America/Havana"})
    uses = []
    for day in range(6, 13):
        slot = as_prefect(datetime(2026, 3, day, 12, tzinfo=UTC))
        uses += [
            each.is_held_back
            for each in choose(spec, slot, find=lambda place: [place]).files
            if each.period == "2026-03-08"
        ]
    assert uses == [True, False, False]


@pytest.mark.parametrize(
    ("zone", "at", "names"),
    [
        ("Australia/Lord_Howe", (2026, 10, 3, 16), ["01+1030 60", "02+1100 30", "03+1100 60"]),
        ("Australia/Lord_Howe", (2026, 4, 4, 15), ["01+1100 60", "01+1030 30", "02+1030 60"]),
        ("Pacific/Chatham", (2026, 9, 26, 14), ["02+1245 45", "03+1345 15", "04+1345 60"]),
        ("Pacific/Chatham", (2026, 4, 4, 14), ["03+1345 45", "02+1245 15", "03+1245 60"]),
        ("Antarctica/Casey", (2020, 10, 3, 17), ["00+0800 1", "03+1100 59", "04+1100 60"]),
        ("Asia/Beirut", (2026, 10, 24, 22), ["23+0300 60", "23+0200 60", "00+0200 60"]),
        ("America/Havana", (2026, 3, 8, 6), ["23-0500 60", "01-0400 60", "02-0400 60"]),
    ],
)
def test_hours_in_which_clocks_change_are_periods_of_the_minutes_that_they_have(zone, at, names):
    last = period_at(datetime(*at, 30, tzinfo=UTC), "hour", ZoneInfo(zone))
    hours = periods_until(last, count=3)
    lengths = [round((hour.ends.timestamp() - hour.begins.timestamp()) / 60) for hour in hours]
    assert [f"{hour.name[-7:]} {minutes}" for hour, minutes in zip(hours, lengths, strict=True)] == names
    for hour in hours:
        for moment in (hour.begins, hour.ends.astimezone(UTC) - timedelta(microseconds=1)):
            assert period_at(moment, "hour", ZoneInfo(zone)) == hour


@pytest.mark.matrix
def test_prefect_takes_every_zone():
    for zone in available_timezones():
        require_cron(RetrainSpec.model_validate(SPEC | {"timezone": zone, "schedule": "0 6 * * *"}))
