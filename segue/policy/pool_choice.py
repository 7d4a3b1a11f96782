"""Chooses the spot pool for the next attempt by price and the run's observations. The module is pure.

For each pool, an hour of useful work is expected to cost

    (price (1 + d / L) + r / L) e^(w / L)  +  on-demand price x share x W / L

L is the mean life of an attempt on the pool, and W is the mean wait on the pool. d is the changeover, r the money for
the checkpoint that a start reads, and w the work that a death loses. `share` is the remaining work divided by the
remaining time: the part of each waited second that the run has to buy on on-demand later. If deaths come at a constant
rate, the run keeps the part e^(-w / L) of the work. For w far below L, the first term is price (L + d + w) / L. The
module chooses the pool with the lowest cost, and the first pool in the list if the costs are equal. A pool without
capacity comes last for half an hour.

segue requests an attempt on every pool on which an hour of useful work costs less than on-demand. The first machine
that claims the attempt trains it. segue requests a dearer pool later than the chosen pool: when the wait for the chosen
pool has cost as much as the extra cost of the dearer machine,

    on-demand price x share x wait  =  (price of useful work - price of useful work on the chosen pool) min(L, W + d)

Here, the price of useful work is the first term above. L is the mean life on the dearer pool. W is the mean wait for
the chosen pool, to which the run then moves (`cheaper_pools`). Without `policy.handover`, L replaces min(L, W + d).
segue requests all pools within the first half of the wait for spot. If the trainers run on a cluster (Slurm, Ray), the
segment itself waits in the queue of the cluster. A run on a cluster requests one pool at a time, and divides the wait
for spot among the pools.

L and W each have two priors. The first prior is equal for all pools and has the weight of one interval. The second
prior contains the observations of other runs of the store before this run, with the weight of at most four intervals. L
and W then follow the intervals that the run observes on the pool. L and W are means of a gamma distribution of a
constant rate, like the mean life in `save_interval`. The weight of the run's own observations halves in twelve hours,
so that the run tries a bad pool again. The weight of other runs' observations halves in ten days.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NamedTuple

from segue.policy.availability import Interval, intervals, seen_by_others
from segue.policy.estimates import Situation
from segue.policy.spending import HOUR, priced_pools, read_cost
from segue.records import Capacity, PoolRequest, SegmentPlan
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.spec.pool_prices import PoolSpec
from segue.units import duration

PRIOR_WEIGHT = 1.0
"""Weight of the first prior of each pool, in intervals."""
PRIOR_WAIT_SECONDS = 600.0
PRIOR_LIFE_SECONDS = 5400.0
"""The mean length in seconds of an up interval in the published traces."""
MOST_OF_OTHERS = 4.0
"""Maximum weight of the observations of other runs for each pool, in intervals."""
_HALF_LIFE_SECONDS, _HALF_LIFE_OF_OTHERS_SECONDS = 12 * 3600.0, 10 * 86_400.0
LAST_FOR_SECONDS = 1800.0
"""Seconds for which a pool without capacity comes after all other pools."""
_MOST_DEATHS = 50.0
"""Upper limit of the expected number of deaths between two commits. All pools above the limit are equally bad."""
_ASKED_SHARE = 0.5
"""All pools are asked within this share of the wait for spot."""
_LEAST_GAIN = 2.0
"""Least saving of a move to a cheaper pool, as a multiple of the cost of the standby's boot."""
_LEAST_WAIT_SHARE = 1e-3
_WAIT_SHARE = 0.1
"""The weight of one second of waiting if the run has no deadline: small, but more than zero."""


@dataclass(frozen=True)
class Pool:
    """A spot pool, with its price and the run's estimates of its life and wait."""

    deployment: str
    price: float
    """Price per hour, including the money per hour for the checkpoints that the run writes."""
    start_cost: float = 0.0
    """Money for the checkpoint that a start reads."""
    life_seconds: float = PRIOR_LIFE_SECONDS
    """Mean seconds from an attempt's claim to the attempt's preemption."""
    wait_seconds: float = PRIOR_WAIT_SECONDS
    """Mean wait for capacity in seconds, without the boot."""
    no_capacity_at: datetime | None = None
    """The time at which the run last gave up a wait for the pool, or None if the pool has had capacity since then."""


@dataclass(frozen=True)
class PoolChoice:
    """The chosen pool and the reason for the choice. The reason is empty if the run has only one pool."""

    deployment: str
    why: str = ""
    wait_share: float = 1.0
    """Share of the run's wait for spot during which the run waits for the chosen pool alone."""
    requests: tuple[PoolRequest, ...] = ()
    """The requests for the attempt on several pools. The first request is for the chosen pool."""
    asked_within_share: float = _ASKED_SHARE
    """All pools are asked within this share of the wait for spot."""
    is_kept: bool = False
    """Whether the run still has the machine of the chosen pool, from before a planned end."""

    @property
    def asked(self) -> str | None:
        """The chosen pool, or None if the run has only one pool."""
        return self.deployment if self.why else None

    @property
    def awaited(self) -> str | None:
        """The pool for which the attempt waits.

        The value is None if the attempt waits for several pools, or if the run has only one pool.
        """
        return None if self.requests else self.asked

    def requests_within(self, wait_seconds: float) -> tuple[PoolRequest, ...]:
        """Return the requests, with times within the permitted share of a wait of this length."""
        latest = max((request.after_seconds for request in self.requests), default=0.0)
        within = self.asked_within_share * max(wait_seconds, 0.0)
        share = min(within / latest, 1.0) if latest > 0 else 1.0
        return tuple(
            PoolRequest(deployment=each.deployment, after_seconds=round(share * each.after_seconds, 3))
            for each in self.requests
        )


