"""A parent that shares its process is ended at its next sleep, for the reason that was given first."""

from __future__ import annotations

import threading

import pytest

from segue.controller.ending import EndableClock, EndedError, Ending, Why
from segue.errors import SegueError
from segue.stores.base import StoreReadError
from segue.stores.retry import patiently

LONG_SECONDS = 60.0


def test_a_sleep_of_a_parent_that_nobody_ends_lasts_as_long_as_it_should():
    clock = EndableClock(Ending())
    before = clock.monotonic()
    clock.sleep(0.05)
    assert clock.monotonic() - before >= 0.05


def test_a_sleep_ends_at_the_request_and_every_later_one_at_once():
    ending = Ending()
    clock = EndableClock(ending)
    threading.Timer(0.05, ending.request, [Why.CANCELLED]).start()
    with pytest.raises(EndedError):
        clock.sleep(LONG_SECONDS)
    with pytest.raises(EndedError) as raised:
        clock.sleep(LONG_SECONDS)
    assert raised.value.why is Why.CANCELLED


def test_the_first_reason_counts():
    ending = Ending()
    for why in (Why.CANCELLED, Why.LEAVING):
        ending.request(why)
    assert ending.why is Why.CANCELLED


def test_nothing_that_goes_on_after_an_error_goes_on_after_the_end():
    assert not issubclass(EndedError, Exception | SegueError)


def test_the_end_is_not_held_up_by_a_store_that_is_away():
    ending = Ending()

    def fail() -> None:
        ending.request(Why.LEAVING)
        raise StoreReadError(url="/store", key="log", why="it is away")

    with pytest.raises(EndedError):
        patiently(fail, what="log", patience_seconds=LONG_SECONDS, clock=EndableClock(ending))
