"""Slots: their names, their runs, ticks of the schedule, overlap, and what the log knows of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pendulum
import pytest

from segue.errors import NoDataError, SlotEndedError, SpecError
from segue.prefect.slots.slot_ticks import require_cron, ticks, ticks_of_the_evening_before
from segue.retraining.gate.record import GateResult
from segue.retraining.model_record import SlotEnd, SlotStart
from segue.retraining.models import ModelsLog
from segue.retraining.slots import (
    heartbeat_of,
    missed_slots,
    model_and_slot_of,
    overlap_of,
    run_id_of,
    run_of,
    slot_at,
    slot_of,
    stamp_of,
)
from segue.retraining.spec import RetrainSpec, Window
from segue.retraining.window import window_of
from segue.stores import open_store
from tests.retraining.monthly import Monthly, slot_of_month
from tests.retraining.test_models import candidate as candidate_at

BERLIN = ZoneInfo("Europe/Berlin")
PASSED = GateResult(outcome="passed", expectations=1, rows=1)


@pytest.fixture
def monthly(tmp_path) -> Monthly:
    return Monthly(tmp_path / "points")


def spec_with(monthly: Monthly, **fields) -> RetrainSpec:
    monthly.write_spec(**fields)
    return monthly.spec


@pytest.mark.parametrize(
    ("moment", "stamp"),
    [
        (datetime(2013, 7, 1, 6, tzinfo=UTC), "20130701t0600"),
        (datetime(2013, 7, 1, 6, 0, 9, 5, tzinfo=UTC), "20130701t060009"),
        (datetime(2013, 7, 1, 6, tzinfo=BERLIN), "20130701t0400"),
        (datetime.fromisoformat("2013-07-01T06:00"), "20130701t0400"),
        (pendulum.naive(2013, 7, 1, 6), "20130701t0400"),
        (pendulum.datetime(2013, 7, 1, 6, 0, 9, 999_999, tz="America/Havana"), "20130701t100009"),
    ],
)
def test_a_slot_is_named_in_utc_and_found_by_its_name(moment, stamp):
    assert stamp_of(slot_at(moment, BERLIN)) == stamp
    assert slot_of(stamp) == slot_at(moment, BERLIN)


def test_the_hour_that_a_clock_repeats_has_two_slots():
    stamps = [stamp_of(datetime(2026, 10, 25, 2, 30, fold=fold, tzinfo=BERLIN)) for fold in (0, 1)]
    assert stamps == ["20261025t0030", "20261025t0130"]


@pytest.mark.parametrize("model", ["flights", "flights-eu", "a"])
def test_a_heartbeat_names_its_model_and_slot(model):
    assert model_and_slot_of(heartbeat_of(model, slot_of_month(4))) == (model, slot_of_month(4))
    assert model_and_slot_of("flights-20130401t0600") is None


def test_the_run_of_a_slot_has_its_files_and_its_deadline(monthly):
    monthly.write(1, 2, 3)
    spec, slot = spec_with(monthly, ready_within_hours=4), slot_of_month(4)
    window, _ = window_of(spec, slot)
    run = run_of(spec, slot, window, now=slot)
    assert run.run_id == run_id_of(spec, slot) == "points-20130401t0600"
    assert run.deadline == slot + timedelta(hours=4)
    assert [file.path for file in run.data.files] == [f"{monthly.folder}/2013-0{month}.parquet" for month in (1, 2)]
    assert run.identity()[f"data.{monthly.folder}/2013-01.parquet"] == window.files[0].sha256


@pytest.mark.parametrize(("hours", "has_deadline"), [(3.99, True), (4.0, False), (9.0, False)])
def test_a_deadline_that_has_passed_is_none(monthly, hours, has_deadline):
    spec, slot = spec_with(monthly, ready_within_hours=4), slot_of_month(4)
    run = run_of(spec, slot, None, now=slot + timedelta(hours=hours))
    assert (run.deadline is not None) is has_deadline


def test_a_relative_store_is_one_in_the_current_folder(monthly, tmp_path, monkeypatch):
    spec = spec_with(monthly, run=monthly.spec.run | {"store": {"url": "models"}})
    monkeypatch.chdir(tmp_path)
    assert run_of(spec, slot_of_month(4), None, now=slot_of_month(4)).store.url == str(tmp_path / "models")


@pytest.mark.parametrize(
    ("overlap", "others", "action"),
    [
        ("queue", [], "go"),
        ("queue", [5, 6], "go"),
        ("queue", [3], "wait"),
        ("skip", [3], "skip"),
        ("skip", [5], "go"),
        ("supersede", [2, 3], "supersede"),
    ],
)
def test_only_earlier_slots_matter_to_a_slot(monthly, overlap, others, action):
    spec = spec_with(monthly, overlap=overlap)
    found = overlap_of(spec, slot_of_month(4), [slot_of_month(other) for other in others])
    assert found.action == action
    assert action == "go" or "points-2013" in found.why


def test_ticks_are_those_of_the_schedule_in_its_time_zone(monthly):
    spec = spec_with(monthly, schedule="0 6 1 * *", timezone="America/New_York")
    found = ticks(spec, since=datetime(2013, 2, 20, tzinfo=UTC), until=datetime(2013, 5, 1, 9, 59, tzinfo=UTC))
    assert [f"{tick:%m-%d %H:%M}" for tick in found] == ["03-01 11:00", "04-01 10:00"]  # Clocks changed on March 10.
    assert ticks(spec, since=found[-1], until=found[-1]) == ()
    assert ticks(spec, since=found[0], until=found[1]) == (found[1],)


@pytest.mark.parametrize(
    ("zone", "schedule", "found"),
    [
        ("America/Havana", "30 0 * * *", ["2026-03-07 23:30"]),
        ("America/Santiago", "0 0 * * 0", ["2026-09-05 23:00"]),
        ("America/Havana", "0 1 * * *", []),
        ("America/Havana", "0 * * * *", []),
        ("America/New_York", "30 2 * * *", []),
    ],
)
def test_a_tick_on_the_evening_before_is_known(monthly, zone, schedule, found):
    spec = spec_with(monthly, schedule=schedule, timezone=zone)
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    ticks_there = ticks_of_the_evening_before(spec, since=begin, until=begin + timedelta(days=365))
    assert [f"{tick.astimezone(spec.zone):%Y-%m-%d %H:%M}" for tick in ticks_there] == found


def test_a_day_with_23_or_25_hours_has_one_tick_of_a_daily_schedule(monthly):
    spec = spec_with(monthly, schedule="30 2 * * *", timezone="Europe/Berlin")
    for first, last in (((3, 27), (4, 1)), ((10, 23), (10, 28))):
        begin, end = (datetime(2026, *day, 12, tzinfo=UTC) for day in (first, last))
        found = ticks(spec, since=begin, until=end)
        assert len(found) == (end - begin).days
        assert len({tick.date() for tick in found}) == len(found)


@pytest.mark.parametrize(
    ("zone", "schedule", "first", "found"),
    [
        ("America/Havana", "0 0 * * *", (2026, 3, 7), ["07 00:00-0500", "07 23:00-0500", "09 00:00-0400"]),
        ("America/Havana", "0 1 * * *", (2026, 3, 7), ["07 01:00-0500", "08 01:00-0400", "09 01:00-0400"]),
        ("Antarctica/Casey", "30 2 * * *", (2020, 10, 3), ["03 02:30+0800", "03 23:30+0800", "05 02:30+1100"]),
        ("America/Havana", "30 0 * * *", (2026, 10, 31), ["31 00:30-0400", "01 00:30-0400", "02 00:30-0500"]),
    ],
)
def test_a_tick_at_a_time_that_the_clock_leaves_out_is_earlier(monthly, zone, schedule, first, found):
    spec = spec_with(monthly, schedule=schedule, timezone=zone)
    begin = datetime(*first, tzinfo=spec.zone)
    ticked = ticks(spec, since=begin - timedelta(seconds=1), until=begin + timedelta(days=9))[:3]
    assert [f"{tick.astimezone(spec.zone):%d %H:%M%z}" for tick in ticked] == found


def test_an_hour_that_the_clock_shows_twice_has_one_tick_of_an_hourly_schedule(monthly):
    spec = spec_with(monthly, schedule="0 * * * *", timezone="Europe/Berlin")
    begin = datetime(2026, 10, 24, 23, 30, tzinfo=UTC)
    found = ticks(spec, since=begin, until=begin + timedelta(hours=3))
    assert [f"{tick:%H:%M}" for tick in found] == ["00:00", "02:00"]


def test_a_schedule_that_is_none_is_refused(monthly):
    with pytest.raises(SpecError, match="schedule: 'daily at six' is no cron expression"):
        require_cron(spec_with(monthly, schedule="daily at six"))
    with pytest.raises(SpecError, match="schedule: required"):
        require_cron(spec_with(monthly, schedule=None))
    assert ticks(monthly.spec, since=slot_of_month(1), until=slot_of_month(4)) == ()


def log_with(monthly: Monthly, *ends: tuple[int, str | None]) -> ModelsLog:
    log = ModelsLog(open_store(monthly.store_folder), "points")
    log.store.check()
    for month, outcome in ends:
        slot = slot_of_month(month)
        log.open_slot(SlotStart(slot=slot, window=Window(files=()), gate=PASSED))
        if outcome is not None:
            log.end_slot(SlotEnd(slot=slot, outcome=outcome, why="because"))
    return log


def test_missed_slots_are_the_ticks_since_the_newest_slot(monthly):
    slots = log_with(monthly, (3, "failed"), (4, "promoted")).read().slots
    all_ticks = [slot_of_month(month) for month in range(1, 10)]
    assert missed_slots(slots, all_ticks, until=slot_of_month(8)) == tuple(map(slot_of_month, (5, 6, 7)))
    assert missed_slots(slots, all_ticks, until=slot_of_month(5)) == ()
    assert missed_slots({}, all_ticks, until=slot_of_month(8)) == ()  # Nothing was missed before the first slot.


def test_slots_that_were_missed_before_one_that_ended_before_it_began_are_missed_still(monthly):
    log = log_with(monthly, (3, "promoted"))
    log.open_slot(SlotStart(slot=slot_of_month(4), window=Window(files=()), gate=PASSED))
    # The flow run of June died in April, which it ran first, until it was given up.
    log.end_slot(SlotEnd(slot=slot_of_month(6), outcome="failed", why="its flow run died 6 times"))
    all_ticks = [slot_of_month(month) for month in range(1, 10)]
    found = missed_slots(log.read().slots, all_ticks, until=slot_of_month(8))
    assert found == (slot_of_month(5), slot_of_month(7))


def test_of_several_starts_of_one_slot_the_first_counts(monthly):
    log = log_with(monthly)
    run = run_of(monthly.spec, slot_of_month(4), None, now=slot_of_month(4))
    first = SlotStart(slot=slot_of_month(4), window=Window(files=()), gate=PASSED, run=run)
    other = first.model_copy(update={"changes": ("another window",)})
    assert log.open_slot(first) == first
    assert ModelsLog(log.store, "points").open_slot(other) == first
    log.end_slot(SlotEnd(slot=first.slot, outcome="failed", why="a bug"))
    assert ModelsLog(log.store, "points").open_slot(other) == other  # It ended without a candidate: it begins again.
    state = log.read().slots[first.slot]
    assert (state.is_open, state.is_done, state.ends) == (True, False, 1)


def test_a_slot_has_one_outcome_until_it_is_begun_again(monthly):
    log = log_with(monthly, (4, "superseded"))
    log.end_slot(SlotEnd(slot=slot_of_month(4), outcome="failed", why="later"))
    assert log.read().slots[slot_of_month(4)].end.outcome == "superseded"


def test_a_file_that_belongs_to_several_periods_is_refused(monthly):
    monthly.write(1, 2, 3)
    spec = spec_with(monthly, data={"period": "day"})
    with pytest.raises(SpecError, match=r"2013-03.parquet is a file of several periods; name each day by fields"):
        window_of(spec, slot_of_month(4))


def test_a_window_without_rows_is_no_data(monthly):
    monthly.write(1, 2)
    monthly.write(3, rows=0)
    with pytest.raises(NoDataError, match=r"there are no rows to evaluate with: .*2013-03\.parquet"):
        window_of(monthly.spec, slot_of_month(4))


def test_a_candidate_of_a_slot_that_was_superseded_is_not_recorded(monthly):
    log = log_with(monthly, (4, "superseded"))
    with pytest.raises(SlotEndedError, match="the slot has ended as superseded"):
        log.add(candidate_at(4).model_copy(update={"slot": slot_of_month(4)}))
    assert log.read().candidates == {}


def test_the_window_before_is_the_newest_earlier_one_that_was_accepted(monthly):
    log = log_with(monthly)
    run = run_of(monthly.spec, slot_of_month(4), None, now=slot_of_month(4))
    for month, accepted in ((2, True), (3, True), (4, False), (6, True)):
        start = SlotStart(
            slot=slot_of_month(month), window=Window(files=()), gate=PASSED, run=run if accepted else None
        )
        log.open_slot(start)
    assert log.read().window_before(slot_of_month(5)).slot == slot_of_month(3)
    assert log.read().window_before(slot_of_month(2)) is None


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"run": {"deadline": "2026-01-01T00:00Z"}}, "run: must not have deadline"),
        ({"run": {"config": {"data": ["a.csv"]}}}, "run: config.data is where each slot's files are passed"),
        ({"run": {"step": 1}}, r"run: must be a run spec: step: .*"),
        ({"publish": {"model": None}}, "evaluation: needs publish.model"),
        ({"data": {"held_back_periods": 0}}, "evaluation: needs data.held_back_periods"),
        ({"overlap": "cancel"}, "overlap"),
        ({"data": {"files": "lake/*.parquet"}}, "data.period: needs fields of strftime in files"),
        ({"publish": {"model": "a:b", "mlflow": {"tracking_uri": "http://me:word@host"}}}, "holds credentials"),
        ({"publish": {"model": None, "example": "a:b"}, "evaluation": None}, "publish.example: needs publish.model"),
    ],
)
def test_what_is_wrong_in_retrain_toml_is_named(monthly, fields, problem):
    monthly.write_spec(**fields)
    with pytest.raises(SpecError, match=problem):
        RetrainSpec.from_toml(monthly.file)
