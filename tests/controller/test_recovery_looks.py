"""Looks of recovery: one at a time where that saves work, never none, and somebody is told when none ends."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from segue.controller.recovery_looks import (
    SilenceWatch,
    begin_look,
    is_needless,
    seconds_without_look,
    silence_limit_seconds,
)
from segue.runlog import keys
from segue.runlog.looks import read_look, write_begun
from segue.stores import LocalStore, StoreReadError, StoreWriteError
from segue.testing.clock import FakeClock
from segue.testing.faulty_store import FaultyStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


def set_back(store, key, seconds):
    """As if the object was written this long before the last probe, by the store's clock."""
    path = store.root / key
    at = path.stat().st_mtime - seconds
    os.utime(path, (at, at))


@pytest.mark.parametrize(
    ("begun", "ended", "needless"),
    [
        (None, None, False),
        (5, None, True),  # Under way.
        (19.9, None, True),
        (20, None, False),  # It is dead, or gets company.
        (40, 9.9, True),  # It has just ended.
        (40, 10, False),
        (5, 30, True),  # One ended, and another one is under way.
        (30, 5, True),
        (12, 12, False),  # A store that counts whole seconds: it has ended.
        (25, 30, False),  # The newest one died.
        (-5, None, False),  # The store's clock was set back: nothing is known.
        (-5, -3600, False),
        (None, -3600, False),
    ],
)
def test_a_look_is_needless_only_while_another_one_may_be_alive_or_has_just_ended(begun, ended, needless):
    assert is_needless(begun_seconds_ago=begun, ended_seconds_ago=ended) is needless


def test_of_looks_at_the_same_time_one_looks_and_the_next_follows_it(store):
    clock = FakeClock()
    first = begin_look(store, clock=clock)
    assert begin_look(store, clock=clock) is None
    first.end()
    assert begin_look(store, clock=clock) is None, "it has just ended"
    set_back(store, keys.LOOK_KEY, 11)
    set_back(store, keys.LOOK_BEGUN_KEY, 15)
    second = begin_look(store, clock=clock)
    assert second is not None
    second.end()
    assert read_look(store).counter == 2


def test_a_person_who_asks_for_a_look_gets_it_beside_another_one(store):
    assert begin_look(store, clock=FakeClock()) is not None
    assert begin_look(store, clock=FakeClock(), is_asked_for=True) is not None


def test_a_look_that_died_keeps_the_next_one_away_for_20_seconds_and_no_longer(store):
    clock = FakeClock()
    begin_look(store, clock=clock)  # Killed before its end.
    set_back(store, keys.LOOK_BEGUN_KEY, 21)
    assert begin_look(store, clock=clock) is not None


@pytest.mark.parametrize("ahead", [timedelta(days=400), -timedelta(days=400)])
def test_the_clock_of_the_machine_that_looks_decides_nothing(store, ahead):
    write_begun(store, "another")
    set_back(store, keys.LOOK_BEGUN_KEY, 30)
    wrong = FakeClock(FakeClock().now() + ahead)
    look = begin_look(store, clock=wrong)
    assert look is not None
    look.end()
    assert begin_look(store, clock=FakeClock()) is None


def test_a_record_that_cannot_be_parsed_or_is_of_a_newer_version_prevents_no_look(store):
    for text in (b"", b"{", b'{"look_id": "x", "new_field": 1}', b"\xff\x00"):
        store.put(keys.LOOK_KEY, text)
        set_back(store, keys.LOOK_KEY, 60)
        look = begin_look(store, clock=FakeClock(), is_asked_for=True)
        look.end()
        assert read_look(store).counter == 1
        set_back(store, keys.LOOK_KEY, 60)
        set_back(store, keys.LOOK_BEGUN_KEY, 60)


def test_a_store_that_takes_no_writes_is_not_looked_at_and_says_so(store):
    faulty = FaultyStore(store, fails=lambda operation, key: operation == "put")
    with pytest.raises(StoreWriteError):
        begin_look(faulty, clock=FakeClock())


def test_other_looks_that_cannot_be_read_prevent_no_look(store, monkeypatch):
    begin_look(store, clock=FakeClock())

    def unreadable(self, key):
        raise StoreReadError(url=self.url, key=key, why="injected")

    monkeypatch.setattr(LocalStore, "modified_at", unreadable)
    assert begin_look(store, clock=FakeClock()) is not None
    assert begin_look(FaultyStore(store, fails=lambda *_: False), clock=FakeClock()) is not None, "it shows no times"


@pytest.mark.parametrize(("interval", "limit"), [(None, 180), (30, 180), (60, 180), (61, 183), (300, 900)])
def test_silence_is_three_minutes_or_three_intervals(store, interval, limit):
    assert silence_limit_seconds(interval) == limit
    clock = FakeClock()
    watch = SilenceWatch(store, clock=clock)
    while (silent := watch.look(interval_seconds=interval)) is None:
        clock.advance(30)
    assert limit < silent <= limit + 30


def test_a_look_that_ends_ends_the_silence_and_one_that_only_begins_does_not(store):
    clock = FakeClock()
    watch = SilenceWatch(store, clock=clock)
    begin_look(store, clock=clock, interval_seconds=30).end()
    assert watch.look(interval_seconds=30) is None
    for _ in range(7):
        begin_look(store, clock=clock, is_asked_for=True)  # Each dies.
        clock.advance(30)
        silent = watch.look(interval_seconds=30)
    assert silent == pytest.approx(210)
    begin_look(store, clock=clock, is_asked_for=True).end()
    assert watch.look(interval_seconds=30) is None


def test_a_parent_that_was_suspended_does_not_call_that_time_silence(store):
    clock = FakeClock()
    watch = SilenceWatch(store, clock=clock)
    watch.look(interval_seconds=30)
    clock.advance(3600)
    assert watch.look(interval_seconds=30) is None


def test_from_outside_silence_is_the_age_of_the_last_end(store):
    clock = FakeClock()
    assert seconds_without_look(store, now=clock.now()) is None, "nothing ever looked here"
    begin_look(store, clock=clock, interval_seconds=30).end()
    written_at = store.modified_at(keys.LOOK_KEY)
    assert seconds_without_look(store, now=written_at + timedelta(seconds=179)) is None
    assert seconds_without_look(store, now=written_at + timedelta(seconds=181)) == pytest.approx(181)
    begin_look(store, clock=clock, interval_seconds=300, is_asked_for=True).end()
    assert seconds_without_look(store, now=store.modified_at(keys.LOOK_KEY) + timedelta(seconds=800)) is None
    begin_look(store, clock=clock, is_asked_for=True).end()  # By hand: the schedule's interval stays known.
    assert read_look(store).interval_seconds == 300
