"""The yardstick for several pools: charges and least costs that are counted by hand, or found by trying everything."""

from __future__ import annotations

import gzip
import itertools
import json

import numpy as np
import pytest

from benchmarks.deadline.skynomad.cases import HOUR, SKYNOMAD, THEIR_OPTIMUM, UP_S, Case, Zone, read_cases
from benchmarks.deadline.skynomad.optimum import least_cost
from benchmarks.deadline.skynomad.plan import WEIGHTS, PlanOverPools
from benchmarks.deadline.skynomad.report import measure
from benchmarks.deadline.skynomad.uniform_progress import UniformProgress
from benchmarks.deadline.skynomad.world import run
from segue.errors import TraceError
from segue.policy.rules.pool_beliefs import Beliefs

TICK, RESTART = 600.0, 720.0


def zone(name, up, *, spot=6.0, on_demand=18.0):
    flags = np.array([letter == "u" for letter in up])
    return Zone(name, TICK, flags, np.full(len(flags), spot), on_demand)


def case(*zones, work=480.0, checkpoint_gb=50.0):
    ticks = len(zones[0].up)
    return Case("own", "zones", zones, work, ticks * TICK, RESTART, checkpoint_gb, 0, {})


class Script:
    """A policy that does what it is told at each tick: a function of the world, or nothing."""

    def __init__(self, *actions):
        self._actions = iter(actions)

    def act(self, world):
        action = next(self._actions, None)
        if action is not None:
            action(world)


def spot(number):
    return lambda world: world.try_spot(number)


def on_demand(number):
    return lambda world: world.use_on_demand(number)


def test_a_launch_makes_no_progress_for_the_restart_and_whole_ticks_are_charged():
    # The first tick and 120 s of the second are the restart, so 480 s are done after two ticks of a dollar each.
    outcome = run(case(zone("us-west1-a_x_1", "uuuuuu")), Script(spot(0)))
    assert (outcome.cost, outcome.cost_as_published, outcome.launches, outcome.is_late) == (2.0, 1.0, 1, False)


def test_a_refused_request_is_free_and_a_machine_is_lost_when_its_zone_goes_down():
    made = case(zone("us-west1-a_x_1", "duuduuuuuu"), work=960.0)
    # Refused; up for two ticks, in which 480 s are done; again from the fifth tick on.
    outcome = run(made, Script(spot(0), spot(0), None, None, spot(0)))
    assert (outcome.cost, outcome.launches) == (4.0, 2)


def test_a_checkpoint_moves_for_nothing_within_a_region_and_for_money_between_regions():
    zones = [zone(name, "uuuuuuuuuu") for name in ("us-west1-a_x_1", "us-west1-b_x_1", "us-east4-a_x_1")]
    costs = [run(case(*zones, work=960.0), Script(spot(0), None, spot(number))).cost for number in (1, 2)]
    assert costs == [4.0, 4.0 + 50 * 0.02]
    aws = [zone(name, "uuuuuuuuuu") for name in ("us-east-1a_x_1", "us-east-2b_x_1")]
    assert run(case(*aws, work=960.0), Script(spot(0), None, spot(1))).cost == 4.0 + 50 * 0.01


def test_on_demand_takes_over_in_time_where_the_rest_costs_least_and_stays():
    dear, cheap = zone("us-west1-a_x_1", "dddddddd", on_demand=24.0), zone("us-east4-a_x_1", "dddddddd")
    outcome = run(case(dear, cheap, work=1080.0), Script())
    # 1,080 s and the restart are three ticks; they begin when no more than that, and one tick, is left.
    assert (outcome.cost, outcome.was_taken_over, outcome.is_late) == (9.0, True, False)


def test_without_time_for_a_restart_everything_is_on_demand():
    made = case(zone("us-west1-a_x_1", "uuuu"), work=4 * TICK)
    assert made.is_all_on_demand
    assert run(made, Script()).cost == least_cost(made) == pytest.approx((4 * TICK + RESTART) / HOUR * 18.0)


def test_uniform_progress_takes_the_cheapest_zone_and_then_one_of_another_region():
    zones = (
        zone("us-west1-a_x_1", "uuudddddddddddd", spot=3.0),
        zone("us-west1-b_x_1", "uuuuuuuuuuuuuuu", spot=4.0),
        zone("us-east4-a_x_1", "uuuuuuuuuuuuuuu", spot=5.0),
    )
    # Three ticks for half a dollar, then six in the other region, with the transfer: 1,080 and 2,880 s of work.
    outcome = run(case(*zones, work=3960.0), UniformProgress())
    assert outcome.cost == pytest.approx(3 * 0.5 + 6 * 5 / 6 + 1.0)


def everything(made):
    """The least cost of all sequences of actions, without on-demand taking over."""
    choices = [None, *((number, is_spot) for number in range(len(made.zones)) for is_spot in (True, False))]
    best = np.inf
    for actions in itertools.product(choices, repeat=made.ticks):
        best = min(best, cost_of(made, actions))
    return best


def cost_of(made, actions):
    held = last = None
    age = cost = done = 0
    for tick, wish in enumerate(actions):
        if wish is None:
            held = None
            continue
        number, is_spot = wish
        if is_spot and not made.zones[number].up[tick]:
            return np.inf
        if wish != held:
            age, cost = 0, cost + made.transfer_cost(last, number)
        held, last, age = wish, number, age + 1
        price = made.zones[number].spot_price[tick] if is_spot else made.zones[number].on_demand_price
        cost += price * TICK / HOUR
        done += min(max(age * TICK - RESTART, 0.0), TICK)
        if done >= made.work_seconds:
            return cost
    return np.inf


