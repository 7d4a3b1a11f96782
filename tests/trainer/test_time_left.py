"""Whether an attempt has time for a save before its bound."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from segue.notices.board import NoticeBoard
from segue.records import Machine
from segue.testing.clock import FakeClock
from segue.trainer.time_left import Pace, TimeLeft


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


def test_the_pace_is_that_of_the_steps_after_the_first_with_what_is_between_them():
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    pace = Pace()
    assert pace.step_seconds is None
    for seconds in (60.0, 2.0, 4.0, 3.0):
        clock.sleep(seconds)
        pace.step_done(seconds, at=clock.monotonic())
        if seconds == 60.0:
            assert pace.step_seconds is None
    assert (pace.train_steps, pace.train_seconds, pace.step_seconds) == (3, 9.0, 3.0)


@pytest.mark.parametrize(("step_seconds", "allows"), [(3.9, True), (4.1, False)])
def test_after_a_notice_a_witness_step_may_not_use_the_time_of_the_last_save(step_seconds, allows):
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    board = NoticeBoard(clock)
    left = TimeLeft(board, bound_seconds=None, grace_seconds=30, started_at=clock.monotonic(), clock=clock)
    assert left.allows_witness(step_seconds=1e6, save_seconds=1.0)
    board.leave("sigterm", grace_seconds=30)
    assert left.allows_witness(step_seconds=step_seconds, save_seconds=1.0) is allows


def test_the_time_for_the_report_is_not_waited_away():
    clock = FakeClock(datetime(2026, 1, 1, tzinfo=UTC))
    board = NoticeBoard(clock)
    left = TimeLeft(board, bound_seconds=None, grace_seconds=30, started_at=clock.monotonic(), clock=clock)
    board.leave("sigterm", grace_seconds=30)
    assert left.patience_seconds == 0.5
    clock.sleep(27.8)
    assert 0 < left.patience_seconds < 0.5
    clock.sleep(0.3)
    assert left.patience_seconds == 0


def paced(step_seconds: float, own_seconds: tuple[float, ...], *, usual_seconds=None, nodes="ab") -> Pace:
    """The pace after 60 steps, with the own time of each rank in a step."""
    machines = tuple(Machine(kind="slurm", name=name) for name in nodes)
    pace = Pace(usual_seconds=usual_seconds, may_leave=True, machines=machines)
    for step in range(60):
        pace.step_done(step_seconds, at=step * step_seconds)
        pace.rank_times.add(own_seconds)
    return pace


@pytest.mark.parametrize(
    ("own_seconds", "usual_seconds", "nodes", "leaves"),
    [
        ((2.0, 3.0), None, "ab", True),
        ((2.0, 3.0), None, "aa", True),
        ((2.0, 2.0), None, "ab", False),
        ((2.0, 2.0), 2.0, "ab", False),
        ((2.0, 2.0), 2.0, "aa", True),
    ],
)
def test_a_machine_is_left_if_it_is_slow_itself_or_is_that_of_a_slow_rank(own_seconds, usual_seconds, nodes, leaves):
    assert paced(4.0, own_seconds, usual_seconds=usual_seconds, nodes=nodes).leaves_machine is leaves


@pytest.mark.parametrize(("remaining_seconds", "must"), [(309, False), (311, True), (399, True), (401, False)])
@pytest.mark.parametrize(("own_seconds", "usual_seconds", "nodes"), [((2.0, 3.0), None, "ab"), ((2.0, 2.0), 3.0, "aa")])
def test_a_slow_machine_is_left_at_once_only_if_the_run_then_meets_its_deadline(
    own_seconds, usual_seconds, nodes, remaining_seconds, must
):
    pace = paced(4.0, own_seconds, usual_seconds=usual_seconds, nodes=nodes)
    assert pace.must_leave(steps=100, remaining_seconds=remaining_seconds, changeover_seconds=10) is must
