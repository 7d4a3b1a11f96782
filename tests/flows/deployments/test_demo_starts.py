"""The demo's deadline follows from what was measured before it, and a late demo names what took longer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from examples.demo.starts import Measured, measured, why_late
from segue.records import Capacity, StopReason
from tests.support.histories import START, Logbook, make_spec

QUIET = Measured(to_decision=3.0, to_claim=2.0, to_first_step=1.0, step=0.01)


def attempt(book: Logbook, capacity: Capacity = Capacity.SPOT, *, claim_after: float, **report: float) -> None:
    plan = book.plan(capacity)
    book.seconds += claim_after
    name = book.claim(plan)
    book.report(plan, StopReason.LOST, attempt_id=name, **report)


def test_what_a_run_took_is_read_from_its_log():
    book = Logbook(make_spec())
    book.seconds = 4.0
    attempt(book, claim_after=2.5, startup_seconds=1.5, train_steps=100, train_seconds=2.0)
    found = measured(book.history, requested_at=START + timedelta(seconds=1))
    assert found == Measured(to_decision=3.0, to_claim=2.5, to_first_step=1.5, step=0.02)


def test_the_deadline_has_room_for_starts_half_as_long_again_as_measured():
    # 24 s of training, and a third more; two and a half changeovers for the clamp, as many for the events.
    expected = 24 * 1.35 + 5.0 * 4.5 + 1.2 + 3.0 + 4.5
    assert QUIET.seconds_to_deadline(steps=2400, save_every=120) == pytest.approx(expected)
    assert QUIET.policy()["changeover_seconds"] == pytest.approx(4.5)


def test_a_machine_on_which_starts_take_ten_times_as_long_gets_ten_times_as_much_for_them():
    slow = Measured(to_decision=30.0, to_claim=20.0, to_first_step=10.0, step=0.01)
    more = slow.seconds_to_deadline(steps=2400, save_every=120) - QUIET.seconds_to_deadline(steps=2400, save_every=120)
    assert more == pytest.approx(5.0 * 40.5 + 40.5)


def test_a_late_run_names_the_start_that_took_longest_with_its_log():
    book = Logbook(make_spec())
    attempt(book, claim_after=2.0, startup_seconds=1.0, train_steps=50, train_seconds=0.5)
    attempt(book, Capacity.ON_DEMAND, claim_after=40.0, startup_seconds=2.0, train_steps=50, train_seconds=0.5)
    said = why_late(book.history, QUIET, logs=Path("/logs"))
    assert said.startswith(
        "segment 0, attempt 2 (on-demand) made its first step 42 s after its decision; "
        "see /logs/worker-on-demand.log (39 s more)"
    )
    assert "attempt 1 (spot)" not in said
    assert said.endswith("3 s from a decision to the first step were measured before")


def test_a_late_run_names_slower_steps_before_shorter_waits():
    book = Logbook(make_spec())
    attempt(book, claim_after=5.0, startup_seconds=1.0, train_steps=100, train_seconds=21.0)
    said = why_late(book.history, QUIET, logs=Path("/logs"))
    assert said.index("a step took 210.0 ms, and 10.0 ms in the undisturbed run (20 s more)") < said.index("attempt 1")


def test_an_attempt_that_trained_nothing_is_no_long_start():
    book = Logbook(make_spec())
    attempt(book, claim_after=90.0)
    assert "made its first step" not in why_late(book.history, QUIET, logs=Path("/logs"))
