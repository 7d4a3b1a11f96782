"""Events of a run: each happens once, and is derived with the same key by every parent."""

from __future__ import annotations

from datetime import timedelta

import pytest

from segue.records import Capacity, Finding, Notice, StopReason, Verdict, VerdictKind
from segue.reports.cost_report import cost_report
from segue.reports.page import RunView
from segue.reports.run_events import (
    AT_RISK,
    BUDGET,
    ESCALATED,
    FINISHED,
    LATE,
    PREEMPTED,
    RESUME_BROKEN,
    STALE_PRICES,
    RunEvent,
    run_events,
)
from segue.runlog.entries import DrillEntry, PricesEntry
from tests.support.histories import START, Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
LOST, NOTICE, FINISHED_REASON = StopReason.LOST, StopReason.NOTICE, StopReason.FINISHED


def logbook(*, deadline_in: float | None = None, **fields: object) -> Logbook:
    policy = {"step_seconds": 60, "max_lost_in_place": 99, "changeover_seconds": 300, "margin_share": 0.05}
    return Logbook(make_spec(deadline_in=deadline_in, **{"policy": policy, **fields}))


def events_of(book: Logbook) -> list[RunEvent]:
    return run_events(RunView(book.spec, book.history, cost_report(book.spec, book.history), book.now))


def names_of(book: Logbook) -> list[str]:
    return [event.name for event in events_of(book)]


def test_a_preemption_is_told_once_the_next_decision_is_made_with_step_pool_and_loss():
    book = logbook()
    plan = book.plan()
    name = book.claim(plan)
    kept = book.commit(name, 40)
    notice = Notice(kind="aws", received_at=START + timedelta(seconds=90), grace_seconds=120)
    facts = {"to_step": 45, "lost_steps": 5, "seconds": 100.0, "notice": notice, "checkpoint": kept}
    book.report(plan, NOTICE, attempt_id=name, **facts)
    assert names_of(book) == []  # The report may still be corrected to `cancelled`.
    book.plan()
    (event,) = events_of(book)
    assert (event.name, event.key, event.at) == (PREEMPTED, "preempted:0:1", START + timedelta(seconds=100))
    assert event.sentence == (
        "segment 0 was preempted on segment/spot (aws, used 10 s of 2 min) at step 45; step 40 is committed, "
        "5 steps are lost"
    )
    assert {
        "step": 45,
        "pool": "segment/spot",
        "lost_steps": 5,
        "run": "r",
        "steps": 100,
    }.items() <= event.facts.items()


def test_ends_that_are_no_preemption_and_attempts_without_a_machine_are_not_told():
    book = logbook()
    book.not_started()
    book.attempt(StopReason.HUNG)
    book.plan()
    assert names_of(book) == []


def test_each_move_from_spot_to_on_demand_is_told_once_and_a_retry_there_is_none():
    book = logbook()
    for capacity in (SPOT, ON_DEMAND, ON_DEMAND, SPOT, ON_DEMAND):
        book.attempt(StopReason.BOUND, capacity)
    told = [event for event in events_of(book) if event.name == ESCALATED]
    assert [event.key for event in told] == ["escalated:0:2", "escalated:0:5"]
    assert told[0].sentence == "segment 0 moves from spot to on-demand: the test says so"


def test_a_run_that_starts_on_on_demand_has_not_escalated():
    book = logbook()
    book.attempt(StopReason.BOUND, ON_DEMAND)
    assert ESCALATED not in names_of(book)


def test_a_broken_resume_and_a_broken_rehearsal_are_told_with_their_component():
    book = logbook()
    book.attempt(LOST, commit=10)
    book.resume(VerdictKind.BROKEN)
    finding = Finding(component="rng.torch", channel="digest", sentence="rng.torch was not restored.")
    verdict = Verdict(kind=VerdictKind.BROKEN, findings=(finding,))
    book.write(DrillEntry, checkpoint=book.history.checkpoints[0].ref, verdict=verdict, seconds=1.0)
    resume, drill = (event for event in events_of(book) if event.name == RESUME_BROKEN)
    assert resume.sentence == "the resume from step 10 is broken: optimizer state differs."
    assert (resume.facts["component"], resume.facts["channel"], resume.facts["step"]) == ("optimizer", "digest", 10)
    assert drill.sentence == "the resume rehearsal from step 10 is broken: rng.torch was not restored."
    assert resume.key != drill.key


def test_a_sound_resume_is_not_told():
    book = logbook()
    book.attempt(LOST, commit=10)
    book.resume(VerdictKind.EXACT, commit=20)
    assert RESUME_BROKEN not in names_of(book)


