"""Watchers at work: each in its own thread, from the first poll to the end of the attempt."""

from __future__ import annotations

import logging
import threading

import pytest

from segue.clock import SystemClock
from segue.notices.board import NoticeBoard
from segue.notices.watchers import Search, Watcher, watchers_of, watching
from segue.stores import LocalStore
from segue.testing.metadata import FAKES, NO_SERVICE, FakeAws
from tests.support.hostile_service import answering


@pytest.fixture
def board():
    return NoticeBoard(SystemClock())


def use(monkeypatch, environment):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)


def until(condition, *, seconds=30):
    clock = SystemClock()
    give_up_at = clock.monotonic() + seconds
    while not condition():
        assert clock.monotonic() < give_up_at
        clock.sleep(0.01)


@pytest.fixture
def watchers(make_spec, tmp_path):
    """The watchers of an attempt, by what its spec says about notices."""

    def make(**fields):
        spec = make_spec(**fields)
        store = LocalStore(tmp_path / "store")
        store.create()
        return watchers_of(spec, store, attempt_id="a", owner=None, clock=SystemClock())

    return make


@pytest.mark.parametrize("notices", [None, "named"])
@pytest.mark.parametrize("name", FAKES)
def test_the_service_of_the_platform_is_watched_whether_named_or_found(name, notices, watchers, board, monkeypatch):
    with FAKES[name]() as service:
        use(monkeypatch, service.environment)
        with watching(watchers(notices=notices and [name]), board):
            service.preempt()
            until(lambda: board.read() is not None)
    assert board.read().kind == name


def test_with_an_empty_list_no_service_is_asked(watchers, board, monkeypatch):
    with FakeAws() as aws:
        use(monkeypatch, aws.environment)
        assert [watcher.name for watcher in watchers(notices=[])] == ["recall", "orphan"]
        assert [watcher.name for watcher in watchers(notices=["gce", "gce"])] == ["recall", "orphan", "gce"]
        with watching(watchers(notices=[]), board):
            pass
    assert aws.requests == []


def test_on_a_machine_without_a_service_the_search_ends_and_nothing_is_polled(watchers, board, monkeypatch, caplog):
    use(monkeypatch, NO_SERVICE)
    with caplog.at_level(logging.INFO), watching(watchers(), board):
        until(lambda: "no metadata service answers here" in caplog.text)
        until(lambda: not [thread for thread in threading.enumerate() if thread.name == "segue-platform"])
    assert board.read() is None


def test_a_service_that_hangs_delays_neither_the_start_nor_the_end_of_an_attempt(watchers, board, monkeypatch):
    clock = SystemClock()
    with answering(None) as environment:
        use(monkeypatch, environment)
        started = clock.monotonic()
        with watching(watchers(notices=["aws", "gce", "azure"]), board):
            pass
        # The polls of recall and orphan are waited for, those three are not: they would take a second each.
        assert clock.monotonic() - started < 2.5


def test_a_source_that_fails_is_logged_once_for_each_cause_and_once_when_it_is_read_again(board, caplog):
    class Failing:
        causes = iter(["down", "down", "away", None, None])

        def poll(self, board):
            cause = next(self.causes, "end")
            if cause == "end":
                done.set()
            elif cause is not None:
                raise OSError(cause)

    done = threading.Event()
    with caplog.at_level(logging.INFO), watching([Watcher("failing", Failing(), 0.001)], board):
        assert done.wait(30)
    lines = [record.getMessage() for record in caplog.records if "source=failing" in record.getMessage()]
    assert lines == [
        "could not read a source of notices source=failing reason=down",
        "could not read a source of notices source=failing reason=away",
        "a source of notices can be read again source=failing",
    ]


def test_a_search_that_ends_after_the_attempt_starts_no_watcher(board):
    polled, attempt_ended = [], threading.Event()

    class Counting:
        def poll(self, board):
            polled.append(True)

    def find():
        attempt_ended.wait(30)
        return Watcher("late", Counting(), 0.001)

    with watching([Search("late", find)], board):
        threads = [thread for thread in threading.enumerate() if thread.name == "segue-late"]
    attempt_ended.set()
    for thread in threads:
        thread.join(30)
    assert (len(threads), polled) == (1, [])
