"""Packs shorten the reading of a long log, and change nothing of what is read, unless records were lost."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from benchmarks.waiting.remote_store import RemoteStore
from segue.errors import LogReplacedError
from segue.runlog import keys
from segue.runlog.entries import Entry, QuarantineEntry, encode
from segue.runlog.log import RunLog, Stamp
from segue.runlog.packs import PACK_SLOTS
from segue.stores import LocalStore, StoreReadError, StoreWriteError
from segue.testing.faulty_store import FaultyStore
from tests.flows.test_runs import until

RUN = "run-1"
RECORDS = 2 * PACK_SLOTS + 30
AT = datetime(2026, 1, 1, tzinfo=UTC)


def record(number: int, *, reason: str = "a note") -> bytes:
    return encode(QuarantineEntry(entry_id=uuid.uuid4().hex, written_at=AT, slot=number, reason=reason))


def note(number: int) -> Callable[[Stamp], Entry]:
    return lambda stamp: QuarantineEntry.model_validate(stamp(epoch=0) | {"slot": number, "reason": "a note"})


def put_records(store: LocalStore, count: int) -> None:
    for number in range(count):
        store.put(keys.log_key(RUN, number), record(number), durable=False)


def packs_in(store: LocalStore) -> list[str]:
    return [item.key for item in store.list_objects(f"{RUN}/log-packs/")]


def append_until_packed(store: LocalStore, *, packs: int) -> None:
    """Append as a process that writes to the log now and then, until this many packs are there."""
    log = RunLog(store, RUN)

    def is_packed() -> bool:
        log.append(note(0))
        return len(packs_in(store)) >= packs

    until(is_packed, what="the packs")


@pytest.fixture(scope="module")
def packed_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = LocalStore(tmp_path_factory.mktemp("packed") / "store").create()
    put_records(store, RECORDS)
    append_until_packed(store, packs=2)
    return store.root


@pytest.fixture
def store(packed_once: Path, tmp_path: Path) -> LocalStore:
    """A log of two full packs and some more records."""
    return LocalStore(Path(shutil.copytree(packed_once, tmp_path / "store")))


def read(store: LocalStore) -> tuple[RunLog, int]:
    """The log and the number of requests that its reading took."""
    counted = RemoteStore(store)
    log = RunLog(counted, RUN).reload()
    return log, sum(counted.requests.values())


def without_packs(store: LocalStore, folder: Path) -> RunLog:
    shutil.copytree(store.root, folder)
    shutil.rmtree(folder / RUN / "log-packs")
    return RunLog(LocalStore(folder), RUN).reload()


def the_pack(store: LocalStore, number: int = 0) -> Path:
    return store.root / packs_in(store)[number]


@pytest.mark.matrix
def test_a_packed_log_is_read_with_few_requests_and_is_the_same(store: LocalStore, tmp_path: Path) -> None:
    log, requests = read(store)
    plain = without_packs(store, tmp_path / "plain")
    assert log.slots == plain.slots
    assert (log.damage, log.next_slot, log.highest_epoch) == ((), plain.next_slot, plain.highest_epoch)
    listings, first_record, end = 2, 1, 1
    packs = 2 * len(packs_in(store))  # Each with a look at its last record in the log.
    assert requests == listings + first_record + packs + (log.next_slot - 2 * PACK_SLOTS) + end


def test_whoever_appends_packs_what_is_full_and_nothing_else(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").create()
    put_records(store, PACK_SLOTS - 2)
    log = RunLog(store, RUN)
    log.append(note(0))
    assert packs_in(store) == []
    log.append(note(1))
    until(lambda: packs_in(store), what="the pack")
    assert packs_in(store) == [keys.pack_key(RUN, log.log_id, 0)]
    before = the_pack(store).stat().st_mtime_ns
    RunLog(store, RUN).append(note(2))
    assert the_pack(store).stat().st_mtime_ns == before


@pytest.mark.matrix
def test_a_reader_writes_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").create()
    put_records(store, RECORDS)
    refuses = FaultyStore(store, fails=lambda operation, key: operation.startswith("put"))
    assert len(RunLog(refuses, RUN).reload().slots) == RECORDS


def test_a_pack_that_cannot_be_written_costs_the_append_nothing(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").create()
    put_records(store, RECORDS)
    tried: list[str] = []

    def fails(operation: str, key: str) -> bool:
        if operation == "put":
            tried.append(key)
        return operation == "put"

    log = RunLog(FaultyStore(store, fails=fails), RUN)
    assert log.append(note(0)).number == RECORDS
    until(lambda: tried, what="the attempt to write a pack")
    with pytest.raises(StoreWriteError):
        log.store.put("x", b"")
    assert (log.append(note(1)).number, packs_in(store)) == (RECORDS + 1, [])


HARM: dict[str, Callable[[Path], object]] = {
    "cut off": lambda pack: pack.write_bytes(pack.read_bytes()[:-10]),
    "a flipped bit": lambda pack: pack.write_bytes(pack.read_bytes()[:-1] + bytes([pack.read_bytes()[-1] ^ 1])),
    "garbage": lambda pack: pack.write_bytes(b"garbage"),
    "empty": lambda pack: pack.write_bytes(b""),
    "of a newer segue": lambda pack: pack.write_bytes(
        pack.read_bytes().replace(b'"schema_version":1', b'"schema_version":2')
    ),
    "gone": lambda pack: pack.unlink(),
}


@pytest.mark.matrix
@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
def test_a_pack_that_is_damaged_or_missing_is_not_used_and_is_written_again(
    store: LocalStore, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    plain = without_packs(store, tmp_path / "plain").slots
    whole = the_pack(store).read_bytes()
    harm(the_pack(store))
    log, requests = read(store)
    assert (log.slots, log.damage) == (plain, ())
    assert PACK_SLOTS < requests < RECORDS
    append_until_packed(store, packs=2)
    until(lambda: the_pack(store).read_bytes() == whole, what="the repaired pack")


@pytest.mark.matrix
def test_the_pack_of_another_place_is_not_used(store: LocalStore, tmp_path: Path) -> None:
    plain = without_packs(store, tmp_path / "plain").slots
    shutil.copy(the_pack(store, 1), the_pack(store, 0))
    assert read(store)[0].slots == plain


def test_a_record_that_is_lost_or_damaged_after_it_was_packed_is_not_lost(store: LocalStore, tmp_path: Path) -> None:
    plain = without_packs(store, tmp_path / "plain").slots
    store.delete([keys.log_key(RUN, PACK_SLOTS)])
    store.put(keys.log_key(RUN, 7), record(7)[:-20])
    log, _ = read(store)
    assert (log.slots, log.damage) == (plain, ())


@pytest.mark.parametrize("end", [1, PACK_SLOTS, PACK_SLOTS + 10, 2 * PACK_SLOTS - 1])
def test_a_log_that_lost_its_end_is_read_up_to_its_new_end_and_not_from_packs(store: LocalStore, end: int) -> None:
    store.delete([item.key for item in store.list_objects(f"{RUN}/log/")][end:])
    log, _ = read(store)
    assert (log.next_slot, len(log.slots), log.damage) == (end, end, ())
    assert RunLog(store, RUN).append(note(0)).number == end


def test_packs_of_a_state_that_was_undone_are_not_used_and_are_replaced(store: LocalStore) -> None:
    kept = PACK_SLOTS + 10
    store.delete([item.key for item in store.list_objects(f"{RUN}/log/")][kept:])
    for number in range(kept, RECORDS):
        store.put(keys.log_key(RUN, number), record(number, reason="after the restore"), durable=False)
    old = the_pack(store, 1).read_bytes()
    log, requests = read(store)
    assert (log.damage, {slot.entry.reason for slot in log.slots[kept:]}) == ((), {"after the restore"})
    assert PACK_SLOTS < requests < RECORDS
    append_until_packed(store, packs=2)
    until(lambda: the_pack(store, 1).read_bytes() != old, what="the new pack")
    assert read(store)[0].slots[:RECORDS] == log.slots


def test_a_log_that_lost_its_last_record_while_it_is_open_is_an_error(store: LocalStore) -> None:
    log, _ = read(store)
    store.delete([keys.log_key(RUN, log.next_slot - 1)])
    for _ in range(2):
        with pytest.raises(LogReplacedError):
            log.reload()
    assert len(log.slots) == log.next_slot


@pytest.mark.matrix
@pytest.mark.parametrize("fails_at", ["list_objects", "get_range"])
def test_a_read_that_fails_in_the_middle_is_completed_by_the_next_one(
    store: LocalStore, tmp_path: Path, fails_at: str
) -> None:
    plain = without_packs(store, tmp_path / "plain").slots
    for failing_call in range(6):
        calls = iter(range(10**6))

        def fails(operation: str, key: str, *, at: int = failing_call, calls: Iterator[int] = calls) -> bool:
            return operation in {fails_at, fails_at.removesuffix("_objects")} and next(calls) == at

        faulty = FaultyStore(store, fails=fails)
        log = RunLog(faulty, RUN)
        with suppress(StoreReadError):
            log.reload()
        faulty.fails = lambda operation, key: False
        assert log.refresh().slots == plain


def test_a_record_that_was_damaged_when_it_was_packed_is_still_damaged_and_can_be_restored(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").create()
    put_records(store, RECORDS)
    good = store.get(keys.log_key(RUN, 5))
    store.put(keys.log_key(RUN, 5), b"x" * len(good))
    store.delete([keys.log_key(RUN, 6)])
    append_until_packed(store, packs=2)
    log, requests = read(store)
    assert [damage.slot for damage in log.damage] == [5, 6]
    assert "missing, but later records exist" in log.damage[1].why
    assert requests < PACK_SLOTS
    store.put(keys.log_key(RUN, 5), good)
    assert [damage.slot for damage in log.reload().damage] == [6]
    assert [slot.number for slot in log.slots][:7] == [0, 1, 2, 3, 4, 5, 7]


@pytest.mark.matrix
def test_a_run_id_that_is_used_again_after_a_wipe_of_its_log_does_not_see_the_old_packs(store: LocalStore) -> None:
    old = packs_in(store)
    shutil.rmtree(store.root / RUN / "log")
    put_records(store, RECORDS)
    log, requests = read(store)
    assert log.damage == ()
    assert requests > RECORDS
    append_until_packed(store, packs=4)
    assert set(old) < set(packs_in(store))
    again, _ = read(store)
    assert again.slots[:RECORDS] == log.slots


def test_a_log_whose_first_record_is_damaged_is_read_without_packs(store: LocalStore) -> None:
    store.put(keys.log_key(RUN, 0), b"garbage")
    log, requests = read(store)
    assert ([damage.slot for damage in log.damage], len(log.slots)) == ([0], log.next_slot - 1)
    assert requests > RECORDS


def test_an_id_that_cannot_be_part_of_a_key_is_not_used_as_one(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store").create()
    put_records(store, RECORDS)
    first = QuarantineEntry(entry_id="../../elsewhere", written_at=AT, slot=0, reason="hostile")
    store.put(keys.log_key(RUN, 0), encode(first))
    log = RunLog(store, RUN)
    assert log.append(note(1)).number == RECORDS
    assert len(log.slots) == RECORDS + 1
