"""How people write deadlines and durations."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from segue.cli.options import parse_deadline, parse_seconds
from segue.errors import SpecError

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def berlin(monkeypatch):
    # By its rule instead of its name: a machine need not have a time zone database.
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("+2h", NOW + timedelta(hours=2)),
        ("2h", NOW + timedelta(hours=2)),
        ("+90m", NOW + timedelta(minutes=90)),
        ("+90 min", NOW + timedelta(minutes=90)),
        ("+1.5d", NOW + timedelta(hours=36)),
        (" +45s ", NOW + timedelta(seconds=45)),
        ("+8h24m", NOW + timedelta(minutes=504)),
        ("1d 12h 30min", NOW + timedelta(minutes=36 * 60 + 30)),
        ("2026-12-01T06:00:00+01:00", datetime(2026, 12, 1, 5, tzinfo=UTC)),
        ("2026-12-01T06:00:00Z", datetime(2026, 12, 1, 6, tzinfo=UTC)),
    ],
)
def test_a_deadline_can_be_a_duration_from_now_or_an_iso_time(text, moment):
    assert parse_deadline(text, now=NOW) == moment


@pytest.mark.parametrize(
    ("now", "text", "moment"),
    [
        (datetime(2026, 6, 1, 12, tzinfo=UTC), "06:00", datetime(2026, 6, 2, 4, tzinfo=UTC)),
        (datetime(2026, 6, 1, 3, 59, tzinfo=UTC), "06:00", datetime(2026, 6, 1, 4, tzinfo=UTC)),
        # It is six o'clock sharp: the next one is tomorrow's.
        (datetime(2026, 6, 1, 4, tzinfo=UTC), "6:00", datetime(2026, 6, 2, 4, tzinfo=UTC)),
        # The clocks change in the night between.
        (datetime(2026, 3, 28, 21, tzinfo=UTC), "06:00", datetime(2026, 3, 29, 4, tzinfo=UTC)),
        (datetime(2026, 10, 24, 20, tzinfo=UTC), "06:00", datetime(2026, 10, 25, 5, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_is_the_next_one_in_local_time(berlin, now, text, moment):
    assert parse_deadline(text, now=now) == moment


@pytest.mark.parametrize(
    "text", ["", "soon", "25:00", "06:60", "+-2h", "+2y", "+24m8h", "+1h1h", "8h24", "+99999999999d", "2026-13-01"]
)
def test_what_is_no_deadline_is_refused_with_examples(text):
    with pytest.raises(SpecError, match=r"is not a time; write \+2h, \+8h30m, 06:00 or 2026-12-01T06:00:00\+00:00"):
        parse_deadline(text, now=NOW)


@pytest.mark.parametrize("text", ["2026-12-01T06:00:00", "2026-12-01T06:00", "2026-12-01 06:00", "2026-12-01"])
def test_an_iso_time_without_a_time_zone_is_refused_as_in_a_run_spec(berlin, text):
    with pytest.raises(SpecError) as caught:
        parse_deadline(text, now=NOW)
    sentence = f"deadline: {text!r} has no time zone; add one, e.g. Z or +01:00"
    assert caught.value.problems == (sentence,)


@pytest.mark.parametrize(("text", "seconds"), [("24h", 86400), ("90m", 5400), ("600s", 600), ("1d12h", 129600)])
def test_a_duration_is_read_in_seconds(text, seconds):
    assert parse_seconds(text, name="work") == seconds


@pytest.mark.parametrize("text", ["", "0h", "24", "-3h", "h", "06:00", "9" * 400 + "h"])
def test_what_is_no_duration_is_refused_with_the_name_of_the_option(text):
    with pytest.raises(SpecError, match=r"^on the command line: work: .* is not a duration; write 24h, 8h30m"):
        parse_seconds(text, name="work")
