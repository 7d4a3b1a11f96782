"""The costs of PLAN over pools: exact where they are simple, and in the right order elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from segue.policy.rules.pool_beliefs import BINS, Beliefs, Weights, age_bin
from segue.policy.rules.pool_plan import in_tuples
from segue.policy.rules.pool_table import NEVER, Pools, Table, solve

HOUR = 3600.0
NEVER_ENDS = in_tuples(np.zeros((2, BINS)))
ALWAYS = in_tuples(np.full((2, BINS), 1.0))


def pools_of(*prices: float, on_demand: float = 3.0, **changes) -> Pools:
    """Pools of which nothing is known; prices per hour."""
    count = len(prices)
    beliefs = Beliefs(count, Weights())
    made = Pools(
        prices=tuple(price / HOUR for price in prices),
        on_demand_price=on_demand / HOUR,
        transfer=in_tuples(np.zeros((count + 1, count))),
        transfer_to_on_demand=(0.0,) * (count + 1),
        on_demand_source=count,
        changeover_seconds=300.0,
        least_slack_seconds=600.0,
        up_rates=in_tuples(beliefs.up.rates()),
        down_rates=in_tuples(beliefs.down.rates()),
        shares=tuple(beliefs.shares().tolist()),
        moves="overlapping",
    )
    return replace(made, **changes)


def table_of(pools: Pools, *, hours: float = 10.0, step: float = 600.0, **options) -> Table:
    seconds = {"remaining_seconds": hours * HOUR, "slack_seconds": hours * HOUR}
    return solve(pools, **seconds, step_seconds=step, slack_step_seconds=step / 5, **options)


@pytest.mark.parametrize("boot", [60.0, 300.0, 600.0, 900.0, 1500.0])
@pytest.mark.parametrize("moves", ["overlapping", "by_restart"])
def test_a_pool_that_never_ends_costs_its_boot_and_its_work(boot, moves):
    pools = pools_of(1.0, 2.0, up_rates=NEVER_ENDS, changeover_seconds=boot, moves=moves)
    costs = table_of(pools).at(10 * HOUR, 4 * HOUR)
    assert costs.stay[0] == pytest.approx(6.0, rel=1e-3)
    assert costs.start[:, -1, 0] == pytest.approx(6.0 + boot / HOUR, rel=1e-3)
    # On the second pool, the run waits for the first one, which comes up soon.
    assert 6.0 < costs.stay[1, 0] < 12.0


@pytest.mark.parametrize("boot", [60.0, 300.0, 900.0])
def test_on_demand_costs_its_boot_and_its_work_if_spot_never_comes(boot):
    pools = pools_of(1.0, 2.0, down_rates=NEVER_ENDS, changeover_seconds=boot)
    costs = table_of(pools).at(10 * HOUR, 4 * HOUR)
    assert costs.on_demand == pytest.approx(18.0, rel=1e-3)
    assert costs.start_on_demand[-1] == pytest.approx(18.0 + 3 * boot / HOUR, rel=1e-3)


def test_an_overlapping_move_pays_both_machines_and_a_restart_costs_slack():
    pools = pools_of(1.0, 2.0, up_rates=NEVER_ENDS, down_rates=NEVER_ENDS)
    overlapping, by_restart = (
        table_of(replace(pools, moves=moves)).at(10 * HOUR, 4 * HOUR) for moves in ("overlapping", "by_restart")
    )
    boot, saved = 300 / HOUR, 300 / HOUR
    from_pool, from_on_demand = overlapping.move[0, 1, 0], overlapping.move[0, -1, 0]
    assert from_pool == pytest.approx(6.0 + (1 + 2) * boot - saved, rel=1e-3)
    assert from_on_demand == pytest.approx(6.0 + (1 + 3) * boot - saved, rel=1e-3)
    assert by_restart.move[0, 1, 0] == pytest.approx(6.0 + boot, rel=1e-3)


def test_a_move_to_a_dearer_pool_and_a_start_on_a_pool_dearer_than_on_demand_are_not_permitted():
    costs = table_of(pools_of(1.0, 2.0, 3.5)).at(10 * HOUR, 4 * HOUR)
    assert costs.move[0, 0, 1] > NEVER / 2
    assert costs.move[0, 1, 0] < 30.0
    assert (costs.start[:, :, 2] > NEVER / 2).all()
    assert (costs.move[:, -1, 2] > NEVER / 2).all()


def test_a_hand_over_takes_slack_and_is_paid_twice():
    pools = pools_of(1.0, 2.0, up_rates=NEVER_ENDS, down_rates=NEVER_ENDS)
    tables = (table_of(replace(pools, handover_seconds=seconds)) for seconds in (0.0, 360.0))
    free, measured = (table.at(10 * HOUR, 4 * HOUR).move[0, -1, 0] for table in tables)
    assert measured - free == pytest.approx((1 + 3) * 0.1, rel=1e-3)
    little = table_of(replace(pools, handover_seconds=3600.0), step=300.0).at(10 * HOUR, 0.9 * HOUR)
    assert little.move[0, -1, 0] > NEVER / 2


def test_without_moves_a_run_stays_where_it_is():
    none, moving = (
        table_of(pools_of(1.0, 2.0, moves=moves)).at(10 * HOUR, 4 * HOUR) for moves in ("none", "overlapping")
    )
    assert none.on_demand == pytest.approx(18.0, rel=1e-3)
    assert moving.on_demand[0] < 15.0
    assert none.stay[1, 3] > moving.stay[1, 3] + 0.5
    assert (none.move > NEVER / 2).all()


def test_work_that_a_death_loses_costs_money():
    nothing, much = (
        table_of(pools_of(1.0, 1.2, lost_by_a_death_seconds=lost)).at(10 * HOUR, 4 * HOUR) for lost in (0.0, 1800.0)
    )
    assert (much.stay > nothing.stay + 0.01).all()
    assert (much.start[:, -1] > nothing.start[:, -1] + 0.01).all()


def test_with_less_than_the_least_slack_on_demand_does_all_the_work():
    costs = table_of(pools_of(1.0, 2.0), step=300.0).at(10 * HOUR, 0.0)
    assert costs.start_on_demand == pytest.approx(3 * (10 + 300 / HOUR), rel=1e-3)
    assert (costs.start > NEVER / 2).all()
    assert (costs.idle > NEVER / 2).all()


def test_a_pool_more_or_a_cheaper_one_is_never_dearer():
    one, two, cheaper = (
        table_of(pools_of(*prices)).at(10 * HOUR, 3 * HOUR) for prices in ((1.5,), (1.5, 1.5), (1.5, 1.0))
    )
    assert (two.idle[-1] < one.idle[-1]).all()
    assert (cheaper.idle[-1] < two.idle[-1]).all()
    assert (cheaper.stay[0] < two.stay[0] + 1e-6).all()


def test_each_step_is_the_mean_of_what_can_follow():
    # The value of staying, by hand: half of the machines end in each step, and the pool never comes back.
    rates = in_tuples(np.full((1, BINS), np.log(2) / 600))
    pools = pools_of(1.0, up_rates=rates, down_rates=in_tuples(np.zeros((1, BINS))), least_slack_seconds=0.0)
    table = table_of(replace(pools, shares=(0.0,), changeover_seconds=0.0), hours=2.0)
    left = {0: 0.0}
    for step in range(1, 7):
        paid, on_demand = 600 / HOUR, 3.0 * (step - 1) * 600 / HOUR
        left[step] = paid + 0.5 * left[step - 1] + 0.5 * on_demand
    assert table.at(2 * HOUR, HOUR).stay[0] == pytest.approx(left[6], rel=1e-3)


def test_a_table_can_keep_only_the_steps_of_the_longest_remaining_times():
    pools = pools_of(1.0, 2.0)
    whole, part = table_of(pools), table_of(pools, most_steps=8)
    for seconds in (10 * HOUR, 9 * HOUR):
        for all_of_it, kept in zip(whole.at(seconds, HOUR), part.at(seconds, HOUR), strict=True):
            assert np.array_equal(all_of_it, kept)


def test_hazards_follow_the_intervals_of_a_pool_and_other_pools_a_little():
    beliefs = Beliefs(2, Weights())
    before = beliefs.up.rates()
    for _ in range(10):
        beliefs.up.add(0, 0.0, 60.0, has_ended=True)
    after = beliefs.up.rates()
    young = age_bin(0.0)
    assert after[0, young] > after[1, young] > before[1, young]


def test_shares_follow_the_answers_of_a_pool():
    beliefs = Beliefs(2, Weights())
    for _ in range(3):
        beliefs.asked(0, is_granted=False)
        beliefs.asked(1, is_granted=True)
    refused, granted = beliefs.shares()
    assert refused < 0.4 < 0.7 < granted


@pytest.mark.parametrize(("life", "boot"), [(1800.0, 120.0), (5400.0, 600.0)])
def test_a_coarse_grid_counts_deaths_and_lost_boots_almost_as_a_fine_one(life, boot):
    rates = in_tuples(np.full((1, BINS), 1 / life))
    pools = pools_of(1.0, up_rates=rates, down_rates=in_tuples(np.full((1, BINS), 1 / 60)), shares=(1.0,))
    pools = replace(pools, changeover_seconds=boot)
    fine, coarse = (
        table_of(pools, hours=14.0, step=step).at(14 * HOUR, 6 * HOUR).start[0, -1, 0] for step in (60, 300)
    )
    assert coarse == pytest.approx(fine, rel=0.02)
