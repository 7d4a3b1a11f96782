"""PLAN: what it expects, and how it behaves where its grid ends."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from segue.deadline.choice import named_policy
from segue.deadline.plan import Plan, table_for
from segue.deadline.simulator import simulate
from segue.deadline.view import Job, Mode
from tests.deadline.test_policies import HOUR, IDLE, ON_DEMAND, SPOT, view

JOB = Job(total_seconds=20 * HOUR, work_seconds=10 * HOUR, changeover_seconds=360.0)


def start(job: Job, **fields):
    return view(job=job, remaining_seconds=job.total_seconds, work_seconds=job.work_seconds, **fields)


def test_it_expects_to_pay_between_the_price_of_spot_and_that_of_on_demand():
    shares = [Plan().cost_share(start(replace(JOB, total_seconds=hours * HOUR))) for hours in (10.5, 12, 15, 20, 40)]
    assert all(1 / 3 < later < sooner <= 1.1 for sooner, later in pairwise(shares))


def test_what_it_expects_is_what_the_simulator_charges_on_spot_as_published():
    from segue.deadline.made_traces import made_up

    up = made_up(np.random.default_rng(5), runs=400, seconds=JOB.total_seconds + 600, tick_seconds=600.0)
    job = replace(JOB, knowledge="free")
    paid = simulate(Plan(), job, up, tick_seconds=600.0).cost.mean() / (3 * (JOB.work_seconds + 360.0))
    expected = np.mean([Plan().cost_share(start(job, is_up=is_up, spell_seconds=HOUR)) for is_up in up[:, 0]])
    assert paid == pytest.approx(expected, rel=0.06)


def test_it_waits_for_a_young_gap_and_pays_in_an_old_one_that_eats_the_slack():
    tight = replace(JOB, total_seconds=11 * HOUR, handover=False, knowledge="free")
    chosen = Plan().choose(start(tight, is_up=False, spell_seconds=[60.0, 15 * HOUR]))
    assert list(chosen) == [IDLE, ON_DEMAND]


def test_it_leaves_on_demand_for_spot_that_pays_for_the_way_and_not_for_the_last_minutes():
    late = view(job=JOB, remaining_seconds=8 * HOUR, work_seconds=[6 * HOUR, 300.0], mode=ON_DEMAND, spell_seconds=HOUR)
    assert list(Plan().choose(late)) == [SPOT, ON_DEMAND]
    assert list(Plan().choose(replace(late, job=replace(JOB, may_return=False)))) == [ON_DEMAND, ON_DEMAND]


def test_its_own_deaths_and_gaps_make_it_careful():
    tight = replace(JOB, total_seconds=12 * HOUR)
    calm = start(tight, is_up=False, spell_seconds=1800.0)
    torn = replace(calm, seen=replace(calm.seen, down_ends=np.zeros(1), down_expected=np.full(1, 40.0)))
    quick = replace(calm, seen=replace(calm.seen, down_ends=np.full(1, 40.0), down_expected=np.full(1, 5.0)))
    assert Plan().cost_share(torn) > Plan().cost_share(calm) > Plan().cost_share(quick)


@pytest.mark.parametrize(
    ("total", "work", "changeover"),
    [(1e-3, 1e-3, 0.0), (14 * 24 * HOUR, 300.0, 120.0), (3600.0, 3599.0, 60.0), (60.0, 20.0, 5.0), (9e6, 8e6, 7200.0)],
)
def test_any_job_has_a_table_of_bounded_size_and_an_answer(total, work, changeover):
    job = Job(total, work, changeover)
    assert table_for(job, 1.0, 1.0).wishes.size < 2e7
    asked = start(job, mode=[IDLE, SPOT, ON_DEMAND], spell_seconds=HOUR)
    assert set(Plan().choose(asked)) <= set(Mode)
    share = Plan().cost_share(asked)
    assert share is None or 0 < share < 2


def test_a_small_job_with_all_the_time_in_the_world_begins_at_once():
    job = Job(total_seconds=14 * 24 * HOUR, work_seconds=300.0, changeover_seconds=20.0)
    assert list(Plan().choose(start(job))) == [SPOT]


def test_what_lies_beyond_the_horizon_does_not_change_the_choice():
    job = Job(total_seconds=60 * 24 * HOUR, work_seconds=5 * HOUR, changeover_seconds=360.0)
    assert table_for(job, 1.0, 1.0).horizon_seconds < job.total_seconds
    assert list(Plan().choose(start(job, is_up=False, spell_seconds=10 * HOUR))) == [IDLE]


@pytest.mark.parametrize(("name", "value"), [("prior_weight", math.nan), ("reach", math.inf), ("reach", 0.5)])
def test_numbers_that_are_none_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} of plan"):
        named_policy("plan", {name: value})
