"""The expected cost of a run before it runs; and plans that cannot work, on both sides of each boundary."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from segue.errors import HopelessPlanError
from segue.policy.estimates import situation
from segue.policy.rules.heuristics import Capped, Greedy, OnDemandOnly, SpotOnly
from segue.policy.rules.view import Mode
from segue.records import Capacity, StopReason
from segue.runlog.history import History
from segue.simulation.feasibility import refuse_hopeless
from segue.simulation.forecast import (
    SAMPLES,
    cadence_of,
    forecast,
    job_ahead,
    latest_moments,
    life_of,
    lost_by_a_death_seconds,
    planned_policy,
    sample,
)
from segue.simulation.rows import Contender, Rows, as_published, outcome_on
from tests.support.histories import START, Logbook, make_spec

HOUR = 3600.0
# 360 steps of 10 s are an hour; spot costs 2 an hour, on-demand 6.
POLICY = {"name": "greedy", "step_seconds": 10, "changeover_seconds": 600, "detection_seconds": 15, "margin_share": 0}
POOLS = {"spot_price": 2.0, "on_demand_price": 6.0}


def spec(deadline_in: float | None = 4 * HOUR, *, policy: dict | None = None, **fields):
    fields = {"steps": 360, "pools": POOLS, "checkpoints": {"every_seconds": 300}} | fields
    return make_spec(deadline_in=deadline_in, policy=POLICY | (policy or {}), **fields)


def here(asked):
    return situation(asked, History(), now=START)


def rows(*ups: bool, runs: int = 20) -> list[Rows]:
    ticks = [[*ups] + [ups[-1]] * (25 - len(ups))]
    return [Rows("hand", 600.0, np.repeat(np.array(ticks, bool), runs, axis=0))]


def expected(asked, given, *, lost: float = 0.0):
    now = here(asked)
    return forecast(asked, now, given, job=job_ahead(asked, now), lost_seconds=lost)


@pytest.mark.parametrize("policy", ["plan", "greedy", "uniform_progress"])
def test_with_spot_always_up_the_price_is_that_of_spot(policy):
    found = expected(spec(policy={"name": policy}), rows(True)).policies[0]
    assert (found.policy, found.cost, found.cost_p5, found.cost_p95) == (policy, *[pytest.approx(2 * 7 / 6)] * 3)
    assert (found.cost_share, found.preemptions, found.late_share) == (pytest.approx(1 / 3), 0.0, 0.0)
    assert found.finish_seconds == pytest.approx(4200.0)


def test_with_spot_never_up_the_price_is_that_of_on_demand_and_it_is_in_time():
    found = expected(spec(), rows(False)).policies
    # Uniform Progress starts on-demand three times: an hour of work and half an hour of starts.
    assert [one.cost_share for one in found] == pytest.approx([1.0, 9 / 7, 1.0])
    assert [one.late_share for one in found] == [0.0] * 3


def test_the_planned_policy_comes_first_and_once():
    assert [one.policy for one in expected(spec(), rows(True)).policies] == [
        "greedy",
        "uniform_progress",
        "on_demand_only",
    ]


def test_work_lost_to_a_death_is_paid_again():
    # Half an hour on spot, one preemption, then on-demand.
    plain = expected(spec(), rows(True, True, True, False))
    dearer = expected(spec(), rows(True, True, True, False), lost=360.0)
    assert plain.policies[0].preemptions == 1.0
    assert dearer.policies[0].cost - plain.policies[0].cost == pytest.approx(3 * 2 * 0.1)  # Done again on on-demand.
    assert (plain.lost_seconds, dearer.lost_seconds) == (0.0, 360.0)
    assert dearer.policies[-1].cost == plain.policies[-1].cost


def test_a_bound_on_preemptions_holds_for_whatever_it_is_compared_with():
    torn = rows(*[True, False] * 6, False)
    free, bound = (expected(spec(policy={"max_preemptions": most}), torn).policies for most in (None, 1))
    assert [one.policy for one in bound] == ["greedy", "uniform_progress", "on_demand_only"]
    assert all(one.preemptions > 1 for one in free[:2])
    assert [one.preemptions for one in bound] == [1.0, 1.0, 0.0]


def test_no_spot_attempt_begins_after_the_latest_spot_start():
    asked = spec(3600 + 2 * 600 + 310 + 15 + 12 + 900.0)
    late = rows(False, False, False, True)  # It comes half an hour in; a quarter of an hour can be waited.
    now = here(asked)
    made = sample(asked, now, late, job=job_ahead(asked, now), lost_seconds=0.0)
    assert Mode.SPOT not in made.modes
    assert list(made.modes[0][:3]) == [Mode.IDLE, Mode.IDLE, Mode.ON_DEMAND]


@pytest.mark.parametrize("policy", ["plan", "greedy", "on_demand_only"])
def test_prices_of_several_pools_are_in_the_specs_money(policy):
    # The cheapest listed pool is dearer than `spot_price`, which none of them costs.
    spot = [{"deployment": "s/a", "price": 2.2}, {"deployment": "s/b", "price": 2.6}]
    asked = spec(policy={"name": policy}, pools={"spot": spot, "on_demand_price": 4.4})
    found = {one.policy: one for one in expected(asked, rows(True)).policies}
    assert {"greedy", "on_demand_only", policy} <= set(found)
    assert found["on_demand_only"].cost == pytest.approx(4.4 * 7 / 6)
    assert found["greedy"].cost == pytest.approx(2.2 * 7 / 6)
    assert found["greedy"].cost_share == pytest.approx(0.5)


@pytest.mark.parametrize("up", [True, False])
@pytest.mark.parametrize("left", [4.0, 1.1])
def test_the_computed_result_of_on_demand_only_is_that_of_its_simulation(up, left):
    asked = spec(left * HOUR)
    job = job_ahead(asked, here(asked))
    alone = Contender("on_demand_only", OnDemandOnly(), as_published("on_demand_only", job))
    simulated, found = outcome_on(rows(up), alone), expected(spec(left * HOUR), rows(up)).policies[-1]
    assert found.cost == pytest.approx(simulated.cost.mean() * 2 / 3600)
    assert found.late_share == simulated.is_late.mean()
    assert found.finish_seconds == pytest.approx(simulated.finished_seconds.mean())


def test_a_dozen_runs_are_kept_tick_by_tick():
    asked = spec()
    found = sample(asked, here(asked), rows(True, True, False), job=job_ahead(asked, here(asked)), lost_seconds=0.0)
    assert (found.tick_seconds, len(found.modes)) == (600.0, SAMPLES)
    # Two ticks on spot, then nothing until the net, on-demand to the end.
    assert list(dict.fromkeys(found.modes[0].tolist())) == [Mode.SPOT, Mode.IDLE, Mode.ON_DEMAND]
    assert list(found.modes[0][:3]) == [Mode.SPOT, Mode.SPOT, Mode.IDLE]


def test_the_margin_is_subtracted_from_the_time_and_not_paid_for():
    asked = spec(policy={"margin_share": 0.5})
    job = job_ahead(asked, here(asked))
    assert (job.work_seconds, job.total_seconds) == (pytest.approx(HOUR), pytest.approx(3.5 * HOUR))
    assert (job.changeover_seconds, job.price_ratio, job.knowledge) == (600.0, 3.0, "sentinel")
    asked = spec(policy={"handover": False})
    assert (job_ahead(asked, here(asked)).handover, job_ahead(asked, here(asked)).knowledge) == (False, "none")


def test_without_a_deadline_it_waits_for_spot():
    asked = spec(None)
    job = job_ahead(asked, here(asked))
    assert job.total_seconds > 7 * 86400
    assert job_ahead(asked, here(asked), longest_seconds=HOUR * 9).total_seconds == 4.5 * HOUR
    assert isinstance(planned_policy(asked, here(asked), job).policy, SpotOnly)
    given = [Rows("hand", 6000.0, np.array([[0] * 20 + [1] * 200] * 20, bool))]
    found = forecast(asked, here(asked), given, job=job, lost_seconds=0.0).policies
    assert [one.policy for one in found] == ["greedy", "on_demand_only"]
    assert found[0].cost_share == pytest.approx(1 / 3)
    assert found[0].finish_seconds == pytest.approx(20 * 6000 + 4200)
    assert latest_moments(asked, here(asked)) == {}


def test_where_the_clamp_permits_no_spot_the_plan_is_on_demand():
    # The clamp needs 3600 + 600 + 1.5 * 600 + 310 + 15 + 12.
    for left, kind in ((5437.0, Greedy), (5436.0, OnDemandOnly)):
        asked = spec(left)
        assert isinstance(planned_policy(asked, here(asked), job_ahead(asked, here(asked))).policy, kind)


@pytest.mark.parametrize(("price", "kind"), [(5.99, Greedy), (6.0, OnDemandOnly), (7.0, OnDemandOnly)])
@pytest.mark.parametrize("left", [4 * HOUR, None])
def test_where_no_spot_is_cheaper_the_plan_is_on_demand(price, kind, left):
    asked = spec(left, pools={"spot_price": price, "on_demand_price": 6.0})
    policy = planned_policy(asked, here(asked), job_ahead(asked, here(asked))).policy
    assert isinstance(policy, SpotOnly if left is None and kind is Greedy else kind)


def test_a_bound_on_preemptions_is_part_of_the_plan():
    asked = spec(policy={"max_preemptions": 0})
    assert isinstance(planned_policy(asked, here(asked), job_ahead(asked, here(asked))).policy, Capped)
    assert expected(asked, rows(True)).policies[0].cost_share == pytest.approx(1.0)


def test_the_latest_moments_are_the_deadline_less_what_is_needed():
    asked = spec(policy={"margin_share": 0.1})
    found = latest_moments(asked, here(asked))
    assert found["latest_safe_moment"] == START + timedelta(seconds=4 * HOUR - 1.1 * HOUR - 900)
    assert found["latest_spot_start"] == START + timedelta(seconds=4 * HOUR - (1.1 * HOUR + 1500 + 310 + 15 + 12))


def test_the_cadence_is_the_configured_one_or_the_one_the_trainer_would_choose():
    life = life_of(History(), prior_seconds=None)
    assert life.mean_seconds == 7200.0
    assert cadence_of(spec(), life, save_seconds=1.0).reason == "every 300 s, as configured"
    free = spec(checkpoints={})
    assert "first save, to measure its cost" in cadence_of(free, life, save_seconds=None).reason
    chosen = cadence_of(free, life, save_seconds=20.0)
    assert "Young/Daly for a save cost of 20 s and 2.0 h between preemptions" in chosen.reason
    assert lost_by_a_death_seconds(chosen, here(free), save_seconds=20.0) == chosen.interval_seconds / 2 + 20


def test_a_death_costs_half_of_what_is_at_risk_while_a_save_is_unmeasured():
    life = life_of(History(), prior_seconds=None)
    for asked in (spec(), spec(checkpoints={}), spec(checkpoints={"every_steps": 20})):
        now = here(asked)
        cadence = cadence_of(asked, life, save_seconds=None)
        assert lost_by_a_death_seconds(cadence, now, save_seconds=None) == now.at_risk_seconds / 2


def test_no_death_costs_more_than_half_of_the_work_there_is():
    asked = spec(steps=10)
    cadence = cadence_of(asked, life_of(History(), prior_seconds=None), save_seconds=None)
    assert lost_by_a_death_seconds(cadence, here(asked), save_seconds=None) == 50.0


def test_on_on_demand_alone_no_preemptions_are_expected():
    asked = spec(checkpoints={}, policy={"name": "on_demand_only"})
    chosen = cadence_of(asked, life_of(History(), prior_seconds=None), save_seconds=20.0)
    assert "no preemptions expected" in chosen.reason
    assert expected(asked, rows(True)).policies[0].policy == "on_demand_only"


def test_a_runs_own_attempts_and_traces_change_how_long_spot_lasts():
    log = Logbook(spec())
    log.attempt(StopReason.LOST, commit=10, seconds=600.0)
    log.attempt(StopReason.FINISHED, Capacity.ON_DEMAND, seconds=9000.0)
    assert life_of(log.history, prior_seconds=None).mean_seconds == (7200 + 600) / 2
    assert life_of(log.history, prior_seconds=1800.0).mean_seconds == (1800 + 600) / 2


@pytest.mark.parametrize(("left", "hopeless"), [(4199.9, True), (4200.0, False)])
def test_a_deadline_too_early_for_on_demand_is_refused_with_the_earliest_possible_one(left, hopeless):
    asked = spec(left)
    if not hopeless:
        refuse_hopeless(asked, here(asked), now=START, life_seconds=7200.0)
        return
    with pytest.raises(
        HopelessPlanError, match=r"the deadline is in 70 min and on-demand alone needs 70 min"
    ) as caught:
        refuse_hopeless(asked, here(asked), now=START, life_seconds=7200.0)
    assert caught.value.reason == "deadline_too_near"
    assert "Fix: set the deadline to 2026-01-01T01:15+00:00 or later" in str(caught.value)
    asked = spec(75 * 60)
    refuse_hopeless(asked, here(asked), now=START, life_seconds=7200.0)


@pytest.mark.parametrize(("save", "hopeless"), [(None, False), (1000.0, False), (1000.1, True)])
def test_a_save_that_takes_longer_than_a_spot_machine_lives_is_refused(save, hopeless):
    asked = spec()

    def ask(which=asked):
        refuse_hopeless(which, here(which), now=START, life_seconds=1000.0, save_seconds=save)

    if not hopeless:
        ask()
        return
    with pytest.raises(
        HopelessPlanError, match="one save takes 17 min, longer than the mean life of a spot machine, 17 min"
    ) as caught:
        ask()
    assert caught.value.reason == "save_longer_than_life"
    ask(spec(policy={"name": "on_demand_only"}))


@pytest.mark.parametrize(("life", "hopeless"), [(310.0, False), (309.9, True)])
def test_commits_further_apart_than_a_spot_machine_lives_are_refused(life, hopeless):
    asked = spec()
    if not hopeless:
        refuse_hopeless(asked, here(asked), now=START, life_seconds=life)
        return
    with pytest.raises(
        HopelessPlanError,
        match=r"the mean life of a spot machine, 5\.2 min, is shorter than the 5\.2 min between two commits",
    ) as caught:
        refuse_hopeless(asked, here(asked), now=START, life_seconds=life)
    assert caught.value.reason == "at_risk_longer_than_life"
    assert "max_work_at_risk_seconds" in caught.value.fix


def test_without_a_deadline_no_deadline_is_too_near():
    asked = spec(None)
    refuse_hopeless(asked, replace(here(asked), work_seconds=1e9), now=START, life_seconds=7200.0)
