"""The board: of several notices the nearest deadline counts, whatever came first; withdrawals; hints."""

from __future__ import annotations

import math
import threading
from datetime import timedelta

import pytest

from segue.notices.board import NO_KILL_COMING_SECONDS, NoticeBoard
from segue.testing.clock import FakeClock
from segue.trainer.time_left import TimeLeft


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def board(clock):
    return NoticeBoard(clock)


def test_without_a_notice_there_is_nothing_to_read(board):
    assert (board.read(), board.nearest(), board.seconds_left(), board.first_kind) == (None, None, None, None)


@pytest.mark.parametrize("first", ["orphaned", "recall"])
def test_a_later_notice_with_a_nearer_deadline_replaces_one_that_no_kill_follows(board, clock, first):
    board.leave(first, grace_seconds=NO_KILL_COMING_SECONDS)
    clock.advance(10)
    board.leave("sigterm", grace_seconds=25)
    assert board.nearest() == ("sigterm", 25)
    left = TimeLeft(board, bound_seconds=None, grace_seconds=25, started_at=0.0, clock=clock)
    assert not left.allows_witness(step_seconds=3, save_seconds=2)
    clock.advance(22.9)
    assert 0 < left.patience_seconds < 0.2
    assert board.first_kind == first  # The attempt still ends for the reason that came first.


def test_a_later_notice_with_more_time_changes_nothing(board, clock):
    board.leave("sigterm", grace_seconds=25)
    clock.advance(5)
    board.leave("aws", grace_seconds=120)
    assert board.nearest() == ("sigterm", 20)
    assert board.read().kind == "sigterm"


@pytest.mark.parametrize(("second", "left"), [(30, 20), (19, 19)])
def test_a_second_notice_of_a_kind_counts_only_where_it_leaves_less_time(board, clock, second, left):
    board.leave("sigterm", grace_seconds=25)
    clock.advance(5)
    board.leave("sigterm", grace_seconds=second)
    assert board.seconds_left() == left


@pytest.mark.parametrize(("stated", "left"), [(90, 90), (10, 10)])
def test_a_provider_may_state_another_time_also_a_later_one(board, clock, stated, left):
    board.restate("azure", grace_seconds=30)
    clock.advance(5)
    board.restate("azure", grace_seconds=stated)
    assert board.seconds_left() == left
    notice = board.read()
    assert (notice.received_at, notice.grace_seconds) == (clock.now() - timedelta(seconds=5), 5 + left)


def test_a_source_withdraws_its_own_notice_and_no_other(board):
    board.leave("azure", grace_seconds=30)
    board.leave("sigterm", grace_seconds=60)
    assert board.withdraw("azure")
    assert not board.withdraw("azure")
    assert board.read().kind == "sigterm"


def test_a_notice_on_which_the_attempt_ends_is_neither_withdrawn_nor_postponed(board):
    board.leave("azure", grace_seconds=30)
    board.hold()
    assert not board.withdraw("azure")
    board.restate("azure", grace_seconds=90)
    assert board.seconds_left() == 30
    board.restate("azure", grace_seconds=9)
    board.leave("sigterm", grace_seconds=5)
    assert board.nearest() == ("sigterm", 5)


def test_a_deadline_in_the_past_is_a_notice_without_time(board):
    board.restate("aws", grace_seconds=-4)
    assert board.read().grace_seconds == 0
    assert board.seconds_left() == -4


def test_a_hint_is_no_notice_and_is_taken_once(board, clock):
    board.hint("rebalance")
    clock.advance(3)
    assert board.read() is None
    (hint,) = board.take_hints()
    assert (hint.kind, hint.received_at, hint.grace_seconds) == (
        "rebalance",
        clock.now() - timedelta(seconds=3),
        math.inf,
    )
    assert board.take_hints() == []
    board.hint("rebalance")
    assert len(board.take_hints()) == 1


def test_reading_never_fails_while_sources_leave_and_withdraw(board):
    kinds = [f"source-{number}" for number in range(50)]
    ended = threading.Event()

    def write():
        for _ in range(200):
            for kind in kinds:
                board.leave(kind, grace_seconds=30)
                board.withdraw(kind)
        ended.set()

    thread = threading.Thread(target=write)
    thread.start()
    while not ended.is_set():
        board.read()
        board.nearest()
    thread.join()
    assert board.read() is None
