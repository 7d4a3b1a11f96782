"""Stores that can fail: while one is away or full, runs meet an error and the judge still reads everything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.chaos.places import FolderPlace, folder_place
from segue.stores import open_store
from segue.stores.base import StoreGoneError, StoreWriteError

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture(params=["renamed", pytest.param("mounted", marks=needs_root)])
def place(request, tmp_path):
    if request.param == "renamed":
        (tmp_path / "store").mkdir()
        yield FolderPlace(tmp_path, is_mounted=False)
        return
    with folder_place(tmp_path) as place:
        if not place.can_be_filled:
            pytest.skip("this machine permits no mount")
        yield place
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def test_a_store_that_is_away_is_gone_for_runs_and_there_for_the_judge(place):
    place.store().check()
    store = open_store(place.spec)
    store.put("run/one", b"1")
    place.take_away()
    with pytest.raises(StoreGoneError):
        store.put("run/two", b"2")
    assert place.store().get("run/one") == b"1"
    place.bring_back()
    store.put("run/two", b"2")
    assert place.store().get("run/two") == b"2"


@needs_root
def test_a_full_store_takes_no_writes_until_there_is_room(tmp_path):
    with folder_place(tmp_path) as place:
        if not place.can_be_filled:
            pytest.skip("this machine permits no mount")
        place.store().check()
        store = open_store(place.spec)
        place.fill()
        with pytest.raises(StoreWriteError, match="No space left"):
            store.put("run/one", b"x" * 5000)
        place.empty()
        store.put("run/one", b"x" * 5000)
