"""The run's log: linear with several writers, fenced, gaps reported, and no record written twice."""

from __future__ import annotations

import multiprocessing as mp
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from segue.errors import FencedError, LogMovedError
from segue.runlog import keys
from segue.runlog.entries import Entry, QuarantineEntry, encode
from segue.runlog.log import RunLog, Stamp
from segue.stores import LocalStore, StoreReadError, StoreWriteError
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore

RUN = "run-1"


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path / "store").create()


def note(number: int, *, epoch: int = 0, reason: str = "a note") -> Callable[[Stamp], Entry]:
    """Builds a small record with a number."""

    def build(stamp: Stamp) -> Entry:
        return QuarantineEntry.model_validate(stamp(epoch=epoch) | {"slot": number, "reason": reason})

    return build


def numbers(log: RunLog) -> list[int]:
    """The notes of a log, in order."""
    return [slot.entry.slot for slot in log.slots if isinstance(slot.entry, QuarantineEntry)]


def test_records_are_read_in_the_order_of_their_slots(store: LocalStore) -> None:
    log = RunLog(store, RUN, clock=FakeClock())
    written = [log.append(note(number)) for number in range(12)]
    again = RunLog(store, RUN).reload()
    assert again.slots == log.slots == tuple(written)
    assert [slot.number for slot in again.slots] == numbers(again) == list(range(12))
    assert (again.next_slot, again.damage) == (12, ())
    assert written[0].entry.written_at == FakeClock().now()
    assert len({slot.entry.entry_id for slot in written}) == 12


def test_a_writer_reads_the_records_of_others_before_it_writes(store: LocalStore) -> None:
    one, other = RunLog(store, RUN), RunLog(store, RUN)
    one.append(note(0))
    seen: list[list[int]] = []

    def build(stamp: Stamp) -> Entry:
        seen.append(numbers(other))
        return note(1)(stamp)

    assert other.append(build).number == 1
    assert seen == [[0]]
    assert numbers(one.refresh()) == [0, 1]


def test_a_record_is_built_again_after_a_lost_race(store: LocalStore) -> None:
    log, rival = RunLog(store, RUN), RunLog(store, RUN)
    seen: list[list[int]] = []

    def build(stamp: Stamp) -> Entry:
        seen.append(numbers(log))
        if len(seen) < 3:
            rival.append(note(100 + len(seen)))
        return note(len(seen))(stamp)

    assert log.append(build).number == 2
    assert seen == [[], [101], [101, 102]]
    assert numbers(RunLog(store, RUN).reload()) == [101, 102, 3]


APPENDS = 200


def append_many(folder: Path, writer: int, start: threading.Barrier) -> None:
    log = RunLog(LocalStore(folder).create(), RUN)
    start.wait()
    for number in range(APPENDS):
        log.append(note(writer * APPENDS + number))


@pytest.mark.matrix
def test_two_processes_that_append_at_once_lose_no_record_and_leave_no_gap(store: LocalStore) -> None:
    context = mp.get_context("spawn")
    start = context.Barrier(2)
    writers = [context.Process(target=append_many, args=(store.root, writer, start)) for writer in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0]
    log = RunLog(store, RUN).reload()
    assert [slot.number for slot in log.slots] == list(range(2 * APPENDS))
    found = numbers(log)
    assert [number for number in found if number < APPENDS] == list(range(APPENDS))
    assert [number for number in found if number >= APPENDS] == list(range(APPENDS, 2 * APPENDS))
    assert log.damage == ()


def test_threads_may_share_one_log(store: LocalStore) -> None:
    log = RunLog(store, RUN)
    with ThreadPoolExecutor(8) as pool:
        slots = list(pool.map(lambda number: log.append(note(number)).number, range(80)))
    assert sorted(slots) == list(range(80))
    assert sorted(numbers(RunLog(store, RUN).reload())) == list(range(80))


def test_a_newer_claim_fences_and_nothing_is_written(store: LocalStore) -> None:
    fenced = RunLog(store, RUN)
    fenced.append(note(0, epoch=1), epoch=1)
    RunLog(store, RUN).append(note(1, epoch=2))
    with pytest.raises(FencedError) as raised:
        fenced.append(note(2, epoch=1), epoch=1)
    assert (raised.value.epoch, raised.value.newer_epoch) == (1, 2)
    assert numbers(RunLog(store, RUN).reload()) == [0, 1]
    fenced.append(note(3))  # A writer without a claim, the controller, cannot be fenced.
    RunLog(store, RUN).append(note(4, epoch=2), epoch=2)
    assert numbers(fenced.refresh()) == [0, 1, 3, 4]


