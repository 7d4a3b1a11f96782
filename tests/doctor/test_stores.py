"""The doctor's checks of a store fail on stores that do not do what a run needs."""

from __future__ import annotations

import threading
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
import pytest

from benchmarks.waiting.remote_store import RemoteStore
from segue.clock import SystemClock
from segue.doctor import clock_skew, stores
from segue.doctor.check import Item, examine
from segue.doctor.races import Round, judge, race
from segue.doctor.scratch import Scratch
from segue.doctor.subject import Subject
from segue.errors import StoreUnreachableError
from segue.spec import LivenessSpec, StoreSpec
from segue.stores import LocalStore
from segue.stores.base import check_by_writing
from segue.stores.mounts import Mount
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore
from tests.doctor.showing import bad, good, makes_fail

RIGHTS = {
    "store.write": (stores.right_to_write, ("put", "put_if_absent"), "s3:PutObject"),
    "store.read": (stores.right_to_read, ("get",), "s3:GetObject"),
    "store.list": (stores.right_to_list, ("list", "folders"), "s3:ListBucket"),
    "store.delete": (stores.right_to_delete, ("delete",), "s3:DeleteObject"),
}


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


class Shifted(SystemClock):
    """A clock of a machine that is off by some seconds."""

    def __init__(self, seconds):
        self.seconds = seconds

    def now(self):
        return super().now() + timedelta(seconds=self.seconds)


class Stale(FaultyStore):
    """A store behind a cache that goes on to show what was there first."""

    def __init__(self, inner):
        super().__init__(inner, fails=lambda operation, key: False)
        self._seen = {}

    def get(self, key):
        return self._seen.setdefault(key, super().get(key))


def test_a_sound_folder_passes_every_check_and_keeps_nothing_of_them(store):
    subject = Subject(store=StoreSpec(url=store.url))
    checks = examine(stores.items(subject))
    on_memory = [check for check in checks if check.name == "store.retention"]  # The test's folder may be one.
    assert [check for check in checks if check.outcome != "ok" and check not in on_memory] == []
    assert store.list_objects("") == []


@makes_fail("store.reachable")
def test_a_folder_that_cannot_be_made_is_not_reachable(make_spec, tmp_path):
    (tmp_path / "file").write_text("")
    spec = make_spec(store={"url": str(tmp_path / "file" / "store")})
    subject = Subject(spec=spec, store=spec.store)
    first, *others = examine(stores.items(subject))
    bad("store.reachable", first, "fail", "cannot be created", "--store")
    assert {check.outcome for check in others} == {"skipped"}


def test_without_a_run_spec_no_folder_is_made(tmp_path):
    place = tmp_path / "store"
    checks = examine(stores.items(Subject(store=StoreSpec(url=str(place)))))
    assert {check.outcome for check in checks} == {"skipped"}
    assert not place.exists()


@makes_fail(*RIGHTS)
@pytest.mark.parametrize("name", RIGHTS)
def test_each_right_that_is_missing_is_named(store, name):
    look, operations, action = RIGHTS[name]
    good(look(store, Scratch()))
    lacking = FaultyStore(store, fails=lambda operation, key: operation in operations)
    bad(name, look(lacking, Scratch()), "fail", action)
    looks = {of: other for of, (other, _, _) in RIGHTS.items() if of != name}
    # A deletion is proven with an object that is put and read.
    for other in (other for of, other in looks.items() if of != "store.delete"):
        good(other(lacking, Scratch()))


@makes_fail("store.read-after-write")
def test_a_store_behind_a_cache_does_not_show_what_was_written(store):
    bad("store.read-after-write", stores.read_after_write(Stale(store), Scratch()), "fail", "without a cache")


@makes_fail("store.read-after-write")
def test_an_nfs_mount_that_hides_the_new_objects_of_other_machines_is_named(store, monkeypatch):
    monkeypatch.setattr(stores, "mount_of", lambda folder: Mount("nfs4", ("rw", "hard")))
    result = stores.read_after_write(store, Scratch())
    bad("store.read-after-write", result, "warn", "is on NFS", "lookupcache=none")


@makes_fail("store.put-if-absent")
@pytest.mark.parametrize(
    ("rounds", "words"),
    [
        ([Round(("a",), 0, "a"), Round(("a", "b"), 0, "b")], "2 of 8 writers of one key were all told"),
        ([Round(("a",), 0, "b")], "was overwritten"),
        ([Round(("a",), 0, None)], "was overwritten"),
        ([Round((), 0, "a")], "no writer learned that it had created the new key"),
        ([Round((), 8, None)], "every writer of a key failed"),
    ],
)
def test_a_race_with_two_winners_or_none_is_a_failure(rounds, words):
    bad("store.put-if-absent", judge(rounds, racers=8), "fail", words)