@pytest.mark.parametrize("seed", range(6))
def test_the_least_cost_is_that_of_the_best_of_all_sequences_of_actions(seed):
    random = np.random.default_rng(seed)
    names = ("us-west1-a_x_1", "us-east4-a_x_1")
    zones = []
    for name in names:
        up = random.random(6) < 0.6
        zones.append(Zone(name, TICK, up, random.uniform(2.0, 8.0, 6), 18.0))
    made = case(*zones, work=float(random.choice([480.0, 960.0, 1080.0])), checkpoint_gb=float(random.choice([0, 20])))
    assert least_cost(made) == pytest.approx(everything(made))
    assert least_cost(made, charges_last_tick=False) < least_cost(made)


@pytest.mark.parametrize("seed", range(8))
def test_plan_over_pools_is_never_late_or_cheaper_than_possible(seed):
    random = np.random.default_rng(seed)
    names = ("us-west1-a_x_1", "us-west1-b_x_1", "us-east4-a_x_1", "europe-west1-c_x_1")
    zones, ticks = [], 48
    for name in names[: random.integers(1, 5)]:
        flips = random.random(ticks) < random.uniform(0.05, 0.5)
        up = np.logical_xor.accumulate(flips)
        zones.append(Zone(name, TICK, up, np.full(ticks, random.uniform(2.0, 8.0)), random.uniform(16.0, 24.0)))
    made = case(
        *zones, work=float(random.uniform(0.5, 0.95)) * ticks * TICK, checkpoint_gb=float(random.choice([0, 50]))
    )
    outcome = run(made, PlanOverPools(made))
    assert not outcome.is_late
    assert outcome.cost >= least_cost(made) - 1e-6


def test_plan_over_pools_waits_for_spot_while_there_is_time_and_stays_on_the_cheapest_pool():
    cheap, other = zone("us-west1-a_x_1", "u" * 60, spot=3.0), zone("us-east4-a_x_1", "u" * 60, spot=5.0)
    made = case(other, cheap, work=30 * TICK)
    assert run(made, PlanOverPools(made)).cost == least_cost(made)
    down_first = case(zone("us-west1-a_x_1", "d" * 4 + "u" * 56, spot=3.0), work=30 * TICK)
    assert run(down_first, PlanOverPools(down_first)).cost == least_cost(down_first)
    never = case(zone("us-west1-a_x_1", "d" * 60, spot=3.0), work=30 * TICK)
    assert run(never, PlanOverPools(never)).cost == least_cost(never)


def test_a_pool_that_has_lasted_is_believed_to_last_and_the_others_gain_by_it():
    beliefs = Beliefs(2, WEIGHTS)
    before = beliefs.up.rates()
    assert (np.diff(before[0]) < 0).all()
    beliefs.up.add(0, 0.0, 20 * HOUR, has_ended=False)
    after = beliefs.up.rates()
    assert (after[0] < after[1]).all()
    assert (after[1] < before[1]).all()
    for _ in range(5):
        beliefs.up.add(1, 0.0, 600.0, has_ended=True)
    restless = beliefs.up.rates()
    assert (restless[1, :3] > after[1, :3]).all()
    assert restless[1, -1] == after[1, -1]  # Short intervals say nothing about long ones.


def pack(folder, **published):
    up = [[1, 20], [0, 4], [1, 40]]
    trace = {"tick": 600, "start": "2025-10-04T00:10:00", "up": up, "spot": [[6.0, 64]], "on_demand": 18.0}
    found = {
        "sweep": "own",
        "scenario": "one",
        "regions": ["us-west1-a_x_1"],
        "work_h": 2.0,
        "deadline_h": 4.0,
        "restart_h": 0.2,
        "checkpoint_gb": 50.0,
        "start_h": 4.0,
        "window": 1,
        "published": published,
    }
    with gzip.open(folder / "pack.json.gz", "wt") as file:
        json.dump({"traces": {"us-west1-a_x_1": trace}, "cases": [found]}, file)


def test_the_report_has_each_point_and_says_whether_a_published_cost_is_reproduced(tmp_path):
    # The window is the second one, and begins with the last 4 hours before the trace's end: up all the time.
    pack(tmp_path, **{SKYNOMAD: 15.0, UP_S: 13.0, THEIR_OPTIMUM: 12.0})
    [made] = read_cases(tmp_path)
    assert (made.ticks, made.tick_seconds, made.zones[0].region, int(made.zones[0].up.sum())) == (
        24,
        600,
        "us-west1",
        24,
    )
    said = []
    report = measure(tmp_path, jobs=1, say=said.append)
    assert said == ["1 of 1 cases"]
    assert (report["cases"], report["not_reproduced"]) == (1, 0)
    # 14 ticks of a dollar, of which the last one is not counted.
    assert report["all"]["least_vs_their_optimum"] == report["all own"]["least_vs_their_optimum"] == round(13 / 12, 4)
    pack(tmp_path, **{SKYNOMAD: 15.0, UP_S: 12.0, THEIR_OPTIMUM: 12.0})
    assert measure(tmp_path, jobs=1, say=said.append)["not_reproduced"] == 1


def test_data_that_is_not_there_is_said_with_what_to_do(tmp_path):
    with pytest.raises(TraceError, match="cannot be read") as missing:
        read_cases(tmp_path)
    assert "give the folder with the converted artifact" in str(missing.value)
