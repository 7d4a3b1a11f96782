"""The simulator against days worked out by hand: ten-minute ticks, an hour of work, spot at 1 and on-demand at 3."""

from __future__ import annotations

import numpy as np
import pytest

from segue.policy.rules.heuristics import Capped, Greedy, OnDemandOnly, SpotOnly, UniformProgress
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Job, Mode
from segue.simulation.simulator import Harshness, simulate

TICK, HOUR = 600.0, 3600.0
JOB = Job(total_seconds=3 * HOUR, work_seconds=HOUR, changeover_seconds=300.0, knowledge="free", handover=False)


def ticks(text: str) -> np.ndarray:
    """One run of spot, a letter a tick: u up, d down; the last letter goes on to the end."""
    return np.array([[letter == "u" for letter in text.ljust(19, text[-1])]])


def outcome(policy, text: str, *, job: Job = JOB, **fields):
    return simulate(policy, job, ticks(text), tick_seconds=TICK, **fields)


def test_on_demand_pays_for_the_boot_and_the_work():
    one = outcome(OnDemandOnly(), "u")
    assert one.cost[0] == 3 * (300 + HOUR)
    assert one.finished_seconds[0] == 300 + HOUR
    assert (one.preemptions[0], bool(one.is_late[0])) == (0, False)


def test_spot_that_never_goes_away_costs_a_boot_and_the_work():
    one = outcome(Greedy(), "u")
    assert (one.cost[0], one.on_demand_seconds[0], one.finished_seconds[0]) == (300 + HOUR, 0, 300 + HOUR)


def test_a_down_interval_costs_its_time_and_a_second_boot():
    one = outcome(Greedy(), "uuudduuuu")
    # Three ticks: 25 minutes done. Two idle. Then a boot and the other 35 minutes.
    assert one.cost[0] == (300 + 1500) + (300 + 2100)
    assert one.finished_seconds[0] == 5 * TICK + 300 + 2100
    assert (one.preemptions[0], one.lost_seconds[0]) == (1, 0)


def test_without_any_spot_greedy_waits_until_the_safety_net_and_is_in_time():
    one = outcome(Greedy(), "d")
    # R - C < 2d, seen at a tick: after 110 minutes, with 70 left for 60 of work and 5 of boot.
    assert one.finished_seconds[0] == 11 * TICK + 300 + HOUR
    assert not one.is_late[0]


def test_the_clamp_keeps_the_deadline_of_a_policy_without_a_safety_net():
    one = outcome(SpotOnly(), "d")
    assert (one.on_demand_seconds[0], bool(one.is_late[0])) == (300 + HOUR, False)


def test_a_hopeless_job_is_reported_and_does_not_wait():
    job = Job(total_seconds=HOUR, work_seconds=HOUR, changeover_seconds=300.0)
    one = outcome(SpotOnly(), "d", job=job)
    assert one.was_hopeless
    assert (bool(one.is_late[0]), one.finished_seconds[0]) == (True, 300 + HOUR)


def test_handing_over_costs_no_progress_but_both_machines_while_the_standby_boots():
    job = Job(total_seconds=2 * HOUR, work_seconds=HOUR, changeover_seconds=300.0, knowledge="free", handover=True)
    # Behind the line after one tick: on-demand, which stays until it is ahead of the line by ten minutes.
    one = outcome(UniformProgress(), "ddddddduuuuuu", job=job, traced=True)
    moved = list(one.modes[0]).index(Mode.ON_DEMAND)
    assert one.finished_seconds[0] == moved * TICK + 300 + HOUR
    paid_twice = one.spot_seconds[0] + one.on_demand_seconds[0] - (300 + HOUR)
    assert paid_twice == 300


def test_a_standby_that_dies_as_it_boots_leaves_on_demand_at_work():
    slow = Job(total_seconds=3 * HOUR, work_seconds=HOUR, changeover_seconds=900.0, knowledge="free", handover=True)
    policy = UniformProgress()
    calm = outcome(policy, "d", job=slow)
    torn = outcome(policy, "ddddddud", job=slow)
    assert torn.finished_seconds[0] == calm.finished_seconds[0]
    assert torn.spot_seconds[0] == TICK
    assert torn.preemptions[0] == 0