def test_a_claim_that_wins_the_race_for_the_slot_fences_the_other_writer(store: LocalStore) -> None:
    log = RunLog(store, RUN)

    def build(stamp: Stamp) -> Entry:
        RunLog(store, RUN).append(note(1, epoch=2))
        return note(0, epoch=1)(stamp)

    with pytest.raises(FencedError):
        log.append(build, epoch=1)
    assert numbers(RunLog(store, RUN).reload()) == [1]


def test_a_record_for_one_slot_is_refused_when_the_slot_is_taken(store: LocalStore) -> None:
    log = RunLog(store, RUN)
    assert log.append(note(0), at=0).number == 0
    RunLog(store, RUN).append(note(1))
    for at in (0, 1, 3):
        with pytest.raises(LogMovedError) as raised:
            log.append(note(9), at=at)
        assert raised.value.slot == at
    assert log.append(note(2), at=2).number == 2
    assert numbers(RunLog(store, RUN).reload()) == [0, 1, 2]


def test_a_record_for_one_slot_is_refused_when_another_wins_the_race_for_it(store: LocalStore) -> None:
    def build(stamp: Stamp) -> Entry:
        RunLog(store, RUN).append(note(1))
        return note(0)(stamp)

    with pytest.raises(LogMovedError):
        RunLog(store, RUN).append(build, at=0)
    assert numbers(RunLog(store, RUN).reload()) == [1]


class FaultFromSlot:
    """A fault of the store from the put of one slot on, until it is fixed."""

    def __init__(self, slot: int) -> None:
        self.key, self.is_cut, self.is_fixed = keys.log_key(RUN, slot), False, False

    def __call__(self, operation: str, key: str) -> bool:
        self.is_cut |= (operation, key) == ("put_if_absent", self.key)
        return self.is_cut and not self.is_fixed


def test_after_a_lost_answer_the_slot_is_read(store: LocalStore) -> None:
    log = RunLog(FaultyStore(store, fails=lambda operation, key: operation == "put_if_absent", after=True), RUN)
    slots = tuple(log.append(note(number)) for number in range(3))
    assert RunLog(store, RUN).reload().slots == log.slots == slots


def test_a_put_that_did_not_arrive_is_an_error_and_may_be_retried(store: LocalStore) -> None:
    cable = FaultFromSlot(0)
    log = RunLog(FaultyStore(store, fails=cable), RUN)
    for _ in range(3):
        with pytest.raises((StoreWriteError, StoreReadError)):
            log.append(note(0))
    assert (log.slots, store.list_objects("")) == ((), [])
    cable.is_fixed = True
    assert log.append(note(0)).number == 0
    assert numbers(RunLog(store, RUN).reload()) == [0]


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("rivals", [0, 1, 2])
def test_a_record_that_was_sent_without_an_answer_is_recognized(store: LocalStore, arrives: bool, rivals: int) -> None:
    cable = FaultFromSlot(1)
    log = RunLog(FaultyStore(store, fails=cable, after=arrives), RUN)
    log.append(note(0))
    with pytest.raises(StoreWriteError):
        log.append(note(1))
    with pytest.raises(StoreReadError):
        log.append(note(1))
    cable.is_fixed = True
    others = [100 + rival for rival in range(rivals)]
    for rival in others:
        RunLog(store, RUN).append(note(rival))
    assert log.append(note(1)).number == (1 if arrives else 1 + rivals)
    once = [0, 1, *others] if arrives else [0, *others, 1]
    assert numbers(log) == numbers(RunLog(store, RUN).reload()) == once
    log.append(note(1))  # The first one is written, so this is a new one.
    assert numbers(RunLog(store, RUN).reload()) == [*once, 1]


