"""The budget is a cap: how long an attempt may run, when the run ends for lack of money, and what wins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from segue.errors import SpecError
from segue.policy.budget_cap import Cap, Purse, expected_cost, purse_of
from segue.policy.decide import decide
from segue.policy.estimates import situation
from segue.records import Capacity, StopReason
from segue.runlog.entries import DecisionEntry, OpenEntry, SpendingEntry
from segue.simulation.plan_ahead import plan_ahead
from segue.spec import RunSpec
from tests.support.histories import START, Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
BOUND, LOST = StopReason.BOUND, StopReason.LOST
HOUR = 3600.0


def bound(seconds: float) -> Any:
    """The bound of an attempt for which there is money for so many seconds: its end takes some of them."""
    return pytest.approx(seconds - min(5, seconds / 20))


def run(budget: object, **fields: object) -> Logbook:
    """A run of 100 minutes of work, spot for 1 an hour, a start of 60 s."""
    common = {
        "pools": {"spot_price": 1.0, "on_demand_price": 3.0, "currency": "EUR"},
        "policy": {"step_seconds": 60, "changeover_seconds": 60, "max_lost_in_place": 99, "margin_share": 0.0},
        "segment": {"count": 1},
    }
    return Logbook(make_spec(budget=budget, **common | fields))


def spend(book: Logbook, seconds: float, *, commit: int, capacity: Capacity = SPOT) -> None:
    book.attempt(BOUND, capacity, commit=commit, seconds=seconds, train_steps=10, train_seconds=600)
    book.seconds += seconds


def test_a_number_is_a_cap_of_the_run():
    assert make_spec(budget=40.0).budget == make_spec(budget={"per_run": 40.0}).budget
    assert not make_spec().budget.is_set
    with pytest.raises(SpecError, match=r"budget\.per_run: input should be greater than 0"):
        make_spec(budget=0)
    with pytest.raises(SpecError, match="on_exceeded does nothing without a cap"):
        make_spec(budget={"on_exceeded": "refuse"})
    with pytest.raises(SpecError, match=r"budget\.time_zone: must be a time zone"):
        make_spec(budget={"per_month": 1, "time_zone": "Mars"})


def test_without_a_budget_nothing_bounds_an_attempt():
    decision = run({}).ask()
    assert decision.plan.max_seconds is None
    assert "budget_left" not in decision.numbers


def test_an_attempt_may_run_as_long_as_the_rest_of_the_money_pays_for_it():
    book = run(0.5)
    assert book.ask().plan.max_seconds == bound(0.5 * HOUR)
    spend(book, 600, commit=10)
    decision = book.ask()
    assert decision.plan.max_seconds == bound(0.5 * HOUR - 600)
    assert decision.numbers["budget_left"] == pytest.approx(0.5 - 1 / 6, abs=1e-6)


def test_on_demand_uses_the_money_up_faster():
    policy = {"name": "on_demand_only", "step_seconds": 60, "changeover_seconds": 60}
    assert run(0.5, policy=policy).ask().plan.max_seconds == bound(0.5 * HOUR / 3)


def test_a_planned_end_before_the_money_is_used_up_stays_and_the_machine_is_kept_only_there():
    ends = {"segment": {"hours": 0.25}}
    kept, last = run(0.5, **ends).ask().plan, run(0.1, **ends).ask().plan
    assert (kept.max_seconds, kept.keeps_machine) == (900, True)
    assert (last.max_seconds, last.keeps_machine) == (bound(360), False)


# One more attempt takes a start of 60 s and three steps of 60 s: 240 s of spot.
@pytest.mark.parametrize(("left_seconds", "ends"), [(240.01, False), (239.99, True), (0, True), (-60, True)])
def test_the_run_ends_when_the_rest_pays_for_no_attempt(left_seconds, ends):
    book = run(1800 / HOUR)
    spend(book, 1800 - left_seconds, commit=10)
    assert (book.ask().action == "budget") is ends


def test_no_money_ends_the_run_also_where_a_start_is_said_to_take_no_time():
    book = run(0.5, policy={"changeover_seconds": 0})
    book.attempt(LOST, seconds=1800)
    assert book.ask().action == "budget"


def test_the_end_says_what_was_spent_and_where_the_run_stands():
    book = run(0.5)
    spend(book, 1740, commit=10)
    decision = book.decide()
    assert decision.plan is None
    assert decision.reason == (
        "the budget is used up: 0.4833 EUR of 0.5000 EUR for the run are spent, and one more attempt takes 4 min, "
        "which cost 0.0667 EUR; step 10 of 100 is committed"
    )
    assert book.history.is_over


def test_with_more_money_the_run_goes_on():
    book = run(0.5)
    spend(book, 1740, commit=10)
    book.decide()
    more = book.spec.model_copy(update={"budget": book.spec.budget.model_copy(update={"per_run": 1.0})})
    book.write(OpenEntry, spec=more)
    decision = decide(more, book.history, now=book.now)
    assert (decision.action, decision.plan.parent.step) == ("run", 10)
    assert decision.plan.max_seconds == bound(HOUR - 1740)


def test_a_goal_that_is_committed_ends_the_run_as_finished_whatever_it_has_cost():
    book = run(0.5)
    spend(book, 2 * HOUR, commit=100)
    assert book.ask().action == "finished"


@pytest.mark.parametrize(("margin", "action"), [(1e-6, "run"), (-1e-6, "budget")])
def test_refuse_starts_no_run_that_is_expected_to_cost_more(margin, action):
    book = run({"per_run": 100.0})
    cost = book.ask().numbers["expected_cost"]
    refused = run({"per_run": cost + margin, "on_exceeded": "refuse"}).ask()
    assert refused.action == action
    assert run({"per_run": cost + margin}).ask().action == "run"
    if action == "budget":
        assert refused.reason.startswith("refused: ")


def test_a_run_that_was_admitted_is_not_refused_later_and_ends_at_the_cap():
    cost = run(100.0).ask().numbers["expected_cost"]
    book = run({"per_run": cost + 0.01, "on_exceeded": "refuse"})
    book.decide()
    book.report(book.history.open_plan, LOST, attempt_id=None, seconds=0.5 * HOUR, got_capacity=True)
    assert book.ask().numbers["expected_cost"] > book.ask().numbers["budget_left"]
    assert book.ask().action == "run"


def test_a_run_whose_steps_are_unmeasured_is_judged_once_they_are():
    policy = {"changeover_seconds": 60, "max_lost_in_place": 99, "margin_share": 0.0}
    book = run({"per_run": 0.6, "on_exceeded": "refuse"}, policy=policy)
    assert book.decide().action == "run"
    plan = book.history.open_plan
    name = book.claim(plan)
    book.commit(name, 10)
    book.report(plan, BOUND, attempt_id=name, seconds=600, train_steps=10, train_seconds=600)
    decision = book.ask()  # 90 minutes are left, and 0.43 EUR.
    assert (decision.action, decision.reason.partition(":")[0]) == ("budget", "refused")


def test_warn_buys_on_and_says_so():
    book = run({"per_run": 0.5, "on_exceeded": "warn"})
    first = book.ask()
    assert first.plan.max_seconds is None
    assert first.warning.startswith("the budget will be exceeded: 1.")
    spend(book, HOUR, commit=10)
    later = book.ask()
    assert later.action == "run"
    assert later.warning == "the budget is exceeded: 1.00 EUR of 0.5000 EUR for the run are spent"
    assert later.reason.endswith(later.warning)


def test_a_cap_that_will_not_last_to_the_goal_is_known_at_the_first_decision():
    first = run(0.5).ask()
    assert first.warning.startswith("the budget will not last to the goal: 1.")
    assert first.reason.endswith(first.warning)
    assert run(5.0).ask().warning == ""


def near_deadline(budget: float) -> Logbook:
    """100 minutes of work and 105 minutes: only on-demand meets the deadline, and it costs 5.05."""
    return run(budget, deadline_in=105 * 60.0, liveness={"heartbeat_timeout_seconds": 30})


@pytest.mark.parametrize(("budget", "capacity"), [(5.06, ON_DEMAND), (5.04, SPOT)])
def test_the_budget_wins_over_the_deadline(budget, capacity):
    decision = near_deadline(budget).ask()
    assert decision.plan.capacity is capacity
    assert decision.plan.ignores_deadline is (capacity is SPOT)
    if capacity is SPOT:
        assert decision.reason == (
            "spot in spite of the deadline, because the budget wins: 5.05 EUR are expected for the rest, "
            "and 5.04 EUR are left"
        )
        assert decision.plan.start_within_seconds > 600  # As without a deadline.


def test_a_budget_that_only_warns_does_not_win_over_the_deadline():
    book = run({"per_run": 1.0, "on_exceeded": "warn"}, deadline_in=105 * 60.0)
    assert book.ask().plan.capacity is ON_DEMAND


def test_a_run_that_was_late_for_its_budget_says_so_at_its_end():
    book = near_deadline(5.04)
    plan = book.decide().plan
    name = book.claim(plan)
    book.commit(name, 100)
    book.report(plan, StopReason.FINISHED, attempt_id=name, seconds=6000)
    assert book.ask().reason.endswith("; the budget did not pay for the on-demand that the deadline required")


def test_a_policy_that_never_uses_spot_stays_on_on_demand_until_the_money_is_used_up():
    policy = {"name": "on_demand_only", "step_seconds": 60, "changeover_seconds": 60}
    plan = run(1.0, deadline_in=105 * 60.0, policy=policy).ask().plan
    assert (plan.capacity, plan.max_seconds) == (ON_DEMAND, bound(1200))


# --- the month ---------------------------------------------------------------------------------------------------


def others(book: Logbook, cost: float, *, month: str = "2026-01", **own: float) -> None:
    book.write(SpendingEntry, month=month, others_cost=cost, **own)


def test_other_runs_of_the_month_count_against_its_cap():
    book = run({"per_month": 10.0})
    others(book, 9.5)
    assert book.ask().plan.max_seconds == bound(0.5 * HOUR)
    others(book, 9.99)
    ended = book.ask()
    assert ended.action == "budget"
    assert "9.99 EUR of 10.00 EUR for all runs in 2026-01 are spent" in ended.reason


def test_what_others_spent_in_another_month_does_not_count():
    book = run({"per_month": 10.0})
    others(book, 9.99, month="2025-12")
    assert book.ask().action == "run"


def test_the_smaller_of_two_caps_bounds_an_attempt():
    book = run({"per_run": 2.0, "per_month": 10.0})
    assert book.ask().plan.max_seconds == bound(2 * HOUR)
    others(book, 9.0)
    assert book.ask().plan.max_seconds == bound(1 * HOUR)


def test_own_standbys_count():
    book = run({"per_run": 2.0})
    others(book, 0.0, standby_cost=0.5)
    assert book.ask().plan.max_seconds == bound(1.5 * HOUR)


def test_own_attempts_of_an_earlier_month_count_for_the_run_and_not_for_the_month():
    book = run({"per_run": 9.0, "per_month": 2.0})
    spend(book, HOUR, commit=10)
    book.seconds = 40 * 86400.0
    here = situation(book.spec, book.history, now=book.now)
    run_cap, month_cap = purse_of(book.spec, book.history, here, now=book.now).caps
    assert (run_cap.spent, month_cap.spent) == (1.0, 0.0)


@pytest.mark.parametrize(("to_new_month", "seconds"), [(1801, 1800), (1800, 1800 + 2 * HOUR), (60, 60 + 2 * HOUR)])
def test_a_month_that_ends_before_its_money_is_used_up_gives_way_to_the_next_one(to_new_month, seconds):
    cap = Cap(limit=2.0, spent=1.5, whose="all", renewed_in_seconds=to_new_month)
    assert cap.affordable_seconds(1.0) == pytest.approx(seconds)


def test_a_new_month_has_money_again():
    book = run({"per_month": 1.0})
    book.seconds = (datetime(2026, 1, 31, 23, 59, tzinfo=UTC) - START).total_seconds()
    others(book, 0.98)  # 72 s are left, and a minute until the new month.
    assert book.ask().plan.max_seconds == bound(60 + HOUR)
    book.seconds -= 2 * 86400.0
    assert book.ask().action == "budget"


# --- the estimate ------------------------------------------------------------------------------------------------


def spec_of(**fields: object) -> RunSpec:
    common = {
        "run_id": "r",
        "recipe": "a.b:c",
        "steps": 1440,
        "policy": {"step_seconds": 60, "changeover_seconds": 360},
        "pools": {"spot_price": 1.0, "on_demand_price": 3.0},
    }
    return RunSpec.parse(common | fields)


@pytest.mark.matrix
@pytest.mark.parametrize("hours", [28, 36, 60, None])
def test_the_expected_cost_is_near_that_of_the_simulated_runs(hours):
    deadline = None if hours is None else START + timedelta(hours=hours)
    spec = spec_of(deadline=deadline)
    history = Logbook(spec).history
    here = situation(spec, history, now=START)
    simulated = plan_ahead(spec, history, now=START, runs=200).facts
    expected = expected_cost(spec, history, here, now=START)
    cheapest = simulated["cost_p5"] * 0.85
    assert cheapest <= expected <= simulated["cost_p95"] * 1.1
    if hours is not None:
        assert expected == pytest.approx(simulated["cost"], rel=0.25)


def test_the_estimate_of_every_policy_is_at_most_that_of_on_demand_alone():
    for name in ("plan", "greedy", "spot_only", "uniform_progress", "on_demand_only"):
        spec = spec_of(policy={"name": name, "step_seconds": 60}, deadline=START + timedelta(hours=40))
        history = Logbook(spec).history
        expected = expected_cost(spec, history, situation(spec, history, now=START), now=START)
        alone = (24 * HOUR + 120) * 3 / HOUR
        assert 24 <= expected <= alone + 1e-9
        assert np.isclose(expected, alone) == (name == "on_demand_only")


@pytest.mark.parametrize("order", [1, -1])
def test_what_is_left_is_what_the_tightest_cap_leaves(order):
    caps = [Cap(10.0, 9.0, "the run"), Cap(100.0, 20.0, "all runs in 2026-01")][::order]
    purse = Purse(tuple(caps), expected_cost=None)
    assert purse.left == 1.0
    assert purse.in_words() == "9.00 USD of 10.00 USD for the run are spent"
    assert purse.numbers() == {"budget_left": 1.0}


def test_the_time_of_a_run_counts_from_its_first_decision_and_includes_waits_and_restarts():
    book = run({"max_hours": 2})
    assert not book.spec.budget.is_set
    first = book.decide()
    # The trainer itself ends with the time, because the parent may have died.
    assert (first.plan.max_seconds, first.plan.start_within_seconds) == (bound(2 * HOUR), pytest.approx(960))
    book.report(first.plan, StopReason.NO_CAPACITY, attempt_id=None, got_capacity=False)
    # A start of 60 s, three steps of 60 s, and 62 s until an attempt has answered a recall.
    answer = situation(book.spec, book.history, now=book.now).answer_seconds
    book.seconds = 2 * HOUR - 240 - answer - 10
    assert book.ask().action == "run"
    book.seconds = 2 * HOUR - 240
    ended = book.decide()
    assert (ended.action, ended.plan) == ("budget", None)
    assert ended.reason == (
        "the time of the run is used up (budget.max_hours = 2): 116 min have passed since the run began, and one more "
        "attempt takes 4 min; step 0 of 100 is committed"
    )
    book.write(OpenEntry, spec=book.spec)
    book.seconds += 1000
    assert book.ask().action == "budget"
    book.spec = run({"max_hours": 3}).spec
    assert book.ask().action == "run"


def test_the_decision_to_import_weights_is_not_the_begin_of_the_time():
    book = run({"max_hours": 1})
    book.write(DecisionEntry, action="import", reason="weights", plan=None)
    book.seconds = 5 * HOUR
    assert book.ask().action == "run"
