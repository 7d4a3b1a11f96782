"""Whether an attempt has time for a save before its bound."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from segue.notices.board import NoticeBoard
from segue.testing.clock import FakeClock
from segue.trainer.time_left import TimeLeft


@pytest.mark.parametrize(
    ("elapsed_seconds", "save_seconds", "is_near"),
    [(95.9, 1.5, False), (96.0, 1.5, True), (98.7, None, False), (98.9, None, True), (98.9, 0.1, True)],
)
def test_a_bound_is_near_when_two_saves_and_two_steps_are_left_to_it(elapsed_seconds, save_seconds, is_near):
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    left = TimeLeft(NoticeBoard(clock), bound_seconds=100, grace_seconds=30, started_at=clock.monotonic(), clock=clock)
    clock.sleep(elapsed_seconds)
    assert left.is_bound_near(step_seconds=0.5, save_seconds=save_seconds) is is_near


def test_without_a_bound_no_bound_is_near():
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    left = TimeLeft(NoticeBoard(clock), bound_seconds=None, grace_seconds=30, started_at=0.0, clock=clock)
    clock.sleep(1e6)
    assert not left.is_bound_near(step_seconds=0.5, save_seconds=1.0)