def test_another_record_is_not_mistaken_for_the_one_whose_answer_was_lost(store: LocalStore) -> None:
    cable = FaultFromSlot(0)
    log = RunLog(FaultyStore(store, fails=cable, after=True), RUN)
    with pytest.raises(StoreWriteError):
        log.append(note(0, epoch=1))
    cable.is_fixed = True
    assert [log.append(note(0, epoch=2)).number, log.append(note(1, epoch=1)).number] == [1, 2]
    assert log.append(note(0, epoch=1)).number == 0


def test_a_record_whose_answer_was_lost_is_fenced_like_any_other(store: LocalStore) -> None:
    cable = FaultFromSlot(0)
    log = RunLog(FaultyStore(store, fails=cable), RUN)
    with pytest.raises(StoreWriteError):
        log.append(note(0, epoch=1), epoch=1)
    cable.is_fixed = True
    RunLog(store, RUN).append(note(1, epoch=2))
    with pytest.raises(FencedError):
        log.append(note(0, epoch=1), epoch=1)
    assert numbers(RunLog(store, RUN).reload()) == [1]


def test_a_slot_that_is_refused_as_taken_and_read_as_empty_is_an_error_that_may_be_retried(store: LocalStore) -> None:
    store.put(f"{keys.log_key(RUN, 0)}/x", b"a folder where the record should be")
    with pytest.raises(StoreWriteError, match="the slot is taken, but the slot is empty"):
        RunLog(store, RUN).append(note(0))


@pytest.fixture
def damaged(store: LocalStore) -> LocalStore:
    """A log of eight records, of which the third is missing and the fifth is damaged."""
    for number in range(8):
        RunLog(store, RUN).append(note(number, epoch=number))
    store.delete([keys.log_key(RUN, 2)])
    store.put(keys.log_key(RUN, 4), b"garbage")
    store.put(f"{RUN}/log/notes.txt", b"a stranger's file")
    return store


@pytest.mark.parametrize("open_log", [RunLog.reload, RunLog.refresh], ids=["reload", "refresh"])
def test_missing_and_damaged_records_are_reported_and_later_records_are_still_valid(
    damaged: LocalStore, open_log: Callable[[RunLog], RunLog]
) -> None:
    log = open_log(RunLog(damaged, RUN))
    assert [(damage.slot, damage.key) for damage in log.damage] == [(n, keys.log_key(RUN, n)) for n in (2, 4)]
    assert "missing, but later records exist" in log.damage[0].why
    assert "checksum" in log.damage[1].why
    assert [slot.number for slot in log.slots] == numbers(log) == [0, 1, 3, 5, 6, 7]
    assert (log.next_slot, log.highest_epoch) == (8, 7)


def test_a_record_is_appended_at_the_end_and_never_into_a_gap(damaged: LocalStore) -> None:
    assert RunLog(damaged, RUN).append(note(8)).number == 8
    with pytest.raises(LogMovedError):
        RunLog(damaged, RUN).append(note(9), at=2)
    with pytest.raises(FencedError):
        RunLog(damaged, RUN).append(note(9, epoch=6), epoch=6)
    assert [item.key for item in damaged.list_objects(f"{RUN}/log/")][2] == keys.log_key(RUN, 3)


def test_a_damaged_last_record_keeps_its_slot(store: LocalStore) -> None:
    log = RunLog(store, RUN)
    log.append(note(0))
    store.put(keys.log_key(RUN, 1), b"garbage")
    assert log.append(note(2)).number == 2
    assert [damage.slot for damage in log.damage] == [1]


def test_a_restored_record_is_read_again(damaged: LocalStore) -> None:
    log = RunLog(damaged, RUN).reload()
    damaged.put(keys.log_key(RUN, 2), encode(note(2)(log._stamp)))
    assert numbers(log.reload()) == [0, 1, 2, 3, 5, 6, 7]
    assert [damage.slot for damage in log.damage] == [4]


def test_a_store_that_cannot_be_read_is_not_mistaken_for_an_empty_log(store: LocalStore) -> None:
    RunLog(store, RUN).append(note(0))
    for mute in ("list", "get_range"):
        log = RunLog(FaultyStore(store, fails=lambda operation, key, mute=mute: operation == mute), RUN)
        for ask in (log.reload, log.refresh, lambda log=log: log.append(note(1))):
            with pytest.raises(StoreReadError):
                ask()
    assert numbers(RunLog(store, RUN).reload()) == [0]
