"""The rules by which a run leaves spot: one row for each side of each boundary."""

from __future__ import annotations

from dataclasses import replace

import pytest

from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.records import Capacity, StopReason, VerdictKind
from tests.support.histories import Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
LOST, NOTICE, BOUND, FAILED = StopReason.LOST, StopReason.NOTICE, StopReason.BOUND, StopReason.FAILED

# C 1000, d 60, at risk 30, answer 3, detection 15: the clamp needs 1000 + 2 * 60 + 30 + 3 + 15 = 1168.
HERE = Situation(
    remaining_seconds=5000.0,
    work_seconds=1000.0,
    changeover_seconds=60.0,
    at_risk_seconds=30.0,
    detection_seconds=15.0,
    answer_seconds=3.0,
    probe_seconds=50.0,
)
NO_DEADLINE = replace(HERE, remaining_seconds=None, probe_seconds=None)
UNMEASURED = replace(HERE, work_seconds=None)

# As a spec: 100 steps of 10 s with no margin (C 1000), a commit every 10 (at risk 100), d 60, detection 15, answer 12:
# the clamp needs 1000 + 60 + 1.5 * 60 + 100 + 15 + 12 = 1277, while no start of on-demand was seen.
POLICY = {"name": "greedy", "step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15, "margin_share": 0}
NEEDED = 1277.0


def log(deadline_in: float | None = None, *, policy: dict | None = None, **fields) -> Logbook:
    return Logbook(make_spec(deadline_in=deadline_in, policy=POLICY | (policy or {}), **fields))


def unmeasured(deadline_in: float | None, *, policy: dict | None = None) -> Logbook:
    return log(deadline_in, policy={"step_seconds": None} | (policy or {}))


@pytest.mark.parametrize(("left", "permits"), [(1167.9, False), (1168.0, True), (1168.1, True), (-5.0, False)])
def test_the_clamp_permits_spot_only_while_its_worst_case_fits(left, permits):
    assert clamp.needed_for_spot_seconds(HERE) == 1168.0
    assert clamp.permits_spot(replace(HERE, remaining_seconds=left)) is permits


@pytest.mark.parametrize(
    "part", ["work_seconds", "changeover_seconds", "at_risk_seconds", "detection_seconds", "answer_seconds"]
)
def test_every_part_of_the_worst_case_counts(part):
    edge = replace(HERE, remaining_seconds=1168.0)
    assert not clamp.permits_spot(replace(edge, **{part: getattr(edge, part) + 0.1}))


def test_without_a_deadline_the_clamp_permits_everything():
    assert clamp.permits_spot(NO_DEADLINE)
    assert clamp.permits_spot(replace(NO_DEADLINE, work_seconds=None))


@pytest.mark.parametrize(("left", "permits"), [(-0.1, False), (0.0, False), (0.1, True)])
def test_unmeasured_spot_is_permitted_while_the_probes_have_time_left(left, permits):
    assert clamp.permits_spot(replace(UNMEASURED, probe_seconds=left)) is permits


@pytest.mark.parametrize(("left", "recalls"), [(1077.9, True), (1078.0, False), (1078.1, False)])
def test_an_attempt_is_recalled_as_soon_as_a_silent_death_would_cost_the_deadline(left, recalls):
    # 1000 + one changeover + answer + detection.
    assert clamp.must_recall(replace(HERE, remaining_seconds=left)) is recalls


@pytest.mark.parametrize("here", [NO_DEADLINE, replace(UNMEASURED, remaining_seconds=0.0)])
def test_nothing_is_recalled_without_a_deadline_or_a_rate(here):
    assert not clamp.must_recall(here)


@pytest.mark.parametrize(("left", "late"), [(1059.9, True), (1060.0, False), (1060.1, False)])
def test_late_means_that_on_demand_from_now_on_does_not_fit(left, late):
    assert clamp.is_late(replace(HERE, remaining_seconds=left)) is late
    assert clamp.is_late(replace(HERE, remaining_seconds=left + 30), in_seconds=30.0) is late


@pytest.mark.parametrize(("left", "late"), [(59.9, True), (60.0, False), (-100.0, True)])
def test_unmeasured_a_run_is_late_when_not_even_a_changeover_fits(left, late):
    assert clamp.is_late(replace(UNMEASURED, remaining_seconds=left)) is late


def test_without_a_deadline_nothing_is_late():
    assert not clamp.is_late(NO_DEADLINE)


@pytest.mark.parametrize(
    ("here", "seconds"),
    [
        (replace(HERE, remaining_seconds=1268.0), 160.0),
        (replace(HERE, remaining_seconds=1168.0), 60.0),
        (replace(HERE, remaining_seconds=1000.0), 60.0),
        (UNMEASURED, 110.0),
        (replace(UNMEASURED, probe_seconds=-1.0), 60.0),
        (NO_DEADLINE, None),
    ],
)
def test_spot_may_be_waited_for_with_what_the_clamp_leaves_over(here, seconds):
    assert clamp.longest_wait_seconds(here) == seconds


@pytest.mark.parametrize(("step", "action"), [(99, "run"), (100, "finished")])
def test_a_run_is_finished_when_its_goal_is_committed(step, action):
    book = log()
    book.attempt(StopReason.FINISHED, commit=step)
    assert book.ask().action == action


def test_finished_outranks_a_broken_verdict_and_a_deadline_that_has_passed():
    book = log(100.0)
    book.attempt(StopReason.FINISHED, commit=100)
    book.verdict(VerdictKind.BROKEN)
    book.seconds = 200.0
    assert book.ask().action == "finished"


@pytest.mark.parametrize(("failures", "action"), [(1, "run"), (2, "failed")])
def test_code_that_raises_has_a_small_budget_of_its_own(failures, action):
    book = log(policy={"max_failures": 2})
    for _ in range(failures):
        book.attempt(FAILED)
    made = book.ask()
    assert made.action == action
    if action == "failed":
        raised = "the recipe raised in 2 attempts, last ValueError: no such column"
        assert made.reason == f"{raised}. Fix: correct the recipe, then start the run again."


@pytest.mark.parametrize(("deaths", "action"), [(4, "run"), (5, "hopeless")])
def test_attempts_that_die_in_place_to_the_last_on_on_demand_are_hopeless(deaths, action):
    book = log()
    for _ in range(deaths):
        book.attempt(LOST, ON_DEMAND)
    assert book.ask().action == action


def test_only_attempts_that_got_a_machine_die_in_place():
    book = log()
    for _ in range(20):
        book.not_started()
    assert (book.ask().action, book.ask().plan.capacity) == ("run", SPOT)


def test_on_demand_capacity_that_never_came_does_not_make_a_run_hopeless():
    book = log()
    for _ in range(5):
        book.attempt(LOST)
    book.not_started(ON_DEMAND)
    assert (book.ask().action, book.ask().plan.capacity) == ("run", ON_DEMAND)
    book.attempt(LOST, ON_DEMAND)
    assert book.ask().action == "hopeless"


@pytest.mark.parametrize(("deaths", "capacity"), [(4, SPOT), (5, ON_DEMAND)])
def test_after_enough_deaths_in_place_on_demand_is_tried_even_without_a_deadline(deaths, capacity):
    book = log()
    for _ in range(deaths):
        book.attempt(LOST)
        book.not_started()
    assert book.ask().plan.capacity is capacity


@pytest.mark.parametrize("between", [{"reason": NOTICE, "commit": 10}, {"reason": BOUND}, {"reason": FAILED}])
def test_a_commit_or_another_end_breaks_the_row_of_deaths(between):
    book = log(policy={"max_failures": 9})
    for _ in range(3):
        book.attempt(LOST)
    book.attempt(between["reason"], commit=between.get("commit"))
    for _ in range(4):
        book.attempt(LOST)
    assert book.ask().plan.capacity is SPOT


def failed(book: Logbook) -> None:
    book.attempt(FAILED)
    book.attempt(FAILED)


def hopeless(book: Logbook) -> None:
    for _ in range(5):
        book.attempt(LOST, ON_DEMAND)


def broken(book: Logbook) -> None:
    book.attempt(NOTICE, commit=10)
    book.resume(VerdictKind.BROKEN)
    book.resume(VerdictKind.BROKEN)


@pytest.mark.parametrize("go_wrong", [failed, hopeless, broken])
def test_a_run_that_ended_and_is_started_again_has_full_budgets(go_wrong):
    book = log()
    go_wrong(book)
    assert book.decide().action == go_wrong.__name__
    assert (book.ask().action, book.ask().plan.capacity) == ("run", SPOT)


@pytest.mark.parametrize("capacity", [SPOT, ON_DEMAND])
@pytest.mark.parametrize("left", [5000.0, NEEDED - 1, 500.0, -10.0])
def test_code_that_raised_is_tried_again_on_the_capacity_it_raised_on(capacity, left):
    book = log(left)
    book.attempt(FAILED, capacity)
    assert book.ask().plan.capacity is capacity


@pytest.mark.parametrize("deadline_in", [None, 9000.0])
def test_the_policy_on_demand_only_always_gets_on_demand(deadline_in):
    assert log(deadline_in, policy={"name": "on_demand_only"}).ask().plan.capacity is ON_DEMAND


@pytest.mark.parametrize("name", ["greedy", "spot_only"])
@pytest.mark.parametrize(
    ("left", "capacity", "reason"),
    [
        (NEEDED, SPOT, "spot, waiting for a machine for at most 60 s: slack 4.6 min; policy"),
        (NEEDED - 0.1, ON_DEMAND, "on-demand: slack 4.6 min is too short for one more spot attempt that dies"),
        (1060.0, ON_DEMAND, "on-demand: slack 60 s is too short"),
        (1059.0, ON_DEMAND, "on-demand; the deadline will be missed by about 1 s"),
        (-3540.0, ON_DEMAND, "on-demand; the deadline will be missed by about 77 min"),
    ],
)
def test_the_clamp_overrules_every_policy(name, left, capacity, reason):
    made = log(left, policy={"name": name}).ask()
    assert made.plan.capacity is capacity
    assert made.reason.startswith(reason)


def test_once_on_on_demand_a_run_with_a_deadline_stays_there_to_the_end():
    book, free = log(9000.0), log()
    for each in (book, free):
        each.attempt(LOST, ON_DEMAND, commit=50)
    made = book.ask()
    assert (made.plan.capacity, made.reason) == (ON_DEMAND, "on-demand continues: it was chosen before")
    assert (free.ask().plan.capacity, free.ask().reason) == (SPOT, "spot: no deadline, so the cheapest capacity")


@pytest.mark.parametrize(
    ("book", "bound", "wait"),
    [
        (unmeasured(5000.0), 500.0, 560.0),
        (unmeasured(5000.0, policy={"probe_share": 0.02}), 100.0, 160.0),
        (unmeasured(50_000.0), 1800.0, 960.0),
        (unmeasured(None), 1800.0, 960.0),
        (log(5000.0), None, 960.0),
        (log(NEEDED + 40), None, 100.0),
        (log(None), None, 960.0),
        (log(1100.0), None, None),
    ],
)
def test_only_an_unmeasured_probe_is_bounded_and_only_spot_is_waited_for_with_a_limit(book, bound, wait):
    plan = book.ask().plan
    assert (plan.max_seconds, plan.start_within_seconds) == (bound, pytest.approx(wait))
    assert (plan.capacity is ON_DEMAND) == (wait is None)


def test_a_boot_that_takes_longer_than_the_usual_wait_for_capacity_is_waited_for():
    plan = log(50_000.0, policy={"changeover_seconds": 1800.0, "name": "spot_only"}).ask().plan
    assert (plan.capacity, plan.start_within_seconds) == (SPOT, 900.0 + 1800.0)


def test_a_request_for_on_demand_is_never_withdrawn():
    plan = log(50_000.0, policy={"name": "on_demand_only"}).ask().plan
    assert (plan.capacity, plan.start_within_seconds) == (ON_DEMAND, None)


def test_a_probe_that_measured_is_followed_by_a_segment_to_the_goal():
    book = unmeasured(5000.0)
    assert book.ask().reason == "spot: a short probe to measure the seconds per step"
    book.attempt(BOUND, commit=10, train_steps=9, train_seconds=90.0)
    plan = book.ask().plan
    assert (plan.segment, plan.capacity, plan.max_seconds) == (1, SPOT, None)


@pytest.mark.parametrize(("at", "capacity"), [(499.0, SPOT), (500.0, ON_DEMAND), (4000.0, ON_DEMAND)])
def test_probes_that_measure_nothing_end_on_on_demand_before_the_time_is_gone(at, capacity):
    book = unmeasured(5000.0)
    book.not_started()
    book.seconds = at
    made = book.ask()
    assert (made.plan.capacity, made.plan.max_seconds is None) == (capacity, capacity is ON_DEMAND)
    assert ("used all of their time" in made.reason) is (capacity is ON_DEMAND)


def test_the_probes_time_counts_again_for_a_run_that_was_ended_and_started_again():
    book = unmeasured(5000.0)
    failed(book)
    book.decide()
    book.seconds = 4000.0
    assert book.ask().plan.capacity is SPOT


def test_a_new_attempt_starts_from_the_same_parent_and_a_new_segment_from_another():
    book = log()
    first = book.ask().plan
    assert (first.segment, first.attempt, first.parent) == (0, 1, None)
    book.attempt(LOST)
    assert (book.ask().plan.segment, book.ask().plan.attempt) == (0, 2)
    book.attempt(LOST, commit=10)
    moved = book.ask().plan
    assert (moved.segment, moved.attempt, moved.parent.step) == (1, 1, 10)
    book.not_started()
    assert (book.ask().plan.segment, book.ask().plan.attempt, book.ask().plan.parent) == (1, 2, moved.parent)


@pytest.mark.parametrize("kept", [None, 10])
def test_a_damaged_parent_makes_a_new_segment_from_the_one_before(kept):
    book = log()
    book.attempt(LOST, commit=kept)
    book.attempt(LOST, commit=20)
    last = book.decide().plan
    book.report(last, LOST, attempt_id=book.claim(last))
    book.quarantine(last.parent)
    plan = book.ask().plan
    assert (plan.segment, plan.attempt) == (last.segment + 1, 1)
    assert (plan.parent.step if plan.parent else None) == kept


def test_a_plan_names_the_deployment_of_its_capacity_and_the_numbers_behind_it():
    made = log(1100.0, pools={"on_demand": "mine/steady"}).ask()
    assert made.plan.deployment == "mine/steady"
    assert made.numbers["needed_for_spot_seconds"] == NEEDED
    assert (made.numbers["remaining_seconds"], made.numbers["slack_seconds"]) == (1100.0, 100.0)
    assert "remaining_seconds" not in log().ask().numbers


@pytest.mark.parametrize(
    ("segment", "committed", "ends"),
    [
        ({}, 0, (None, None, None)),
        ({"steps": 30}, 0, (30, None, None)),
        ({"steps": 30}, 20, (30, None, None)),
        ({"steps": 30}, 30, (60, None, None)),
        ({"steps": 30}, 90, (None, None, None)),
        ({"epochs": 2}, 0, (None, 2, None)),
        ({"hours": 0.5}, 0, (None, None, 1800.0)),
    ],
)
def test_segments_end_where_they_are_planned_to(segment, committed, ends):
    book = log(segment=segment)
    if committed:
        book.attempt(BOUND, commit=committed)
    plan = book.ask().plan
    assert (plan.stop_at_step, plan.stop_at_epoch, plan.max_seconds) == ends


@pytest.mark.parametrize(
    ("fields", "committed", "seconds"),
    [
        ({"steps": 400}, 0, 1800.0),  # 4,000 s: half an hour at least.
        ({"steps": 350}, 0, None),  # The rest would be shorter than that.
        ({"steps": 400}, 200, None),
        ({"steps": 20_000}, 0, 10_000.0),  # 200,000 s in 20 segments.
        ({"steps": 20_000}, 10_000, 10_000.0),
        ({"steps": 20_000, "segment": {"count": 4}}, 0, 50_000.0),
        ({"steps": 20_000, "segment": {"count": 1}}, 0, None),
        ({"steps": 20_000, "policy": {"changeover_seconds": 600}}, 0, 12_000.0),  # 20 changeovers.
    ],
)
def test_a_long_run_has_about_twenty_segments_that_nothing_asked_for(fields, committed, seconds):
    book = log(**fields)
    if committed:
        book.attempt(BOUND, commit=committed)
    plan = book.ask().plan
    assert (plan.max_seconds, plan.keeps_machine) == (seconds and pytest.approx(seconds), seconds is not None)


def test_the_machine_kept_at_a_planned_end_is_used_again_although_another_pool_is_cheaper():
    pools = {"spot": [{"deployment": "segment/a", "price": 1.0}, {"deployment": "segment/b", "price": 1.0}]}
    book = log(segment={"steps": 30}, pools=pools | {"on_demand_price": 3.0})
    first = book.ask().plan
    assert (first.deployment, first.keeps_machine) == ("segment/a", True)
    book.attempt(BOUND, commit=30, deployment="segment/b")
    assert book.ask().plan.deployment == "segment/b"
    book.attempt(NOTICE, commit=60, deployment="segment/b")
    assert book.ask().plan.deployment == "segment/a"


@pytest.mark.parametrize(("left", "step"), [(NEEDED + 100, 30), (NEEDED - 100, None)])
def test_no_segment_is_planned_to_end_where_a_changeover_could_cost_the_deadline(left, step):
    assert log(left, segment={"steps": 30}).ask().plan.stop_at_step == step
