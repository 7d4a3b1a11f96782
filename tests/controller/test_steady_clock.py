"""The clock of a run: no jump of a clock moves it, and it follows the reference slowly."""

from __future__ import annotations

import logging
import random
from datetime import UTC, datetime, timedelta

import pytest

from segue.controller.steady_clock import Correction, Reading, SteadyClock, correction, steady

TRUE_START = datetime(2026, 11, 27, 12, tzinfo=UTC)
YEAR = 365 * 86400.0


class Scripted:
    """A machine, a server and the truth: each with a clock that can be moved."""

    def __init__(self, *, local_ahead=0.0, server_ahead=0.0):
        self.passed = self.slept = 0.0
        self.local_ahead, self.server_ahead, self.is_silent = local_ahead, server_ahead, False
        self.asked = 0

    @property
    def truth(self):
        return TRUE_START + timedelta(seconds=self.passed + self.slept)

    def now(self):
        return self.truth + timedelta(seconds=self.local_ahead)

    def monotonic(self):
        return 1000.0 + self.passed  # It does not count while the machine sleeps.

    def sleep(self, seconds):
        self.passed += seconds

    def reference(self):
        self.asked += 1
        whole = (self.truth + timedelta(seconds=self.server_ahead)).replace(microsecond=0)
        return None if self.is_silent else Reading(whole + timedelta(seconds=0.5), 1.0, "the Prefect server")


@pytest.fixture
def begin():
    def run(**fields):
        machine = Scripted(**fields)
        clock = SteadyClock(machine, reference=machine.reference)
        clock.look()
        return machine, clock

    return run


def train_on(machine, clock, seconds):
    """Let time pass, with a look each second."""
    for _ in range(int(seconds)):
        machine.sleep(1)
        clock.look()


def error_of(machine, clock, *, server_ahead=0.0):
    return (clock.now() - machine.truth).total_seconds() - server_ahead


@pytest.mark.parametrize("jump", [600, -600, 3, -3, 86400, -86400, YEAR, -YEAR])
def test_a_jump_of_the_machines_clock_moves_nothing_and_is_said_once(begin, caplog, jump):
    machine, clock = begin()
    train_on(machine, clock, 90)
    assert clock.trouble is None
    with caplog.at_level(logging.WARNING):
        machine.local_ahead += jump
        train_on(machine, clock, 300)
    assert abs(error_of(machine, clock)) < 1.6
    (record,) = caplog.records
    assert "jumped by" in record.message
    assert ("+" if jump > 0 else "-") in record.message
    assert "jumped by" in clock.trouble


@pytest.mark.parametrize("ahead", [600, -600, 8, -86400])
def test_a_machine_whose_clock_is_wrong_from_the_start_goes_by_the_server(begin, caplog, ahead):
    machine, clock = begin(local_ahead=ahead)
    assert abs(error_of(machine, clock)) < 1.6
    assert f"{'ahead of' if ahead > 0 else 'behind'} the clock of the Prefect server" in caplog.text
    train_on(machine, clock, 200)
    assert abs(error_of(machine, clock)) < 1.6
    assert len(caplog.records) == 1


def test_a_small_difference_is_neither_corrected_nor_said(begin, caplog):
    machine, clock = begin(local_ahead=0.8)
    train_on(machine, clock, 200)
    assert (caplog.records, clock.trouble) == ([], None)


@pytest.mark.parametrize("jump", [600, -600, 86400])
def test_a_jump_of_the_servers_clock_moves_a_decision_by_no_more_than_the_slew(begin, caplog, jump):
    machine, clock = begin()
    train_on(machine, clock, 90)
    machine.server_ahead += jump
    train_on(machine, clock, 120)
    assert abs(error_of(machine, clock)) < 0.05 * 200 + 1.6
    assert caplog.text.count("follows it slowly") == 1


@pytest.mark.parametrize("ahead", [0, 600])
def test_a_machine_that_slept_takes_the_time_that_passed(begin, caplog, ahead):
    machine, clock = begin(local_ahead=ahead)
    train_on(machine, clock, 90)
    machine.slept += 3600
    train_on(machine, clock, 3)
    assert abs(error_of(machine, clock)) < 1.6
    assert "this machine slept for" in caplog.text


def test_without_an_answer_the_run_goes_by_monotonic_time_and_the_first_answer_counts_in_full(begin):
    machine, clock = begin(local_ahead=40)
    machine = Scripted(local_ahead=40)
    machine.is_silent = True
    clock = SteadyClock(machine, reference=machine.reference)
    train_on(machine, clock, 100)
    assert error_of(machine, clock) == pytest.approx(40, abs=0.1)
    machine.local_ahead += 500
    train_on(machine, clock, 20)
    assert error_of(machine, clock) == pytest.approx(40, abs=0.1)
    machine.is_silent = False
    train_on(machine, clock, 10)
    assert abs(error_of(machine, clock)) < 1.6


def test_the_server_is_asked_seldom(begin):
    machine, clock = begin()
    train_on(machine, clock, 600)
    assert machine.asked <= 12


def test_time_never_goes_back_by_more_than_the_slew_whatever_the_clocks_do(begin):
    chance = random.Random(5)
    machine, clock = begin()
    before = clock.now()
    for _ in range(3000):
        machine.sleep(1)
        if chance.random() < 0.01:
            machine.local_ahead += chance.choice([-1, 1]) * 10 ** chance.uniform(0, 6)
        if chance.random() < 0.005:
            machine.is_silent = not machine.is_silent
        clock.look()
        now = clock.now()
        assert -3.2 <= (now - before).total_seconds() - 1 <= 3.2
        before = now
    assert abs(error_of(machine, clock)) < 5


@pytest.mark.parametrize(
    ("error", "jump", "passed", "expected"),
    [
        (0.9, 0.0, 60.0, Correction(0.0, "agrees")),
        (0.9, 0.0, None, Correction(0.0, "agrees")),
        (600.0, 0.0, None, Correction(600.0, "first")),
        (600.0, 600.0, 60.0, Correction(600.0, "slept")),
        (600.0, 595.0, 60.0, Correction(3.0, "follows")),
        (-600.0, 0.0, 60.0, Correction(-3.0, "follows")),
        (2.0, 0.0, 60.0, Correction(2.0, "follows")),
        (2.0, 0.0, 20.0, Correction(1.0, "follows")),
    ],
)
def test_what_a_reading_of_the_reference_means(error, jump, passed, expected):
    found = correction(error, uncertainty_seconds=1.0, local_jump_seconds=jump, passed_seconds=passed)
    assert found.kind == expected.kind
    assert found.seconds == pytest.approx(expected.seconds)


def test_a_reference_that_raises_ends_no_run(caplog):
    def raises():
        raise ValueError("no clock")

    machine = Scripted()
    with steady(machine, reference=raises) as clock:
        assert clock.now() == machine.now()
    assert "no clock" in caplog.text
