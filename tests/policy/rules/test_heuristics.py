"""Each policy's rule, on both sides of its boundary. One row of a view is one run."""

from __future__ import annotations

import numpy as np
import pytest

from segue.policies import POLICIES
from segue.policy.rules.heuristics import Capped, EagerProgress, Greedy, SpotOnly, UniformProgress
from segue.policy.rules.registry import RULES, named_policy
from segue.policy.rules.view import Intervals, Job, Mode, View
from segue.spec import PolicySpec

HOUR = 3600.0
IDLE, SPOT, ON_DEMAND = Mode.IDLE, Mode.SPOT, Mode.ON_DEMAND
JOB = Job(total_seconds=20 * HOUR, work_seconds=10 * HOUR, changeover_seconds=60.0)


def view(**fields) -> View:
    """One row for each element of the longest field; the rest is the same in all."""
    known = {"remaining_seconds": 15 * HOUR, "work_seconds": 9 * HOUR, "mode": IDLE, "is_up": True}
    known |= {"age_seconds": 0.0, "preemptions": 0.0} | fields
    job = known.pop("job", JOB)
    rows = max(np.size(value) for value in known.values())
    kinds = {"mode": np.int8, "is_up": bool}
    arrays = {name: np.broadcast_to(value, rows).astype(kinds.get(name, float)) for name, value in known.items()}
    return View(job=job, observed=Intervals.none(rows), **arrays)


def test_the_baselines_always_choose_the_same():
    seen = view(remaining_seconds=[20 * HOUR, 1.0], is_up=[True, False])
    assert list(named_policy("on_demand_only").choose(seen)) == [ON_DEMAND, ON_DEMAND]
    assert list(SpotOnly().choose(seen)) == [SPOT, SPOT]


def test_greedy_leaves_spot_when_slack_is_under_two_changeovers_and_stays_away():
    seen = view(remaining_seconds=9 * HOUR + np.array([119.9, 120.0, 120.1, 900.0]), mode=[IDLE, IDLE, IDLE, ON_DEMAND])
    assert list(Greedy().choose(seen)) == [ON_DEMAND, SPOT, SPOT, ON_DEMAND]


def test_greedy_stays_on_a_spot_instance_it_has():
    assert list(Greedy().choose(view(remaining_seconds=9 * HOUR, mode=SPOT))) == [SPOT]


def test_the_tutorials_threshold_counts_preemptions_or_looks_at_the_slack():
    policy = named_policy("threshold", {"preemptions": 2, "slack_share": 0.2})
    seen = view(preemptions=[1, 2, 0, 0], remaining_seconds=[15 * HOUR, 15 * HOUR, 11.2 * HOUR, 11.3 * HOUR])
    assert list(policy.choose(seen)) == [SPOT, ON_DEMAND, ON_DEMAND, SPOT]


def test_uniform_progress_works_when_idle_and_behind_the_line_until_it_is_ahead_by_two_changeovers():
    # Half of the time is 10 h gone: the line asks for 5 h done, so 5 h left; two changeovers are one more minute of it.
    left = 5 * HOUR + np.array([1.0, 0.0, 1.0, 0.0, -59.0, -61.0])
    modes = [IDLE, IDLE, SPOT, ON_DEMAND, ON_DEMAND, ON_DEMAND]
    seen = view(
        remaining_seconds=10 * HOUR, work_seconds=left, mode=modes, is_up=[False, False, True, False, False, False]
    )
    chosen = list(UniformProgress().choose(seen))
    assert chosen == [ON_DEMAND, SPOT, SPOT, ON_DEMAND, ON_DEMAND, SPOT]


def test_uniform_progress_takes_the_risk_of_spot_though_it_is_behind_but_not_from_on_demand():
    seen = view(remaining_seconds=10 * HOUR, work_seconds=9 * HOUR, mode=[IDLE, ON_DEMAND])
    assert list(UniformProgress().choose(seen)) == [SPOT, ON_DEMAND]
    assert list(EagerProgress().choose(seen)) == [SPOT, SPOT]


