"""Slow starts: another one is asked for beside them, and whichever claims the attempt first trains it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.controller.segment import TrainerEnd, conclude
from segue.controller.steps import decide_next
from segue.launch.assignment import ExitCode
from segue.policy.availability import intervals, preemptions
from segue.policy.estimates import changeover_seconds
from segue.records import Capacity, StopReason
from segue.runlog.history import read_history
from tests.controller.test_steps import START
from tests.controller.test_wait import Watched

SLOW = "the start takes longer than 120 s, and no earlier start on this pool is known; a second start was requested"


@pytest.fixture
def watch(make_spec):
    def make(*, deadline_in=None, **fields):
        deadline = None if deadline_in is None else START + timedelta(seconds=deadline_in)
        policy = {"step_seconds": 1, "changeover_seconds": 10, "detection_seconds": 1, "margin_share": 0}
        common = {"steps": 100, "checkpoints": {"every_steps": 10}, "deadline": deadline, "policy": policy}
        return Watched(make_spec(**common | fields))

    return make


def claims(run, plan, *, at, by, ends_at=None):
    """This start claims the attempt then; every other one that comes is refused by the log."""

    def begin():
        claim = run.claim(plan, flow_run_id=by)
        run.beats_on(claim)
        run.reports(at + 5 if ends_at is None else ends_at, plan, claim, StopReason.FINISHED)

    run.clock.at(at, begin)


def starts_of(run):
    return [(entry.number, entry.outcome, round(entry.seconds)) for entry in read_history(run.log).starts]


@pytest.mark.parametrize("deadline_in", [None, 5000])
def test_past_the_limit_a_second_start_is_asked_for_and_the_first_given_up_when_that_one_has_claimed(
    watch, deadline_in
):
    run = watch(deadline_in=deadline_in)
    plan = run.decide()
    run.child.starting = {"attempt": 10, "start2": 140}
    claims(run, plan, at=150, by="start2")
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.again == [2]
    assert starts_of(run) == [(1, "slow", 120), (2, "claimed", 10), (1, "start_failed", 140)]
    assert run.child.asked == ["cancel: start 2 of this attempt came first and trains it"]
    assert run.shown == ["starting (segment/spot)", f"starting (segment/spot): {SLOW}", None]
    # Nothing of it is a preemption, a wait for capacity, or a longer changeover.
    history = read_history(run.log)
    assert preemptions(history) == 0
    wait = intervals(history)[0]
    assert (wait.is_up, round(wait.seconds)) == (False, 10)
    assert changeover_seconds(run.spec, history) <= 20


def test_a_slow_start_that_comes_after_all_goes_on_and_the_second_is_withdrawn(watch):
    run = watch(deadline_in=5000)
    plan = run.decide()
    run.child.starting = {"attempt": 10, "start2": 140}
    claims(run, plan, at=150, by="attempt")
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert starts_of(run) == [(1, "slow", 120), (1, "claimed", 140), (2, "withdrawn", 10)]
    assert run.child.asked == ["cancel: start 1 of this attempt came first and trains it"]


@pytest.mark.matrix
def test_the_next_start_on_the_pool_has_twice_the_time_that_the_slow_one_took(watch):
    run = watch()
    plan = run.decide()
    run.child.starting = {"attempt": 0}
    claims(run, plan, at=150, by="attempt", ends_at=160)
    run.wait(plan)
    first_end = run.clock.monotonic()
    run.child.again.clear()
    run.child.starting = {"attempt": first_end}
    plan = run.decide() if read_history(run.log).open_plan is None else plan
    run.clock.at(first_end + 290, lambda: setattr(run.child, "early", list(run.child.again)))
    claims(run, plan, at=first_end + 320, by="attempt", ends_at=first_end + 330)
    run.wait(plan)
    assert (run.child.early, run.child.again) == ([], [2])
    assert "the only earlier start on this pool took at most 150 s" in read_history(run.log).starts[-3].reason


@pytest.mark.parametrize(("deadline_in", "asked_at"), [(5000, 120), (205, 20), (100, 20)])
def test_where_the_deadline_needs_it_the_second_start_is_asked_for_as_soon_as_the_first_is_unusual(
    watch, deadline_in, asked_at
):
    """100 s of work; a changeover takes 20 s: at 205 s, a start at 120 s would come too late."""
    policy = {"name": "on_demand_only", "step_seconds": 1, "changeover_seconds": 20, "margin_share": 0}
    run = watch(deadline_in=deadline_in, policy=policy)
    plan = run.decide()
    run.child.starting = {"attempt": 0, "start2": 130}
    claims(run, plan, at=140, by="start2", ends_at=150)
    run.wait(plan)
    slow = read_history(run.log).starts[0]
    assert slow.seconds == pytest.approx(asked_at, abs=3)
    assert slow.reason.startswith(f"the start takes longer than {asked_at} s")


def test_an_attempt_none_of_whose_starts_claims_is_booked_as_start_failed_and_asked_for_again_on_its_pool(watch):
    run = watch(deadline_in=100_000)
    plan = run.decide()
    run.child.starting = {"attempt": 0}
    run.child.submit_again = lambda spec, plan, number: None  # There is no other place.
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity, report.was_refused) == (StopReason.START_FAILED, False, True)
    assert report.note == "a worker took it, and it did not claim the run within 360 s"
    history = read_history(run.log)
    assert (preemptions(history), intervals(history)) == (0, ())
    decision = decide_next(run.log, run.spec, clock=run.clock)
    assert (decision.plan.capacity, decision.plan.attempt) == (Capacity.SPOT, plan.attempt + 1)
    assert "could not start the last attempt, a worker took it, and it did not claim" in decision.reason


def test_a_spot_attempt_that_starts_until_the_deadline_needs_on_demand_had_its_capacity(watch):
    run = watch(deadline_in=200)
    plan = run.decide()
    run.child.starting = {"attempt": 5}
    report = run.wait(plan)
    assert (report.stop_reason, report.got_capacity) == (StopReason.START_FAILED, False)
    assert "the deadline required another attempt" in report.note
    assert intervals(read_history(run.log)) == ()
    assert decide_next(run.log, run.spec, clock=run.clock).plan.capacity is Capacity.ON_DEMAND


def test_a_second_start_that_only_waits_for_the_slot_of_the_first_gets_it(watch):
    run = watch()
    plan = run.decide()
    run.child.starting = {"attempt": 0}

    def frees_its_slot():
        run.child.starting = {"start2": run.clock.monotonic()}
        claims(run, plan, at=run.clock.monotonic() + 5, by="start2", ends_at=run.clock.monotonic() + 20)

    run.child.when_cancelled = frees_its_slot
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.clock.monotonic() == pytest.approx(120 + 120 + 20, abs=5)
    assert [outcome for _, outcome, _ in starts_of(run)] == ["slow", "start_failed", "claimed"]


def test_a_parent_that_is_started_again_finds_both_starts_and_asks_for_no_further_one(watch):
    run = watch()
    plan = run.decide()
    run.child.starting = {"attempt": 0, "start2": 125}
    run.clock.at(130, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run.wait(plan)
    claims(run, plan, at=135, by="start2", ends_at=140)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert run.child.again == [2]
    assert starts_of(run) == [(1, "slow", 120), (2, "claimed", 10), (1, "start_failed", 135)]


def test_a_first_start_that_ends_while_the_second_is_awaited_does_not_end_the_attempt(watch):
    run = watch()
    plan = run.decide()
    run.child.starting = {"attempt": 0, "start2": 160}
    shows = lambda handle: "Crashed" if handle == "attempt" and run.clock.monotonic() > 130 else None  # noqa: E731
    run.child.state = shows
    claims(run, plan, at=170, by="start2", ends_at=180)
    assert run.wait(plan).stop_reason is StopReason.FINISHED
    assert (1, "start_failed") in [(number, outcome) for number, outcome, _ in starts_of(run)]


@pytest.mark.parametrize(
    ("claimed_by", "code", "is_reported"),
    [("start2", -9, False), ("attempt", -9, True), ("start2", ExitCode.FENCED, False), (None, -9, False)],
)
def test_a_start_that_is_killed_says_nothing_about_an_attempt_that_another_one_has_or_may_get(
    watch, claimed_by, code, is_reported
):
    run = watch()
    plan = run.decide()
    run.child.starting = {"attempt": 0}
    if claimed_by is None:
        run.clock.at(130, lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            run.wait(plan)
    else:
        run.claim(plan, flow_run_id=claimed_by)
    report = conclude(run.another_log(), plan, TrainerEnd(code), flow_run_id="attempt")
    assert (report is not None) == is_reported