def test_saves_slow_every_capacity_down():
    one = outcome(OnDemandOnly(), "u", harshness=Harshness(save_seconds=60, save_every_seconds=600))
    assert one.finished_seconds[0] == pytest.approx(300 + HOUR * 1.1)


def test_work_since_the_last_save_is_lost_with_an_instance_that_dies_within_a_tick():
    harsh = Harshness(save_every_seconds=700.0, dies_within_tick=True)
    found = [outcome(Greedy(), "uuudduuuuu", harshness=harsh, seed=seed) for seed in range(20)]
    lost = np.array([one.lost_seconds[0] for one in found])
    # 25 minutes were worked at the most, of which 11 to 23 were saved.
    assert ((lost >= 0) & (lost <= 600 + 200)).all()
    assert lost.std() > 0
    assert not any(one.is_late[0] for one in found)


def test_a_death_that_is_detected_late_delays_what_comes_next():
    prompt = outcome(Greedy(), "uuudu")
    late = outcome(Greedy(), "uuudu", harshness=Harshness(detection_seconds=1200.0))
    assert late.finished_seconds[0] == prompt.finished_seconds[0] + TICK


def test_sentinels_cost_spot_time_and_save_more_than_they_cost():
    job = Job(total_seconds=3 * HOUR, work_seconds=2 * HOUR, changeover_seconds=300.0, handover=True)
    text = "dddduuuuuuuuuuuuuuuu"
    costs = {}
    for knowledge in ("free", "sentinel", "none"):
        fields = {name: getattr(job, name) for name in ("total_seconds", "work_seconds", "changeover_seconds")}
        one = outcome(named_policy("plan"), text, job=Job(**fields, knowledge=knowledge))
        costs[knowledge] = one.cost[0] - one.sentinel_seconds[0]
        assert bool(one.sentinel_seconds[0] > 0) is bool(knowledge == "sentinel" and one.on_demand_seconds[0] > 0)
        assert not one.is_late[0]
    assert costs["free"] <= costs["sentinel"] <= costs["none"]


def test_where_there_is_no_way_back_on_demand_is_kept_to_the_end():
    job = Job(total_seconds=3 * HOUR, work_seconds=HOUR, changeover_seconds=300.0, knowledge="none")
    one = outcome(UniformProgress(), "dddu", job=job, traced=True)
    modes = list(one.modes[0])
    assert set(modes[modes.index(Mode.ON_DEMAND) :]) == {Mode.ON_DEMAND}


def test_a_death_loses_the_work_requested_and_no_more_than_the_attempt_did():
    lost = [
        outcome(Greedy(), text, harshness=Harshness(lost_by_a_death_seconds=400.0)).lost_seconds[0]
        for text in ("uuudduuuu", "uduuuuuu", "uuuuuuuuu")
    ]
    assert lost == [400.0, 300.0, 0.0]  # The second did five minutes of work in its only tick.


def test_no_spot_attempt_begins_with_less_slack_than_required():
    job = Job(total_seconds=3 * HOUR, work_seconds=HOUR, changeover_seconds=300.0, knowledge="free", handover=False)
    calm, careful = (
        outcome(SpotOnly(), "dddddddu", job=job, harshness=Harshness(start_slack_seconds=slack))
        for slack in (0.0, 1.5 * HOUR)
    )
    assert (calm.on_demand_seconds[0], careful.spot_seconds[0]) == (0.0, 0.0)
    assert not careful.is_late[0]


def test_no_sentinel_is_sent_where_the_run_cannot_return():
    job = Job(total_seconds=3 * HOUR, work_seconds=2 * HOUR, changeover_seconds=300.0)
    bounds = {most: outcome(Capped(named_policy("plan"), most), "uduuuuuuuuu", job=job) for most in (0, 9)}
    assert bounds[0].sentinel_seconds[0] == 0.0
    assert bounds[0].cost[0] == 3 * (300 + 2 * HOUR)
    short = Job(total_seconds=3 * HOUR, work_seconds=590.0, changeover_seconds=300.0)
    assert outcome(Capped(OnDemandOnly(), 0), "u", job=short).sentinel_seconds[0] == 0.0