def test_on_demand_is_kept_until_two_changeovers_ahead_of_the_line_whether_spot_is_up_or_not():
    left = 5 * HOUR + np.array([-59.0, -61.0, -59.0, -61.0])
    seen = view(remaining_seconds=10 * HOUR, work_seconds=left, mode=ON_DEMAND, is_up=[True, True, False, False])
    assert list(UniformProgress().choose(seen)) == [ON_DEMAND, SPOT, ON_DEMAND, SPOT]
    assert list(EagerProgress().choose(seen)) == [SPOT, SPOT, ON_DEMAND, SPOT]


def test_time_slices_catch_up_within_each_slice():
    # The first of four slices ends 5 h in, with 2.5 h to be done by then.
    policy = named_policy("time_sliced", {"slices": 4})
    gone = np.array([2.4, 2.6, 2.6]) * HOUR
    seen = view(remaining_seconds=20 * HOUR - gone, work_seconds=np.array([10.0, 10.0, 7.4]) * HOUR)
    assert list(policy.choose(seen)) == [SPOT, ON_DEMAND, SPOT]


def test_slack_age_waits_in_short_down_intervals_and_not_in_long_ones():
    policy = named_policy("slack_age")
    seen = view(remaining_seconds=9 * HOUR + 11 * HOUR, is_up=False, age_seconds=[60.0, 20 * HOUR])
    assert list(policy.choose(seen)) == [SPOT, ON_DEMAND]


def test_slack_age_leaves_on_demand_only_for_up_intervals_that_pay_for_the_changeover():
    job = Job(total_seconds=20 * HOUR, work_seconds=10 * HOUR, changeover_seconds=1.2 * HOUR)
    seen = view(job=job, mode=ON_DEMAND, age_seconds=[0.0, 20 * HOUR])
    assert list(named_policy("slack_age").choose(seen)) == [ON_DEMAND, SPOT]


@pytest.mark.parametrize("name", POLICIES)
def test_standbys_are_sent_for_the_policies_that_come_back_from_on_demand(name):
    policy = named_policy(name)
    rich = view(mode=ON_DEMAND, work_seconds=4 * HOUR, age_seconds=30 * HOUR)
    assert bool(policy.choose(rich)[0] == SPOT) is (policy.comes_back or name == "spot_only")


def test_every_declared_policy_has_a_rule_and_every_rule_is_declared():
    assert list(RULES) == list(POLICIES)
    assert all(issubclass(RULES[name], declared) for name, declared in POLICIES.items())


@pytest.mark.parametrize("name", POLICIES)
def test_a_bound_on_preemptions_ends_any_policys_time_on_spot(name):
    policy = Capped(named_policy(name), preemptions=2)
    seen = view(preemptions=[1, 2])
    assert policy.choose(seen)[0] == named_policy(name).choose(seen)[0]
    assert policy.choose(seen)[1] == ON_DEMAND


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_decides_for_each_run_by_itself(name):
    seen = view(
        remaining_seconds=np.array([19.0, 12.0, 10.2, 9.5]) * HOUR,
        mode=[IDLE, SPOT, ON_DEMAND, IDLE],
        is_up=[0, 1, 1, 1],
    )
    alone = [named_policy(name).choose(seen.only(np.arange(4) == at))[0] for at in range(4)]
    assert list(named_policy(name).choose(seen)) == alone


@pytest.mark.parametrize(
    ("name", "parameters", "said"),
    [
        ("greedy", {"patience": 1.0}, "greedy has no parameter 'patience'; it has none"),
        ("plan", {"weight": 1.0}, "plan has no parameter 'weight'; it has prior_weight, reach"),
        ("threshold", {"slack_share": -1.0}, "slack_share of threshold must be a positive float"),
    ],
)
def test_a_wrong_parameter_is_named_with_those_that_are_right(name, parameters, said):
    with pytest.raises(ValueError, match=said):
        named_policy(name, parameters)


def test_a_threshold_is_bounded_in_a_spec_as_the_policy_itself_counts():
    spec = PolicySpec(name="threshold")
    assert spec.preemption_bound == named_policy("threshold").preemptions
    assert PolicySpec(name="threshold", max_preemptions=1).preemption_bound == 1
    assert PolicySpec(name="plan").preemption_bound is None
