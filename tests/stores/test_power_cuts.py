"""What a folder store has acknowledged is there after a power cut, whole; and nothing that is there is torn."""

from __future__ import annotations

from itertools import count

import pytest

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.runlog.history import read_history
from segue.runlog.open import open_log
from segue.stores import LocalStore
from tests.stores.power_cut import watched

SMALL, LARGE = b"a record", bytes(range(256)) * 2**13
"""The large one is written without the page cache, by other calls."""


@pytest.fixture
def base(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    return folder


@pytest.fixture
def after(tmp_path):
    """Where the disk is looked at after a cut, another folder for each."""
    numbers = count()
    return lambda disk: disk.after_a_cut(tmp_path / f"after-{next(numbers)}")


@pytest.mark.parametrize("key", ["r/log/0", "r/a/new/folder/of/it"])
@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
@pytest.mark.parametrize("write", [LocalStore.put_if_absent, LocalStore.put])
def test_an_acknowledged_object_is_there_whole(base, after, monkeypatch, write, data, key):
    store = LocalStore(base / "store").create()
    store.put("r/log/before", b"x")
    with watched(base, monkeypatch) as disk:
        write(store, key, data)
        found = LocalStore(after(disk) / "store")
        assert found.get(key) == data
        assert found.get("r/log/before") == b"x"


@pytest.mark.parametrize("is_own", [True, False])
def test_a_folder_that_was_made_without_a_sync_is_there_with_the_first_object_that_is_durable(
    base, after, monkeypatch, is_own
):
    store = LocalStore(base / "store").create()
    with watched(base, monkeypatch) as disk:
        other = store if is_own else LocalStore(base / "store")
        other.put("r/attempts/a1/heartbeat.json", SMALL, durable=False)
        store.put("r/attempts/a1/step-1/rank-0", SMALL)
        assert LocalStore(after(disk) / "store").get("r/attempts/a1/step-1/rank-0") == SMALL


def test_a_folder_that_was_removed_as_empty_is_made_and_synced_again(base, after, monkeypatch):
    store = LocalStore(base / "store").create()
    with watched(base, monkeypatch) as disk:
        store.put("r/a/b", SMALL)
        store.delete(["r/a/b"])
        store.put("r/a/c", SMALL)
        assert LocalStore(after(disk) / "store").get("r/a/c") == SMALL


@pytest.mark.parametrize("data", [SMALL, LARGE], ids=["small", "large"])
def test_an_object_that_is_replaced_is_the_old_or_the_new_one_at_any_moment(base, after, monkeypatch, data):
    store = LocalStore(base / "store").create()
    store.put("r/a", b"old")
    seen = []

    def look(disk):
        seen.append(LocalStore(after(disk) / "store").get("r/a"))

    with watched(base, monkeypatch, at_each_sync=look) as disk:
        store.put("r/a", data)
        look(disk)
    assert seen[0] == b"old"
    assert seen[-1] == data
    assert set(seen) == {b"old", data}


def test_a_record_is_absent_or_whole_at_any_moment(base, after, monkeypatch):
    store = LocalStore(base / "store").create()
    seen = []

    def look(disk):
        found = LocalStore(after(disk) / "store")
        seen.append([found.get(item.key) for item in found.list_objects("r/")])

    with watched(base, monkeypatch, at_each_sync=look) as disk:
        assert store.put_if_absent("r/log/0", SMALL)
        assert not store.put_if_absent("r/log/0", b"another")
        look(disk)
    assert [SMALL] in seen
    assert all(found in ([], [SMALL]) for found in seen)
    assert seen[-1] == [SMALL]


@pytest.mark.parametrize("folder", ["store", "a/new/store"])
def test_a_store_that_was_created_is_there(base, after, monkeypatch, folder):
    with watched(base, monkeypatch) as disk:
        created = LocalStore(base / folder).create()
        found = LocalStore(after(disk) / folder)
        assert found.root.is_dir()
        assert found.create().folders() == []
        assert (found.root / ".segue-store").read_bytes() == (created.root / ".segue-store").read_bytes()


def test_what_is_not_durable_is_not_synced(base, monkeypatch):
    store = LocalStore(base / "store").create()
    with watched(base, monkeypatch) as disk:
        store.put("r/heartbeat", SMALL, durable=False)
        store.put("r/large", LARGE, durable=False)
    assert disk.syncs == 0


def test_every_record_that_a_log_has_acknowledged_is_read_after_a_cut(make_spec, base, after, monkeypatch):
    spec = make_spec(store={"url": str(base / "store")})
    with watched(base, monkeypatch) as disk:
        runlog = open_run(spec, clock=SystemClock())
        there = spec.model_copy(update={"store": spec.store.model_copy(update={"url": str(after(disk) / "store")})})
    written = read_history(runlog)
    found = read_history(open_log(there))
    assert found.next_slot == written.next_slot > 0
    assert (found.damage, found.spec.run_id) == ((), spec.run_id)
