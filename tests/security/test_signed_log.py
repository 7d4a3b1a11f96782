"""A signed log: what somebody without the key writes to it is refused, by the reason; damage stays damage."""

from __future__ import annotations

import re
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from segue.errors import (
    BrokenChainError,
    ForgedRecordError,
    LogReplacedError,
    NothingTrustedError,
    ReplayedRecordError,
    SigningKeyError,
    SigningKeyNeededError,
    UnsignedLogError,
)
from segue.runlog import keys
from segue.runlog.log import RunLog
from segue.runlog.packs import PACK_SLOTS, Packs
from segue.signing import open_signer
from segue.stores import LocalStore
from tests.runlog.test_log import note, numbers
from tests.security.conftest import new_key, with_checksum

RUN = "run-1"


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


def signed(store, key, *, run=RUN, records=0):
    """A log with this key, to which so many notes were written."""
    log = RunLog(store, run, signer=open_signer(key))
    for number in range(records):
        log.append(note(number))
    return log


def record(store, slot, *, run=RUN):
    return store.get(keys.log_key(run, slot))


def put(store, slot, data, *, run=RUN):
    store.put(keys.log_key(run, slot), data)


def test_a_signed_log_reads_as_it_was_written(store, key):
    written = signed(store, key, records=7)
    again = signed(store, key).reload()
    assert again.slots == written.slots
    assert numbers(again) == list(range(7))
    again.append(note(7))
    assert numbers(written.refresh()) == list(range(8))
    assert all(b',"signed":{"run_id":"run-1"' in record(store, slot) for slot in range(8))


def test_an_unsigned_log_has_nothing_of_signatures(store):
    log = RunLog(store, RUN)
    log.append(note(0))
    assert re.fullmatch(rb'\{"crc32c":"[0-9a-f]{8}","entry":\{[^{}]*\}\}', record(store, 0))


def test_writers_with_the_key_may_race(store, key):
    logs = [signed(store, key) for _ in range(4)]

    def write(log):
        for number in range(8):
            log.append(note(number))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, logs))
    assert len(signed(store, key).reload().slots) == 32


@pytest.mark.matrix
def test_any_changed_byte_of_a_record_is_refused_even_with_a_checksum_that_fits(store, tmp_path):
    key = new_key(tmp_path / "key")
    signed(store, key, records=3)
    good = record(store, 1)
    head = good.index(b'"entry":') + len(b'"entry":')
    for at in range(head, len(good) - 1):
        put(store, 1, with_checksum(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]))
        with pytest.raises((ForgedRecordError, ReplayedRecordError)):
            signed(store, key).reload()
    put(store, 1, good)
    assert len(signed(store, key).reload().slots) == 3


def test_a_new_record_without_signature_is_forged(store, key):
    log = signed(store, key, records=3)
    plain = LocalStore(store.root.parent / "plain").create()
    RunLog(plain, RUN).append(note(99))
    put(store, 3, record(plain, 0))
    for reader in (log, signed(store, key)):
        with pytest.raises(ForgedRecordError, match="the record has no signature") as caught:
            reader.refresh()
        assert (caught.value.slot, caught.value.key) == (3, keys.log_key(RUN, 3))
    assert 99 not in numbers(log)


def test_nothing_is_written_after_a_forged_record(store, key):
    log = signed(store, key, records=3)
    put(store, 3, with_checksum(record(store, 2).replace(b'"slot":2,"reason"', b'"slot":9,"reason"')))
    with pytest.raises((ForgedRecordError, ReplayedRecordError)):
        log.append(note(4))
    assert len(store.list_objects(keys.log_prefix(RUN))) == 4


def test_a_record_by_another_key_is_forged(store, key, tmp_path):
    signed(store, key, records=3)
    elsewhere = LocalStore(tmp_path / "elsewhere").create()
    signed(elsewhere, new_key(tmp_path / "other", secret="6f" * 32), records=4)
    put(store, 3, record(elsewhere, 3))
    with pytest.raises(ForgedRecordError, match="by another key"):
        signed(store, key).reload()


def test_an_old_record_in_a_newer_slot_is_a_copy(store, key):
    signed(store, key, records=3)
    put(store, 3, record(store, 1))
    with pytest.raises(ReplayedRecordError) as caught:
        signed(store, key).reload()
    assert caught.value.signed_for.startswith("record 1 of run run-1")


def test_a_record_of_another_run_is_a_copy(store, key):
    signed(store, key, records=3)
    signed(store, key, run="run-2", records=4)
    put(store, 3, record(store, 3, run="run-2"))
    with pytest.raises(ReplayedRecordError, match="run run-2"):
        signed(store, key).reload()


def test_the_whole_log_of_another_run_is_a_copy(store, key):
    signed(store, key, run="run-2", records=4)
    for slot in range(4):
        put(store, slot, record(store, slot, run="run-2"))
    with pytest.raises(ReplayedRecordError, match="run run-2"):
        signed(store, key).reload()


