"""The way back to spot: who may come back, when it can be afforded, how often it is tried, what is decided then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from segue.policy.estimates import Situation
from segue.policy.handover import (
    SPOT_AGAIN,
    UNKNOWN_AGE_SECONDS,
    is_worth_a_standby,
    may_come_back,
    pause_seconds,
    permits,
    up_seconds,
)
from segue.policy.outlook import wants_spot
from segue.policy.rules import hazards
from segue.records import Capacity, StopReason
from segue.runlog.entries import HandoverEntry
from segue.runlog.history import History
from tests.policy.test_decide import HERE, NO_DEADLINE, UNMEASURED
from tests.support.histories import Logbook, make_spec

SPOT, ON_DEMAND = Capacity.SPOT, Capacity.ON_DEMAND
# 100 steps of 10 s, d 60, at risk 100, detection 15, answer 12: the clamp needs 1000 + 2.5 * 60 + 100 + 15 + 12.
POLICY = {"name": "eager_progress", "step_seconds": 10, "changeover_seconds": 60, "detection_seconds": 15}


def handed_over(*, deadline_in: float = 10_000, reason: StopReason = StopReason.BOUND, **policy) -> Logbook:
    """A run whose attempt on on-demand was recalled for a standby, and ended at step 20."""
    spec = make_spec(deadline_in=deadline_in, policy=POLICY | {"margin_share": 0} | policy)
    log = Logbook(spec)
    plan = log.plan(ON_DEMAND)
    name = log.claim(plan)
    log.commit(name, 20)
    log.write(
        HandoverEntry,
        standby="spare4",
        deployment="segment/spot",
        segment=plan.segment,
        attempt=plan.attempt,
        reason=SPOT_AGAIN,
    )
    log.report(plan, reason, attempt_id=name, to_step=20)
    return log


@pytest.mark.parametrize("name", ["plan", "uniform_progress", "eager_progress", "slack_age", "time_sliced"])
def test_policies_that_come_back_to_spot_may_send_a_standby(name):
    assert may_come_back(make_spec(deadline_in=1000, policy={"name": name}), History())
    assert not may_come_back(make_spec(deadline_in=1000, policy={"name": name, "handover": False}), History())
    assert not may_come_back(make_spec(policy={"name": name}), History())


@pytest.mark.parametrize("name", ["greedy", "threshold", "spot_only", "on_demand_only"])
def test_policies_that_stay_to_the_end_send_no_standby(name):
    assert not may_come_back(make_spec(deadline_in=1000, policy={"name": name}), History())


@pytest.mark.parametrize(("most", "may"), [(None, True), (2, True), (1, False), (0, False)])
def test_a_run_at_its_bound_of_preemptions_sends_no_standby(most, may):
    log = Logbook(make_spec(deadline_in=10_000, policy=POLICY | {"max_preemptions": most}))
    log.attempt(StopReason.NOTICE, SPOT, commit=20)
    log.attempt(StopReason.LOST, ON_DEMAND, commit=30)
    assert may_come_back(log.spec, log.history) is may


@pytest.mark.parametrize(("left", "permitted"), [(1168 + 17.9, False), (1168 + 18.0, True)])
def test_leaving_on_demand_must_leave_what_a_spot_attempt_needs_even_when_the_recall_goes_wrong(left, permitted):
    assert permits(replace(HERE, remaining_seconds=left)) is permitted


def test_a_machine_is_not_left_before_the_work_is_measured():
    assert not permits(UNMEASURED)
    assert not is_worth_a_standby(UNMEASURED)
    assert permits(NO_DEADLINE)


@pytest.mark.parametrize(("work", "is_worth"), [(120.0, False), (120.1, True)])
def test_a_run_that_is_nearly_finished_sends_no_standby(work, is_worth):
    assert is_worth_a_standby(replace(HERE, work_seconds=work)) is is_worth


@pytest.mark.parametrize(
    ("left", "sent", "pause"),
    [(1e6, 1, 600), (1e6, 2, 1200), (1e6, 3, 2400), (1e6, 9, 2400), (9000, 3, 900), (600, 1, 60), (5, 1, 1)],
)
def test_the_pauses_grow_to_forty_minutes_and_never_take_more_than_a_tenth_of_the_time_left(left, sent, pause):
    assert pause_seconds(replace(HERE, remaining_seconds=left), sent=sent) == pytest.approx(pause)


@pytest.mark.parametrize("reason", [StopReason.BOUND, StopReason.LOST, StopReason.NOTICE])
def test_after_a_hand_over_the_next_attempt_is_the_standbys_on_spot(reason):
    log = handed_over(reason=reason)
    made = log.decide()
    assert (made.plan.capacity, made.plan.standby, made.reason) == (SPOT, "spare4", SPOT_AGAIN)
    assert made.plan.parent.step == 20
    assert made.plan.start_within_seconds == log.spec.liveness.heartbeat_timeout_seconds


def test_a_standby_that_does_not_claim_leaves_the_decision_to_the_policy():
    log = handed_over()
    plan = log.decide().plan
    log.report(plan, StopReason.LOST, attempt_id=None, got_capacity=False)
    made = log.decide()
    assert made.plan.standby is None
    assert "policy eager_progress" in made.reason


def test_without_a_hand_over_on_demand_goes_on():
    log = Logbook(make_spec(deadline_in=10_000, policy=POLICY))
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=20)
    made = log.decide()
    assert (made.plan.capacity, made.plan.standby) == (ON_DEMAND, None)


# After step 20: 800 + 60 + 1.5 * 60 + 100 + 15 + 12 = 1077.
@pytest.mark.parametrize(("left", "standby"), [(1076.9, None), (1077.1, "spare4")])
def test_the_clamp_can_refuse_a_hand_over(left, standby):
    log = handed_over(deadline_in=5000)
    log.seconds = 5000 - left
    made = log.ask()
    assert (made.plan.standby, made.plan.capacity) == (standby, SPOT if standby else ON_DEMAND)


def test_a_recipe_that_raised_while_it_handed_over_stays_where_it_failed():
    made = handed_over(reason=StopReason.FAILED).ask()
    assert (made.plan.capacity, made.plan.standby) == (ON_DEMAND, None)


def test_a_hand_over_counts_for_one_decision():
    log = handed_over()
    log.report(log.decide().plan, StopReason.LOST, attempt_id=None, got_capacity=False)
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=30)
    assert log.ask().plan.standby is None


def wants(log: Logbook, here: Situation, *, up_seconds: float = 0.0, deployment: str = "segment/spot") -> bool:
    plan, now = log.history.decisions[-1].plan, log.now
    return wants_spot(log.spec, log.history, here, plan, up_seconds=up_seconds, now=now, deployment=deployment)


def asked(history: Logbook, *, work: float, up_seconds: float = 0.0) -> bool:
    here = replace(HERE, remaining_seconds=5000.0, work_seconds=work)
    return wants(history, here, up_seconds=up_seconds)


def test_eager_progress_takes_the_risk_of_spot_whenever_it_can_be_had():
    log = Logbook(make_spec(deadline_in=10_000, policy=POLICY))
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=50)
    assert asked(log, work=1000.0)


def test_a_run_at_its_bound_of_preemptions_wants_no_spot():
    log = Logbook(make_spec(deadline_in=5100, policy=POLICY | {"max_preemptions": 0}))
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=50)
    assert not asked(log, work=500.0)


def test_plan_leaves_on_demand_for_spot_when_much_work_and_much_slack_are_left():
    log = Logbook(make_spec(deadline_in=100_000, policy={"name": "plan", "step_seconds": 300}))
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=10)
    here = replace(HERE, remaining_seconds=90_000.0, work_seconds=27_000.0, changeover_seconds=120.0)
    assert wants(log, here)


@pytest.mark.parametrize(("deployment", "is_wanted"), [("x/cheap", True), ("x/dear", False)])
def test_plan_judges_by_the_price_of_the_pool_that_the_standby_is_on(deployment, is_wanted):
    pools = {"spot": [{"deployment": "x/cheap", "price": 1.0}, {"deployment": "x/dear", "price": 3.9}]}
    log = Logbook(make_spec(deadline_in=100_000, policy={"name": "plan", "step_seconds": 300}, pools=pools))
    log.attempt(StopReason.BOUND, ON_DEMAND, commit=10)
    here = replace(HERE, remaining_seconds=90_000.0, work_seconds=27_000.0, changeover_seconds=120.0)
    assert wants(log, here, deployment=deployment) is is_wanted


@pytest.mark.parametrize(
    ("waited", "held", "down_ago", "seconds"),
    [
        (500.0, 20.0, None, 20.0),  # It came up when the standby got its machine.
        (None, 20.0, None, 20.0),
        (5.0, 20.0, None, 3620.0),  # It was up before, for an unknown time.
        (5.0, 20.0, 800.0, 800.0),  # At most since it was last seen down.
        (5.0, 20.0, 90_000.0, 3620.0),
        (500.0, 20.0, 800.0, 20.0),
    ],
)
def test_a_pool_that_gives_a_machine_at_once_was_up_before(waited, held, down_ago, seconds):
    log = Logbook(make_spec(deadline_in=1e6, policy=POLICY))
    if down_ago is not None:
        log.attempt(StopReason.NOTICE, SPOT, commit=20)
        log.seconds += down_ago
    here = replace(HERE, changeover_seconds=60.0)
    facts = {"waited_seconds": waited, "held_seconds": held, "now": log.now}
    assert up_seconds(log.history, here, "segment/spot", **facts) == pytest.approx(seconds)


def test_the_age_of_an_unobserved_begin_is_that_of_plan():
    assert UNKNOWN_AGE_SECONDS == hazards.UNKNOWN_AGE_SECONDS
