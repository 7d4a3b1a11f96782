"""What a log is: its first record, not its name. And which of its slots are read, whatever a listing says."""

from __future__ import annotations

from pathlib import Path

import pytest

from segue.errors import LogCutError, LogReplacedError
from segue.runlog import keys
from segue.runlog.entries import QuarantineEntry, decode
from segue.runlog.log import RunLog
from segue.stores import LocalStore
from segue.stores.base import ObjectInfo
from segue.testing.clock import FakeClock
from tests.runlog.test_log import RUN, note, numbers


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").create()


def opened(store: LocalStore, run_id: str = RUN) -> RunLog:
    return RunLog(store, run_id, clock=FakeClock())


def filled(store: LocalStore, count: int, run_id: str = RUN) -> RunLog:
    log = opened(store, run_id)
    for number in range(count):
        log.append(note(number))
    return log


def test_every_record_has_the_id_of_the_first_one(store):
    log = filled(store, 3)
    first, *others = [decode(store.get(keys.log_key(RUN, n)), key="") for n in range(3)]
    assert first.log_id == ""
    assert {entry.log_id for entry in others} == {first.entry_id} == {log.log_id}


def test_a_log_of_an_earlier_version_goes_on(store):
    log = filled(store, 3)
    for number in range(3):
        slot = log.slots[number]
        from segue.runlog.entries import encode

        store.put(keys.log_key(RUN, number), encode(slot.entry.model_copy(update={"log_id": ""})))
    again = opened(store)
    again.append(note(3))
    assert numbers(opened(store).reload()) == [0, 1, 2, 3]
    assert again.slots[-1].entry.log_id == log.log_id == again.log_id


def of_another_log(store: LocalStore, number: int) -> None:
    """A writer that has outlived another log of this name wins the race for a slot."""
    entry = QuarantineEntry.model_validate(
        opened(store)._stamp(epoch=9) | {"slot": 99, "reason": "late", "log_id": "0" * 32}
    )
    from segue.runlog.entries import encode

    store.put(keys.log_key(RUN, number), encode(entry))


@pytest.mark.parametrize("at", [3, 5])
def test_a_record_of_another_log_takes_its_slot_and_means_nothing(store, at):
    log = filled(store, 3)
    of_another_log(store, at)
    for number in range(3, 7):
        log.append(note(number))
    for reader in (log, opened(store).reload()):
        assert (numbers(reader), reader.damage, reader.next_slot, reader.highest_epoch) == ([*range(7)], (), 8, 0)
        assert at not in [slot.number for slot in reader.slots]


def test_a_log_that_was_replaced_is_noticed_by_whoever_read_it_before(store):
    log = filled(store, 5)
    store.delete([keys.log_key(RUN, number) for number in range(5)])
    for count in (2, 9):  # The new log is shorter than the old one, and then longer.
        new = opened(store)
        while new.refresh().next_slot < count:
            new.append(note(100))
        with pytest.raises(LogReplacedError) as caught:
            log.append(note(5))
        assert (caught.value.run_id, caught.value.is_there) == (RUN, count == 9) or count == 2
    assert numbers(new) == [100] * 9


def test_a_log_that_was_replaced_by_a_longer_one_is_noticed_by_whoever_only_reads(store):
    log = filled(store, 3)
    store.delete([keys.log_key(RUN, number) for number in range(3)])
    filled(store, 6)
    with pytest.raises(LogReplacedError):
        log.refresh()


def test_a_writer_that_was_at_work_during_a_deletion_ends_and_what_it_left_is_no_log(store):
    log = filled(store, 5)
    key = keys.log_key(RUN, 5)
    put = store.put_if_absent

    def put_while_the_run_is_deleted(name: str, data: bytes) -> bool:
        store.delete([keys.log_key(RUN, number) for number in range(5)])
        return put(name, data)

    store.put_if_absent = put_while_the_run_is_deleted  # type: ignore[method-assign]
    assert log.append(note(5)).number == 5
    del store.put_if_absent
    with pytest.raises(LogReplacedError):
        log.append(note(6))
    for read in (opened(store).reload, opened(store).refresh, lambda: opened(store).append(note(0))):
        with pytest.raises(
            LogCutError, match=r"first readable record is 5.*Fix: .*delete the remaining objects"
        ) as caught:
            read()
        assert caught.value.begins_with == 5
    store.delete([key])  # As the fix says.
    assert opened(store).append(note(0)).number == 0


def test_a_first_record_that_is_lost_alone_ends_no_run(store):
    filled(store, 3)
    store.delete([keys.log_key(RUN, 0)])
    log = opened(store).reload()
    assert ([damage.slot for damage in log.damage], numbers(log)) == ([0], [1, 2])
    assert log.append(note(3)).entry.log_id == log.slots[0].entry.log_id


def test_a_newest_record_that_was_damaged_since_it_was_read_is_no_other_log(store):
    log = filled(store, 3)
    store.put(keys.log_key(RUN, 2), b"garbage")
    log.append(note(3))
    assert numbers(log) == [0, 1, 2, 3]
    store.put(keys.log_key(RUN, 0), b"garbage")
    store.put(keys.log_key(RUN, 3), b"garbage")
    log.append(note(4))
    assert numbers(opened(store).reload()) == [1, 4]


@pytest.mark.parametrize("shown", [3, 4, 6, 40])
def test_a_slot_that_a_listing_shows_and_that_is_not_there_is_no_part_of_the_log(store, shown, monkeypatch):
    filled(store, 3)
    listed = store.list_objects

    def wrong(prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        changed = {keys.log_key(RUN, 2): keys.log_key(RUN, shown)}
        return sorted(ObjectInfo(changed.get(key, key), size) for key, size in listed(prefix, after=after))

    monkeypatch.setattr(store, "list_objects", wrong)
    log = opened(store).reload()
    assert (log.next_slot, log.damage, numbers(log)) == (3, (), [0, 1, 2])


def test_an_own_record_that_was_refused_as_taken_and_is_then_misread_is_not_written_twice(store, monkeypatch):
    log = filled(store, 2)
    put, get = store.put_if_absent, store.get
    monkeypatch.setattr(store, "put_if_absent", lambda key, data: put(key, data) and False)  # A retry of the client.
    monkeypatch.setattr(store, "get", lambda key: get(key)[:-1] + b"!")
    assert log.append(note(2)).number == 2
    assert numbers(opened(store).reload()) == [0, 1, 2]
