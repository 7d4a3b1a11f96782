"""Readings of a pool are made once for all parents of a process, and none of them waits for another's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from segue.prefect.answers import SharedReadings


def test_a_reading_is_made_again_only_after_its_period_and_for_each_thing():
    lasting, passing = SharedReadings(period_seconds=3600), SharedReadings(period_seconds=0)
    for readings, made in ((lasting, 1), (passing, 3)):
        calls = []
        for _ in range(3):
            assert readings.newest("spot", lambda calls=calls: calls.append("spot") or len(calls)) == len(calls)
        assert len(calls) == made
    assert lasting.newest("on-demand", lambda: "its own") == "its own"


def test_a_reading_that_fails_is_made_again_by_the_next():
    readings = SharedReadings(period_seconds=3600)
    with pytest.raises(ConnectionError):
        readings.newest("spot", lambda: (_ for _ in ()).throw(ConnectionError()))
    assert readings.newest("spot", lambda: 1) == 1


@pytest.mark.parametrize("known", [None, "before"])
def test_no_thread_waits_for_the_reading_of_another(known):
    readings = SharedReadings(period_seconds=0)
    if known is not None:
        readings.newest("spot", lambda: known)
    reads, answers = Event(), Event()

    def slow():
        reads.set()
        assert answers.wait(60)
        return "slow"

    with ThreadPoolExecutor(1) as other:
        late = other.submit(readings.newest, "spot", slow)
        assert reads.wait(60)
        assert readings.newest("spot", lambda: "own") == (known or "own")
        answers.set()
        assert late.result(60) == "slow"