def test_a_record_of_an_earlier_log_of_the_same_run_is_a_copy(store, key, tmp_path):
    earlier = LocalStore(tmp_path / "earlier").create()
    signed(earlier, key, records=4)
    signed(store, key, records=3)
    put(store, 3, record(earlier, 3))
    with pytest.raises(ReplayedRecordError, match="in log "):
        signed(store, key).reload()


def test_a_record_that_was_signed_for_its_slot_and_lost_the_race_cannot_replace_the_winner(store, key, tmp_path):
    log = signed(store, key, records=2)
    branch = LocalStore(tmp_path / "branch").create()
    for slot in range(2):
        put(branch, slot, record(store, slot))
    signed(branch, key).append(note(77))
    log.append(note(2))
    log.append(note(3))
    put(store, 2, record(branch, 2))
    with pytest.raises(BrokenChainError) as caught:
        signed(store, key).reload()
    assert (caught.value.slot, caught.value.later_slot) == (2, 3)


def test_a_record_that_lost_the_race_is_not_taken_where_the_winner_is_damaged(store, key, tmp_path):
    log = signed(store, key, records=2)
    branch = LocalStore(tmp_path / "branch").create()
    for slot in range(2):
        put(branch, slot, record(store, slot))
    signed(branch, key).append(note(77))
    log.append(note(2))
    log.append(note(3))
    put(store, 2, b"rot")
    reader = signed(store, key).reload()
    assert [damage.slot for damage in reader.damage] == [2]
    put(store, 2, record(branch, 2))
    for read in (reader.reload, signed(store, key).reload):
        with pytest.raises(BrokenChainError) as caught:
            read()
        assert (caught.value.slot, caught.value.later_slot) == (2, 3)


@pytest.mark.parametrize("spoil", ["remove", "damage"])
def test_a_record_that_is_gone_or_damaged_is_damage_and_the_rest_is_used(store, key, spoil):
    signed(store, key, records=4)
    if spoil == "remove":
        store.delete([keys.log_key(RUN, 1)])
    else:
        put(store, 1, record(store, 1)[:-9] + b"rot......")
    log = signed(store, key).reload()
    assert [damage.slot for damage in log.damage] == [1]
    assert numbers(log) == [0, 2, 3]
    log.append(note(4))
    assert numbers(signed(store, key).reload()) == [0, 2, 3, 4]


def test_with_every_record_damaged_nothing_is_appended(store, key):
    signed(store, key, records=3)
    for slot in range(3):
        put(store, slot, b"rot")
    with pytest.raises(NothingTrustedError) as caught:
        signed(store, key).append(note(3))
    assert caught.value.unreadable == 3


def test_records_cut_off_at_the_end_are_noticed_by_whoever_read_them_and_only_there(store, key):
    log = signed(store, key, records=4)
    store.delete([keys.log_key(RUN, 3)])
    for look in (log.reload, lambda: log.append(note(9))):
        with pytest.raises(LogReplacedError, match=r"00000003.json is missing"):
            look()
    assert numbers(signed(store, key).reload()) == [0, 1, 2], "a new reader cannot know: docs/security.md says so"


def test_with_the_public_key_a_log_is_verified_and_not_written(store, tmp_path):
    private = new_key(tmp_path / "private", kind="ed25519")
    signed(store, private, records=2)
    made = ["openssl", "pkey", "-in", tmp_path / "private", "-pubout", "-out", tmp_path / "public"]
    subprocess.run(made, check=True, capture_output=True)
    log = signed(store, f"file:{tmp_path / 'public'}").reload()
    assert numbers(log) == [0, 1]
    with pytest.raises(SigningKeyError, match="a public key only verifies"):
        log.append(note(2))
    put(store, 2, record(store, 1))
    with pytest.raises(ReplayedRecordError):
        log.refresh()


def test_a_signed_log_is_not_read_without_the_key(store, key):
    signed(store, key, records=2)
    with pytest.raises(SigningKeyNeededError, match="SEGUE_SIGNING_KEY_FROM"):
        RunLog(store, RUN).reload()


def test_an_unsigned_log_is_not_read_with_a_key(store, key):
    RunLog(store, RUN).append(note(0))
    with pytest.raises(UnsignedLogError):
        signed(store, key).reload()


@pytest.mark.matrix
def test_a_forged_record_in_a_pack_is_not_used_and_the_log_is_read_from_its_records(store, tmp_path):
    key = new_key(tmp_path / "key")
    log = signed(store, key, records=PACK_SLOTS)
    for thread in [thread for thread in threading.enumerate() if thread.name == "segue-pack"]:
        thread.join()  # It writes the first pack.
    good = record(store, 7)
    put(store, 7, with_checksum(good.replace(b'"slot":7,"reason"', b'"slot":8,"reason"')))
    for item in store.list_objects(keys.packs_prefix(RUN)):
        store.delete([item.key])
    Packs(store, RUN).write(0, log_id=log.log_id)
    put(store, 7, good)
    again = signed(store, key).reload()
    assert numbers(again) == list(range(PACK_SLOTS))
    assert all(one.number < other.number for one, other in pairwise(again.slots))
