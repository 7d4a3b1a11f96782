"""What saves leave at risk until they are committed, with a writer that the test answers for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from segue.checkpoints.saving.committer import Committed
from segue.errors import WorkAtRiskError
from segue.records import CheckpointRef
from segue.testing.clock import FakeClock
from segue.trainer.save_schedule import SavesInFlight


class Attempt:
    """Saves in flight, their writer, and the clock."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.writer = SimpleNamespace(last=None, last_size_bytes=0, trouble=None, is_busy=False)
        self.saves = SavesInFlight(self.writer, allowed_seconds=100.0, clock=self.clock)

    def commit(self, step: int, *, seconds: float = 2.0) -> None:
        ref = CheckpointRef(slot=step, step=step, attempt_id="seg000-a1-e1")
        self.writer.last = Committed(ref, save_seconds=seconds, size_bytes=1000)
        self.writer.last_size_bytes = 1000


@pytest.fixture
def attempt() -> Attempt:
    return Attempt()


def test_a_commit_is_noted_once_and_gives_the_usual_cost(attempt):
    assert (attempt.saves.look(), attempt.saves.usual) == (False, None)
    attempt.saves.submitted(10, stall_seconds=0.5)
    attempt.saves.evaluated(10, 3.0)
    attempt.commit(10)
    assert (attempt.saves.look(), attempt.saves.look()) == (True, False)
    usual = attempt.saves.usual
    assert (usual.stall_seconds, usual.save_seconds, usual.evaluate_seconds) == (0.5, 2.0, 3.0)


@pytest.mark.parametrize(
    ("trouble", "passed", "is_refused"),
    [("the disk is full", 49, False), ("the disk is full", 151, True), (None, 151, False), (None, 301, True)],
)
def test_work_is_refused_once_waiting_does_not_help(attempt, trouble, passed, is_refused):
    attempt.clock.advance(50)
    attempt.saves.submitted(10, stall_seconds=0.0)
    attempt.writer.trouble = trouble
    attempt.clock.advance(passed)
    if is_refused:
        with pytest.raises(WorkAtRiskError, match=trouble or "neither accepted nor refused"):
            attempt.saves.refuse_risk()
    else:
        attempt.saves.refuse_risk()


def test_nothing_is_at_risk_without_a_save_after_a_commit_or_after_one_that_was_torn(attempt):
    attempt.clock.advance(1000)
    attempt.saves.refuse_risk()
    attempt.saves.submitted(10, stall_seconds=0.0)
    attempt.commit(10)
    attempt.saves.look()
    attempt.clock.advance(1000)
    attempt.saves.refuse_risk()
    attempt.saves.submitted(20, stall_seconds=0.0)
    attempt.saves.torn()
    attempt.clock.advance(1000)
    attempt.saves.refuse_risk()


def test_a_notice_leaves_time_for_the_save_that_is_in_flight_and_for_another_one(attempt):
    attempt.saves.submitted(10, stall_seconds=0.0)
    attempt.commit(10, seconds=30.0)
    attempt.saves.look()
    assert attempt.saves.on_notice(seconds_left=120).save
    attempt.saves.submitted(20, stall_seconds=0.0)
    attempt.clock.advance(10)
    assert "the save in flight" in attempt.saves.on_notice(seconds_left=120).reason
    assert not attempt.saves.on_notice(seconds_left=5).save