@pytest.mark.parametrize("failed", [0, 1])
def test_a_writer_whose_answer_was_lost_may_have_won(failed):
    good(judge([Round((), failed, "a", racers=("a", "b"))], racers=8))
    bad("store.put-if-absent", judge([Round((), failed, "c", racers=("a", "b"))], racers=8), "fail", "no writer")


class Laggard(FaultyStore):
    """A store whose answer to the first put of a key is lost, so that a retry is told that the object exists."""

    def __init__(self, inner):
        super().__init__(inner, fails=lambda operation, key: False)

    def put_if_absent(self, key, data):
        return super().put_if_absent(key, data) and False


def test_a_put_whose_answer_was_lost_counts_by_its_bytes(store):
    good(stores.right_to_write(Laggard(store), Scratch()))
    check_by_writing(Laggard(store))
    assert store.list_objects("") == []


def test_without_the_right_to_delete_the_race_is_judged_and_what_stays_is_said(store):
    lacking = FaultyStore(store, fails=lambda operation, key: operation == "delete")
    scratch = Scratch()
    good(race(lacking, StoreSpec(url=store.url), scratch))
    assert f"stay below {scratch.prefix}" in stores.right_to_delete(lacking, scratch).reason
    with pytest.raises(StoreUnreachableError, match="cannot be deleted"):
        check_by_writing(lacking)


def test_a_store_that_hangs_does_not_keep_the_report(store, monkeypatch, caplog):
    monkeypatch.setattr("segue.doctor.scratch._CLEAR_SECONDS", 0.2)
    goes_on = threading.Event()

    def hang(operation, key):
        return operation == "delete" and goes_on.wait(60)

    scratch = Scratch()
    scratch.new_key()
    try:
        scratch.clear(FaultyStore(store, fails=hang))
    finally:
        goes_on.set()
    assert (
        f"objects could not be removed prefix={scratch.prefix} reason=the store has not answered for 0.2 s"
        in caplog.text
    )


def test_an_interrupted_check_leaves_neither_objects_nor_children(store):
    scratch, began = Scratch(), threading.Event()

    def hang(operation, key):
        if operation == "get" and not began.is_set():
            began.set()
            scratch_is_clear.wait(60)
        return False

    scratch_is_clear = threading.Event()
    racing = threading.Thread(
        target=examine,
        args=([Item("race", lambda: race(FaultyStore(store, fails=hang), StoreSpec(url=store.url), scratch))],),
    )
    racing.start()
    assert began.wait(60)
    assert len(racers()) == 2
    assert store.list_objects(scratch.prefix) != []
    scratch.clear(store)
    assert racers() == []
    assert store.list_objects("") == []
    scratch_is_clear.set()
    racing.join(60)
    with pytest.raises(InterruptedError):
        scratch.new_key()


def racers():
    children = psutil.Process().children()
    return [child for child in children if "segue.doctor.races" in child.cmdline()]


def test_processes_race_for_new_keys_of_a_folder(store):
    good(race(store, StoreSpec(url=store.url), Scratch()))
    assert store.list_objects("") == []


@makes_fail("store.latency")
@pytest.mark.parametrize(("seconds", "outcome"), [(0.9, None), (1.1, "warn"), (9.9, "warn"), (10.1, "fail")])
def test_a_store_that_is_slower_than_heartbeats_is_found(store, seconds, outcome):
    clock = FakeClock()
    far = RemoteStore(store, latency_seconds=seconds, clock=clock)
    result = stores.latency(far, Scratch(), liveness=LivenessSpec(), clock=clock)
    if outcome is None:
        good(result)
        result = stores.latency(far, Scratch(), liveness=LivenessSpec(heartbeat_seconds=1), clock=clock)
    bad("store.latency", result, outcome or "warn", "a small put takes", "nearer store")


@makes_fail("store.clock")
@pytest.mark.parametrize(("off", "outcome"), [(1, None), (-30, "warn"), (30, "warn"), (-90, "fail"), (90, "fail")])
def test_a_clock_that_differs_from_the_stores_is_found(store, off, outcome):
    result = clock_skew.clock_skew(store, Scratch(), clock=Shifted(off))
    if outcome is None:
        good(result)
        result, outcome = clock_skew.judge_skew(60.0, is_ahead=True), "fail"
    bad("store.clock", result, outcome, "ahead of" if off > 0 else "behind", "synchronize")


@makes_fail("store.retention")
def test_a_folder_in_memory_does_not_keep_what_is_stored(tmp_path):
    memory = Path("/dev/shm")
    if not memory.is_dir():
        pytest.skip("there is no /dev/shm")
    bad("store.retention", stores.retention(LocalStore(memory / "segue-none")), "warn", "tmpfs", "a folder on a disk")


def test_a_store_that_shows_neither_its_clock_nor_its_rules_is_skipped(store):
    plain = FaultyStore(store, fails=lambda operation, key: False)
    for look in (stores.retention, partial(clock_skew.clock_skew, scratch=Scratch(), clock=SystemClock())):
        assert look(plain).outcome == "skipped"
