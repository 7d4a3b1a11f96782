"""A store that fails is asked again with growing pauses, and no longer than is allowed."""

from __future__ import annotations

import pytest

from segue.stores.base import StoreReadError
from segue.stores.retry import patiently
from segue.testing.clock import FakeClock


def failing(times, *, asked):
    def ask():
        asked.append(1)
        if len(asked) <= times:
            raise StoreReadError(url="x", key="y", why="injected")
        return "answer"

    return ask


def test_the_pauses_grow_up_to_a_longest_one():
    clock, asked, pauses = FakeClock(), [], []
    sleep = clock.sleep
    clock.sleep = lambda seconds: (pauses.append(seconds), sleep(seconds))
    assert patiently(failing(9, asked=asked), what="it", clock=clock, patience_seconds=600.0) == "answer"
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0, 10.0]


def test_nobody_waits_for_longer_than_is_allowed():
    clock, asked = FakeClock(), []
    began = clock.monotonic()
    with pytest.raises(StoreReadError):
        patiently(failing(99, asked=asked), what="it", clock=clock, patience_seconds=5.0)
    assert clock.monotonic() - began <= 5.0
    assert len(asked) == 5
