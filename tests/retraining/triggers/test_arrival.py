"""Data that arrives begins one slot: when it is complete, once however often it is seen, not for what is known."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest

from segue.data.files import Listed, hash_of, listed, written_at
from segue.errors import DataUnreadableError, SameDataError, SpecError
from segue.prefect.slots.slot_ticks import begins_for_data
from segue.retraining.gate.record import GateResult
from segue.retraining.model_record import SlotEnd, SlotStart, Trigger
from segue.retraining.models import ModelsLog
from segue.retraining.pages import history_page
from segue.retraining.slots import run_of
from segue.retraining.spec import RetrainSpec
from segue.retraining.triggers import trigger_look as looks
from segue.retraining.triggers.trigger_look import unstarted
from segue.retraining.window import window_of
from segue.spec import DataAccess
from segue.stores import open_store
from segue.testing.faulty_store import FaultyStore
from tests.retraining.monthly import Monthly, slot_of_month


def test_data_begins_a_slot_when_it_has_not_changed_for_the_time_to_settle(watched):
    first = watched.look()
    assert (first.trigger, "complete in 300 s" in first.lines[0]) == (None, True)
    assert watched.look(after_minutes=4).trigger is None
    found = watched.look(after_minutes=1).trigger
    assert (found.cause, found.slot) == ("arrival", watched.now)
    assert "the first data has arrived: " in found.why
    assert "2013-01.parquet" in found.why


def test_data_that_is_seen_again_begins_no_second_slot(watched):
    watched.look()
    slot = watched.look(after_minutes=5).trigger.slot
    for _ in range(3):
        again = watched.look(after_minutes=10)
        assert (again.trigger, "these files began the slot" in again.lines[0]) == (None, True)
    assert [*watched.models.triggers] == [slot]
    watched.run_slot(slot, outcome="failed")
    again = watched.look(after_minutes=10)  # Nor is a slot that failed begun again.
    assert (again.trigger, "these files began the slot" in again.lines[0]) == (None, True)


def test_looks_at_the_same_moment_begin_one_slot(watched):
    watched.look()
    watched.now += timedelta(minutes=5)
    with ThreadPoolExecutor(4) as pool:
        found = {look.trigger for look in pool.map(lambda _: watched.look(), range(4)) if look.trigger is not None}
    assert len(found) == len(watched.models.triggers) == 1


def test_a_slot_that_was_asked_for_is_not_forgotten_until_it_begins(watched):
    watched.look()
    trigger = watched.look(after_minutes=5).trigger
    assert unstarted(watched.models, now=watched.now) == [trigger]
    watched.run_slot(trigger.slot)
    assert unstarted(watched.models, now=watched.now) == []


def test_a_trigger_whose_answer_was_lost_is_recorded_once(watched):
    failing = iter([True])
    store = FaultyStore(
        open_store(watched.monthly.store_folder),
        fails=lambda method, key: method == "put_if_absent" and next(failing, False),
        after=True,
    )
    ModelsLog(store, "points").trigger("arrival", "a", why="new data", now=watched.now)
    assert len(watched.models.triggers) == 1


def test_two_reasons_in_the_same_second_have_slots_of_their_own(watched):
    log = watched.monthly.log
    slots = [log.trigger("arrival", key, why="new data", now=watched.now).slot for key in ("a", "b", "a")]
    assert slots == [watched.now, watched.now + timedelta(seconds=1), watched.now]


def test_a_file_that_grows_is_waited_for(watched):
    for rows in (100, 150, 200):
        watched.monthly.write(3, rows=rows)
        assert watched.look(after_minutes=5).trigger is None
    assert watched.look(after_minutes=5).trigger is not None


def test_a_file_that_is_written_with_an_old_time_is_waited_for(watched):
    watched.look()
    watched.monthly.write(3, rows=300)
    os.utime(watched.monthly.folder / "2013-03.parquet", (0, 0))
    assert watched.look(after_minutes=5).trigger is None
    assert watched.look(after_minutes=5).trigger is not None


def test_with_a_marker_files_are_complete_when_it_is_there(watched):
    watched.monthly.write_spec(trigger={"arrival": {"marker": "_SUCCESS"}})
    waits = watched.look(after_minutes=60)
    assert (waits.trigger, f"there is no _SUCCESS in {watched.monthly.folder}" in waits.lines[0]) == (None, True)
    (watched.monthly.folder / "_SUCCESS").touch()
    assert watched.look().trigger is not None


def test_a_marker_of_an_earlier_delivery_does_not_make_the_next_one_complete(watched):
    folder = watched.monthly.folder
    watched.monthly.write_spec(
        trigger={"arrival": {"marker": "_SUCCESS"}},
        data={"files": f"{folder}/*.parquet", "period": None, "periods": 2},
    )
    marker = folder / "_SUCCESS"
    marker.touch()
    watched.run_slot(watched.look().trigger.slot)
    for month in (4, 5, 6):  # One delivery.
        watched.monthly.write(month)
        waits = watched.look(after_minutes=1)
        assert (waits.trigger, "it belongs to an earlier delivery" in waits.lines[0]) == (None, True)
    marker.touch()
    found = watched.look()
    assert found.trigger.why.count("parquet") == 3
    watched.run_slot(found.trigger.slot)
    watched.monthly.write(6, slope=3.0)
    watched.look(after_minutes=1)
    assert watched.look(after_minutes=5).trigger is not None  # A delivery without a marker settles.


@pytest.mark.parametrize(("marker", "is_complete"), [(99, False), (100, True), (101, True)])
def test_a_marker_counts_from_the_time_of_the_newest_file_in_its_folder(watched, marker, is_complete):
    watched.monthly.write_spec(trigger={"arrival": {"marker": "_SUCCESS"}})
    folder = watched.monthly.folder
    (folder / "_SUCCESS").touch()
    for month, seconds in ((1, 100), (2, 50), (3, 0)):
        os.utime(folder / f"2013-{month:02}.parquet", (seconds, seconds))
    os.utime(folder / "_SUCCESS", (marker, marker))
    assert (watched.look().trigger is not None) == is_complete


def test_a_file_outside_the_window_does_not_make_a_marker_old(watched):
    watched.monthly.write_spec(trigger={"arrival": {"marker": "_SUCCESS"}})
    (watched.monthly.folder / "_SUCCESS").touch()
    watched.monthly.write(4)  # Of the month that has just begun.
    assert watched.look().trigger is not None


def test_a_window_with_a_missing_period_begins_nothing(watched):
    (watched.monthly.folder / "2013-02.parquet").unlink()
    for _ in range(2):
        found = watched.look(after_minutes=10)
        assert (found.trigger, "files are missing: " in found.lines[0]) == (None, True)
    watched.monthly.write(2)
    watched.look()
    assert watched.look(after_minutes=5).trigger is not None


def test_a_slot_of_the_schedule_makes_a_trigger_on_the_same_files_needless(watched):
    watched.run_slot(slot_of_month(4))
    watched.look(after_minutes=60)
    found = watched.look(after_minutes=10)
    assert (found.trigger, found.lines) == (None, ("nothing new: a slot has begun with these files",))
    watched.monthly.write(3)  # The same bytes again.
    watched.look(after_minutes=10)
    assert watched.look(after_minutes=10).trigger is None
    watched.monthly.write(3, slope=3.0)
    watched.look(after_minutes=10)
    found = watched.look(after_minutes=10).trigger
    assert found.why.startswith("changed data: ")
    assert found.why.count("parquet") == 1


def test_a_file_that_is_written_to_while_it_is_read_begins_nothing_before_it_is_complete(watched, monkeypatch):
    watched.run_slot(slot_of_month(4))
    watched.look(after_minutes=60)
    monkeypatch.setattr(looks, "hash_of", lambda path, access: (watched.monthly.write(3, slope=3.0), hash_of(path))[1])
    with pytest.raises(DataUnreadableError, match="was written to while it was read"):
        watched.look(after_minutes=10)
    monkeypatch.undo()
    assert watched.look(after_minutes=1).trigger is None
    assert watched.look(after_minutes=5).trigger.why.startswith("changed data: ")


def test_a_file_that_is_put_back_as_it_was_begins_a_slot_again(watched):
    path = watched.monthly.folder / "2013-03.parquet"
    before, times = path.read_bytes(), path.stat()

    def slot() -> Trigger:
        watched.look()
        found = watched.look(after_minutes=5).trigger
        watched.run_slot(found.slot)
        assert watched.look(after_minutes=5).trigger is None
        return found

    first = slot()
    watched.monthly.write(3, slope=3.0)
    second = slot()
    path.write_bytes(before)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert first.slot < second.slot < slot().slot


def test_a_bad_delivery_that_was_refused_and_is_put_back_begins_nothing(watched):
    path = watched.monthly.folder / "2013-03.parquet"
    before = path.read_bytes()
    watched.run_slot(slot_of_month(4))
    watched.now += timedelta(hours=1)
    watched.monthly.write(3, rows=100)
    watched.look()
    watched.run_slot(watched.look(after_minutes=5).trigger.slot, outcome="data_gate")
    path.write_bytes(before)
    watched.look(after_minutes=5)
    found = watched.look(after_minutes=5)  # The newest model was trained on it.
    assert (found.trigger, found.lines) == (None, ("nothing new: a slot has begun with these files",))


def test_a_slot_of_the_past_is_needless_beside_the_one_before_it_with_the_same_files(watched):
    spec = watched.monthly.spec
    watched.run_slot(slot_of_month(4))
    watched.monthly.write(4)
    watched.run_slot(slot_of_month(5))
    late = slot_of_month(4) + timedelta(hours=1)
    window, _ = window_of(spec, late)
    assert watched.models.trained_on(window, but=late) == slot_of_month(4)


@pytest.mark.parametrize("is_known", [True, False])
def test_data_that_arrives_while_a_slot_runs_is_trained_where_later_slots_are_left_out(watched, is_known):
    watched.monthly.write_spec(overlap="skip")
    watched.look()
    first = watched.look(after_minutes=5).trigger.slot
    if is_known:  # Before, its data is being checked.
        watched.open_slot(first)
    watched.monthly.write(3, slope=3.0)
    for _ in range(3):
        found = watched.look(after_minutes=5)
    assert (found.trigger, "after the end of the running slot: overlap is skip" in found.lines[0]) == (None, True)
    watched.monthly.log.end_slot(SlotEnd(slot=first, outcome="failed", why="out of memory"))
    second = watched.look(after_minutes=5).trigger
    watched.run_slot(second.slot)
    assert watched.look(after_minutes=5).trigger is None


def test_a_slot_that_was_left_out_begins_again_and_once(watched):
    watched.monthly.write_spec(overlap="skip")
    watched.look()
    left_out = watched.look(after_minutes=5).trigger
    watched.monthly.log.end_slot(SlotEnd(slot=left_out.slot, outcome="skipped", why="another is not done"))
    again = watched.look(after_minutes=5).trigger
    assert again.slot > left_out.slot
    watched.run_slot(again.slot)
    assert watched.look(after_minutes=5).trigger is None


def test_a_slot_that_was_left_out_because_another_has_its_data_does_not_begin_again(watched):
    watched.look()
    asked = watched.look(after_minutes=5).trigger
    watched.run_slot(slot_of_month(4) - timedelta(hours=1))  # By hand.
    with pytest.raises(SameDataError):
        watched.run_slot(asked.slot)
    watched.monthly.log.end_slot(SlotEnd(slot=asked.slot, outcome="skipped", why="its files are those of another"))
    for _ in range(2):
        assert watched.look(after_minutes=5).lines == ("nothing new: a slot has begun with these files",)


def test_new_data_of_a_period_that_is_complete_begins_a_slot_and_that_of_a_later_one_does_not(watched):
    watched.run_slot(slot_of_month(4))
    watched.monthly.write(4)
    watched.look(after_minutes=10)
    assert watched.look(after_minutes=10).trigger is None
    watched.now = slot_of_month(5)
    watched.look()
    assert watched.look(after_minutes=5).trigger.why == f"new data: {watched.monthly.folder}/2013-04.parquet"


def test_time_alone_begins_no_slot_where_missing_files_are_accepted(watched):
    watched.monthly.write_spec(data={"on_missing": "warn"})
    watched.run_slot(slot_of_month(4))
    watched.now = slot_of_month(4) + timedelta(days=20)
    watched.look()
    assert watched.look(after_minutes=10).trigger is None


@pytest.mark.parametrize("outcome", ["promoted", "failed"])
def test_a_slot_that_is_there_for_new_data_finds_the_one_that_has_it(watched, outcome):
    spec, slot = watched.monthly.spec, slot_of_month(4)
    watched.run_slot(slot, outcome=outcome)
    trigger = watched.monthly.log.trigger("arrival", "seen", why="new data", now=slot + timedelta(hours=1))
    window, _ = window_of(spec, trigger.slot)
    same = watched.models.trained_on(window, but=trigger.slot)
    assert same == (slot if outcome == "promoted" else None)  # One that failed has not trained on it.
    assert watched.models.trained_on(window, but=slot) is None


def test_of_two_slots_for_the_same_data_at_the_same_moment_one_begins(watched):
    spec, slots = watched.monthly.spec, [slot_of_month(4) + timedelta(minutes=each) for each in range(4)]
    window, _ = window_of(spec, slots[0])
    barrier = Barrier(len(slots))

    def begin(slot: datetime) -> bool:
        log = watched.monthly.log
        run = run_of(spec, slot, window, now=slot)
        start = SlotStart(slot=slot, window=window, gate=GateResult(outcome="passed", expectations=1, rows=1), run=run)
        barrier.wait()
        try:
            log.open_slot(start, is_for_new_data=True)
        except SameDataError:
            return False
        return True

    with ThreadPoolExecutor(len(slots)) as pool:
        assert list(pool.map(begin, slots)).count(True) == 1
    assert len(watched.models.slots) == 1


def test_only_slots_of_data_and_of_a_schedule_beside_it_are_needless_without_new_data(watched):
    spec, log, tick = watched.monthly.spec, watched.monthly.log, slot_of_month(4)
    by_data = log.trigger("arrival", "a", why="new data", now=tick + timedelta(hours=1)).slot
    by_drift = log.trigger("drift", "b", why="drift", now=tick + timedelta(hours=2)).slot
    by_hand = tick + timedelta(hours=3)
    assert [begins_for_data(spec, log.read(), slot) for slot in (by_data, by_drift, by_hand, tick)] == [
        True,
        True,
        False,
        True,
    ]
    unwatched = spec.model_copy(update={"trigger": None})
    assert not begins_for_data(unwatched, log.read(), tick)


def test_the_history_says_what_began_a_slot(watched):
    watched.look()
    slot = watched.look(after_minutes=5).trigger.slot
    watched.run_slot(slot)
    assert "the first data has arrived" in history_page(watched.models, zone=watched.monthly.spec.zone)


def test_a_listing_tells_files_that_were_written_again_from_those_that_were_not(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("a\n1\n")
    before = listed(f"{tmp_path}/")
    assert [(each.path, each.size_bytes) for each in before] == [(str(path), 4)]
    assert listed(f"{tmp_path}/") == before
    os.utime(path, (1, 1))
    assert listed(f"{tmp_path}/") != before


def test_a_listing_of_a_bucket_tells_files_by_their_entity_tags(bucket):
    def put(content: bytes) -> list[Listed]:
        bucket.client.put_object(Bucket=bucket.name, Key="lake/a.csv", Body=content)
        return listed(f"s3://{bucket.name}/lake/", DataAccess(endpoint_url=bucket.url))

    before, after = put(b"a\n1\n"), put(b"a\n2\n")
    assert [(each.path, each.size_bytes) for each in before] == [(f"s3://{bucket.name}/lake/a.csv", 4)]
    assert after[0][:2] == before[0][:2]
    assert after != before
    assert put(b"a\n2\n") == after


def test_the_times_of_a_folder_are_those_of_all_its_files(bucket, tmp_path):
    (tmp_path / "a.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / "older").mkdir()
    os.utime(tmp_path / "a.csv", (0, 0))
    times = written_at(str(tmp_path))
    assert times.keys() == {"a.csv", "_SUCCESS"}
    assert times["a.csv"] == datetime(1970, 1, 1, tzinfo=UTC)
    assert times["_SUCCESS"] > times["a.csv"]
    before = datetime.now(UTC) - timedelta(seconds=2)
    for name in ("a.csv", "_SUCCESS", "older/b.csv"):
        bucket.client.put_object(Bucket=bucket.name, Key=f"times/{name}", Body=b"a")
    found = written_at(f"s3://{bucket.name}/times", DataAccess(endpoint_url=bucket.url))
    assert found.keys() == {"a.csv", "_SUCCESS"}
    assert all(time is not None and time >= before for time in found.values())


@pytest.mark.parametrize(
    ("trigger", "problem"),
    [
        ({}, r"trigger.drift: needs \[trigger.arrival\] or \[trigger.drift\]"),
        ({"every_minutes": 0, "arrival": {}}, "trigger.every_minutes"),
        ({"arrival": {"settle": 5}}, "trigger.arrival.settle"),
        ({"arrival": {"settle_minutes": -1}}, "trigger.arrival.settle_minutes"),
        ({"arrival": {"marker": "a/_SUCCESS"}}, "trigger.arrival.marker"),
        ({"arrival": {}, "event": ""}, "trigger.event"),
        ({"drift": {"max_psi": 0.25}}, "trigger.drift.data"),
        ({"drift": {"data": "served/%Y.csv", "max_psi": 1}}, "trigger.drift.data: cannot have fields of strftime"),
        ({"drift": {"data": "served/"}}, "trigger.drift.max_ks: needs max_psi or max_ks"),
        ({"drift": {"data": "served/", "max_ks": 1.5}}, "trigger.drift.max_ks"),
        ({"drift": {"data": "served/", "max_psi": 0.2, "columns": []}}, "trigger.drift.columns"),
    ],
)
def test_wrong_settings_of_a_trigger_are_named_with_the_file_and_the_key(tmp_path, trigger, problem):
    monthly = Monthly(tmp_path / "points")
    monthly.write_spec(trigger=trigger)
    with pytest.raises(SpecError, match=problem) as caught:
        RetrainSpec.from_toml(monthly.file)
    assert str(monthly.file) in str(caught.value)
