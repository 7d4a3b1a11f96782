"""What a store answers to an append is not taken for what it did: the record itself is looked at."""

from __future__ import annotations

import pytest

from segue.errors import LogMovedError
from segue.runlog import keys
from segue.runlog.log import RunLog
from segue.stores import LocalStore, StoreWriteError
from segue.testing.faulty_store import FaultyStore
from tests.runlog.test_log import RUN, note, numbers


class RefusesItsOwn(FaultyStore):
    """Its client repeated a put whose answer was lost, and the repetition was refused: as S3 answers 412."""

    puts = 0

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.puts += 1
        assert self.puts < 10, "its writer does not recognize its own records"
        self.inner.put_if_absent(key, data)
        return False


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


def test_an_own_record_that_was_refused_because_of_itself_is_written_once(store):
    log = RunLog(RefusesItsOwn(store, fails=lambda *_: False), RUN)
    for number in range(3):
        assert log.append(note(number)).number == number
    assert numbers(RunLog(store, RUN).reload()) == [0, 1, 2]


def test_the_record_of_another_that_is_there_is_not_taken_for_the_own_one(store):
    log = RunLog(RefusesItsOwn(store, fails=lambda *_: False), RUN)
    log.append(note(0))

    def build(stamp):
        if log.next_slot == 1:
            RunLog(store, RUN).append(note(7))
        return note(1)(stamp)

    assert log.append(build).number == 2
    assert numbers(RunLog(store, RUN).reload()) == [0, 7, 1]


def test_a_record_that_finds_garbage_in_its_slot_is_written_to_the_next_one(store):
    log = RunLog(store, RUN)
    log.append(note(0))

    def build(stamp):
        store.put_if_absent(keys.log_key(RUN, 1), b"of another")
        return note(1)(stamp)

    assert log.append(build).number == 2
    again = RunLog(store, RUN).reload()
    assert (numbers(again), [damage.slot for damage in again.damage]) == ([0, 1], [1])


def test_a_put_that_failed_with_the_record_of_another_in_its_slot_is_an_error(store):
    failing = iter([True])
    log = RunLog(FaultyStore(store, fails=lambda name, key: name == "put_if_absent" and next(failing, False)), RUN)

    def build(stamp):
        store.put_if_absent(keys.log_key(RUN, 0), b"of another")
        return note(1)(stamp)

    with pytest.raises(StoreWriteError):
        log.append(build)


def test_a_record_for_one_slot_is_refused_where_the_log_is_shorter(store):
    log = RunLog(store, RUN)
    log.append(note(0))
    for at in (0, 2):
        with pytest.raises(LogMovedError):
            log.append(note(1), at=at)
    assert log.append(note(1), at=1).number == 1