# 6,000 s of work, 5% margin on all that is ahead, 300 s until it trains: the end is expected after 6,600 s, or 6,286 s.
@pytest.mark.parametrize(
    ("deadline_in", "told"),
    [(7000, []), (6901, []), (6899, [AT_RISK]), (6290, [AT_RISK]), (6280, [LATE]), (600, [LATE])],
)
def test_the_deadline_is_at_risk_within_one_changeover_and_late_when_it_cannot_be_met(deadline_in, told):
    book = logbook(deadline_in=deadline_in)
    book.decide()
    assert [event.name for event in events_of(book) if event.name in (AT_RISK, LATE)] == told


def test_a_deadline_that_has_passed_is_late_though_the_step_time_is_not_known():
    book = Logbook(make_spec(deadline_in=100))
    book.seconds = 101
    (event,) = events_of(book)
    assert (event.name, event.sentence) == (LATE, "the deadline passed at step 0; step 0 of 100")


def test_another_deadline_is_another_occurrence_and_the_same_one_is_none():
    first, again, other = (logbook(deadline_in=seconds) for seconds in (600, 600, 700))
    again.seconds = 10
    assert [event.key for event in events_of(first)] == [event.key for event in events_of(again)]
    assert [event.key for event in events_of(first)] != [event.key for event in events_of(other)]


@pytest.mark.parametrize(("seconds", "names"), [(500, [FINISHED]), (700, [LATE, FINISHED])])
def test_a_finished_run_says_whether_it_was_on_time(seconds, names):
    book = logbook(deadline_in=600)
    plan = book.plan()
    name = book.claim(plan)
    book.commit(name, 100)
    book.seconds = seconds
    book.report(plan, FINISHED_REASON, attempt_id=name, to_step=100)
    book.decide()
    assert names_of(book) == names
    event = events_of(book)[-1]
    assert event.key == f"finished:{book.history.decisions[-1].entry_id}"
    assert event.sentence.startswith("on time by 100 s; step 100" if seconds == 500 else "late by 100 s; step 100")


def test_a_run_that_failed_has_not_finished_and_is_not_late_any_more():
    book = logbook(deadline_in=600, policy={"max_failures": 1, "step_seconds": 1})
    plan = book.plan()
    book.report(plan, StopReason.FAILED, attempt_id=book.claim(plan))
    assert book.decide().action == "failed"
    book.seconds = 10_000
    assert names_of(book) == []


def test_the_end_for_lack_of_money_is_told():
    book = logbook(budget=0.5)
    book.attempt(LOST, seconds=1790.0)
    decision = book.decide()
    event = [event for event in events_of(book) if event.name == BUDGET][-1]
    assert (event.sentence, event.key) == (decision.reason, f"budget:{book.history.decisions[-1].entry_id}")
    assert event.facts["budget_left"] == pytest.approx(0.0028, abs=1e-3)


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_a_budget_that_will_not_suffice_is_told_once(action):
    book = logbook(budget={"per_run": 1.7, "on_exceeded": action})
    for _ in range(3):
        book.report(book.decide().plan, LOST, attempt_id=None, seconds=900.0)
    assert names_of(book).count(BUDGET) == 1


def test_a_budget_that_suffices_is_not_told():
    book = logbook(budget=50.0)
    book.decide()
    assert names_of(book) == []


def test_a_deadline_that_gives_way_to_the_budget_is_told():
    book = logbook(budget=4.0, deadline_in=6200.0)
    plan = book.decide().plan
    assert plan.ignores_deadline
    (event,) = [event for event in events_of(book) if event.name == BUDGET]
    assert event.sentence.startswith("segment 0: spot in spite of the deadline, because the budget wins: ")


def test_prices_that_are_not_renewed_are_told_once_for_each_outage():
    book = logbook(pools={"prices": "file: prices.toml"})
    facts = {"source": "file: prices.toml", "prices": {"segment/spot": 1.0}, "taken_at": START}
    book.write(PricesEntry, **facts)
    assert names_of(book) == []
    keys = []
    for seconds in (900, 1800):
        book.seconds = seconds
        book.write(PricesEntry, **facts, problem="the command ended with code 3")
        (event,) = events_of(book)
        keys.append(event.key)
        assert event.name == STALE_PRICES
        assert event.sentence.endswith("because reading newer prices failed: the command ended with code 3")
    assert keys == ["prices:2026-01-01T00:00:00+00:00"] * 2