def choose_pool(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> PoolChoice:
    """Choose the spot pool for the next attempt."""
    listed = priced_pools(spec, history)
    if len(listed.spot) == 1:
        return PoolChoice(listed.spot[0].deployment)
    pools = pools_of(listed, history, here, now=now)
    chosen = cheapest(pools, here=here, on_demand_price=listed.on_demand_price, now=now)
    if spec.trains_elsewhere:
        return chosen
    price, may_move = listed.on_demand_price, spec.policy.handover
    requests = requests_of(pools, chosen.deployment, here=here, on_demand_price=price, may_move=may_move)
    return replace(chosen, wait_share=1.0, requests=requests)


def pools_of(listed: PoolSpec, history: History, here: Situation, *, now: datetime) -> list[Pool]:
    """Return the spot pools, with their prices and the run's estimates."""
    observed, by_others = intervals(history), seen_by_others(history)
    prices = {pool.deployment: listed.spot_pool_price(pool) for pool in listed.spot}
    return [
        replace(
            pool_of(observed, name, price=price, here=here, now=now, by_others=by_others),
            start_cost=read_cost(listed, history, Capacity.SPOT, name),
        )
        for name, price in prices.items()
    ]


def cheapest(pools: list[Pool], *, here: Situation, on_demand_price: float, now: datetime) -> PoolChoice:
    """Return the pool with the lowest cost of useful work.

    If no pool has capacity, return the pool whose last request is the oldest.
    """
    costs = {pool.deployment: cost_of_work(pool, here=here, on_demand_price=on_demand_price) for pool in pools}
    fresh = [pool for pool in pools if not _comes_last(pool, now)]
    if fresh:
        best = min(fresh, key=lambda pool: costs[pool.deployment])
        others = [pool.deployment for pool in pools if pool not in fresh]
        why = f"{best.deployment}: expected cost {costs[best.deployment]:.3g} per hour of useful work"
        why += f", no capacity lately on {' and '.join(others)}" if others else ""
        return PoolChoice(best.deployment, why, wait_share=1 / len(fresh))
    best = min(pools, key=lambda pool: (pool.no_capacity_at or now, costs[pool.deployment]))
    why = f"{best.deployment}: no pool had capacity lately, and the last request to this pool is the oldest"
    return PoolChoice(best.deployment, why, wait_share=1 / len(pools))


def requests_of(
    pools: list[Pool], chosen: str, *, here: Situation, on_demand_price: float, may_move: bool
) -> tuple[PoolRequest, ...]:
    """Return the requests for an attempt, in order of time, with the chosen pool first.

    `may_move` means that a run that trains on a dearer pool can move to the chosen pool later. The result is empty if
    no other pool is worth a request.
    """
    paid = {pool.deployment: paid_per_hour_of_work(pool, here=here) for pool in pools}
    first = next(pool for pool in pools if pool.deployment == chosen)
    longest = first.wait_seconds + here.expected_changeover_seconds if may_move else math.inf
    waiting_price = on_demand_price * max(_wait_share(here), _LEAST_WAIT_SHARE)

    def after_seconds(pool: Pool) -> float:
        dearer = paid[pool.deployment] - paid[chosen]
        return max(dearer * min(pool.life_seconds, longest) / waiting_price, 0.0)

    others = [
        PoolRequest(deployment=pool.deployment, after_seconds=after_seconds(pool))
        for pool in pools
        if pool is not first and paid[pool.deployment] < on_demand_price
    ]
    asked = (PoolRequest(deployment=chosen),) if others else ()
    return (*asked, *sorted(others, key=lambda each: each.after_seconds))


def cheaper_pools(
    spec: RunSpec, history: History, here: Situation, plan: SegmentPlan, *, now: datetime
) -> tuple[str, ...]:
    """Return the spot pools to which an attempt on spot should move, in descending order of the saving.

    A move must save at least twice the cost of the standby's boot. The saving counts until the new machine's expected
    death or until the goal. The expected remaining life of the current machine is its age plus the mean life of its
    pool, so that a run does not move back soon.
    """
    attempt, carried_out = history.attempt_of(plan.segment, plan.attempt), history.plan_of(plan.segment, plan.attempt)
    if attempt is None or carried_out is None or here.work_seconds is None:
        return ()
    pools = {pool.deployment: pool for pool in pools_of(priced_pools(spec, history), history, here, now=now)}
    own = pools.pop(carried_out.deployment, None)
    if own is None:
        return ()
    age = (now - attempt.claim.written_at).total_seconds()
    own = replace(own, life_seconds=own.life_seconds + age)
    gains = {name: gain_of_a_move(own, pool, here=here) for name, pool in pools.items()}
    return tuple(sorted((name for name, gain in gains.items() if gain > 0), key=lambda name: -gains[name]))


def gain_of_a_move(own: Pool, other: Pool, *, here: Situation) -> float:
    """Return the money that a move to another pool saves, minus twice the cost of the standby's start."""
    saved = paid_per_hour_of_work(own, here=here) - paid_per_hour_of_work(other, here=here)
    start = other.price * here.expected_changeover_seconds / HOUR + other.start_cost
    return saved * min(other.life_seconds, here.work_seconds or 0.0) / HOUR - _LEAST_GAIN * start


def others_in_words(requests: tuple[PoolRequest, ...]) -> str:
    """Name the requested pools besides the chosen pool, with the times of the requests."""
    named = [
        each.deployment + (f" after {duration(each.after_seconds)}" if each.after_seconds >= 1 else "")
        for each in requests[1:]
    ]
    return f"; also requested on {' and '.join(named)}" if named else ""


def cost_of_work(pool: Pool, *, here: Situation, on_demand_price: float) -> float:
    """Return the expected cost of an hour of useful work on a pool, including waits."""
    paid = paid_per_hour_of_work(pool, here=here)
    return paid + on_demand_price * _wait_share(here) * pool.wait_seconds / pool.life_seconds


def paid_per_hour_of_work(pool: Pool, *, here: Situation) -> float:
    """Return the cost of an hour of useful work on a pool, including starts and lost work."""
    lost = here.at_risk_seconds / 2  # A death comes at any moment between two commits.
    kept = math.exp(-min(lost / pool.life_seconds, _MOST_DEATHS))
    boots = pool.price * (1 + here.expected_changeover_seconds / pool.life_seconds)
    return (boots + pool.start_cost * HOUR / pool.life_seconds) / kept


def pool_of(
    observed: tuple[Interval, ...],
    deployment: str,
    *,
    price: float,
    here: Situation,
    now: datetime,
    by_others: tuple[Interval, ...] = (),
) -> Pool:
    """Return a pool with its price, its mean life and its mean wait.

    The life and the wait are estimates from the observations of this run and earlier runs.
    """
    own = [interval for interval in observed if interval.deployment == deployment]
    others = [interval for interval in by_others if interval.deployment == deployment]
    prior = _Sums(PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_LIFE_SECONDS, PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_WAIT_SECONDS)
    of_others = _sums(others, here=here, now=now, half_life_seconds=_HALF_LIFE_OF_OTHERS_SECONDS).at_most(
        MOST_OF_OTHERS
    )
    of_own = _sums(own, here=here, now=now, half_life_seconds=_HALF_LIFE_SECONDS)
    deaths, lived, waits, waited = (sum(each) for each in zip(prior, of_others, of_own, strict=True))
    last = own[-1] if own else others[-1] if others else None
    is_down = last is not None and not last.is_up and not last.has_ended
    return Pool(
        deployment,
        price,
        life_seconds=lived / deaths,
        wait_seconds=waited / waits,
        no_capacity_at=last.ended_at if last is not None and is_down else None,
    )


class _Sums(NamedTuple):
    """Weighted sums for up intervals and for down intervals: the number of ends, and the seconds."""

    deaths: float
    lived: float
    waits: float
    waited: float

    def at_most(self, intervals: float) -> _Sums:
        """Return scaled sums with the same rates, so that at most this number of ends remains."""
        up, down = (min(1.0, intervals / max(ends, 1e-9)) for ends in (self.deaths, self.waits))
        return _Sums(up * self.deaths, up * self.lived, down * self.waits, down * self.waited)


def _sums(found: Sequence[Interval], *, here: Situation, now: datetime, half_life_seconds: float) -> _Sums:
    deaths = lived = waits = waited = 0.0
    for interval in found:
        weight = _weight(interval, now, half_life_seconds)
        if interval.is_up:
            deaths += weight * interval.has_ended
            lived += weight * interval.seconds
        else:
            waits += weight * interval.has_ended
            waited += weight * max(interval.seconds - here.changeover_seconds * interval.has_ended, 0.0)
    return _Sums(deaths, lived, waits, waited)


def _wait_share(here: Situation) -> float:
    if here.work_seconds is None or here.remaining_seconds is None or here.remaining_seconds <= 0:
        return _WAIT_SHARE
    return min(here.work_seconds / here.remaining_seconds, 1.0)


def _comes_last(pool: Pool, now: datetime) -> bool:
    return pool.no_capacity_at is not None and (now - pool.no_capacity_at).total_seconds() < LAST_FOR_SECONDS


def _weight(interval: Interval, now: datetime, half_life_seconds: float) -> float:
    age = max((now - interval.ended_at).total_seconds(), 0.0)
    return float(0.5 ** (age / half_life_seconds))
