"""Which spot pool the next attempt goes to, by price and by what the run saw of each. Pure.

For each pool, an hour of useful work is expected to cost

    price (1 + d / L) e^(w / L)  +  on-demand price x share x W / L

L is how long an attempt lives there, d the changeover, w the work that a death costs, W how long one waits there, and
share = work left / time left, the part of a second waited that has to be bought back on on-demand. Where deaths come
at a constant rate e^(-w / L) of the work is kept; for w far below L the first term is price (L + d + w) / L. The
least wins; of equals the first in the list. A pool that gave no capacity comes last for half an hour; the wait is
shared among those that are there to be asked.

Both L and W start from a prior that is the same for all pools, worth one spell, and follow what was seen of the pool:
by the mean of a gamma belief about a constant rate, as for the cadence. What was seen counts half after twelve hours:
what has become of a pool is learned by going there again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta

from segue.policy.availability import Spell, spells
from segue.policy.estimates import Situation
from segue.runlog.history import History
from segue.spec import RunSpec

PRIOR_WEIGHT = 1.0
"""How many spells the priors count for, in each pool."""
PRIOR_WAIT_SECONDS = 600.0
PRIOR_LIFE_SECONDS = 5400.0
"""The mean up spell of the published traces."""
_HALF_LIFE_SECONDS = 12 * 3600.0
REST_SECONDS = 1800.0
"""How long a pool that gave no capacity comes after all others."""
_MOST_DEATHS = 50.0
"""Of so many deaths an interval between two commits all pools are alike: hopeless."""
_WAIT_SHARE = 0.1
"""What waiting is worth without a deadline: little, but not nothing."""


@dataclass(frozen=True)
class Pool:
    """A spot pool as the run knows it."""

    deployment: str
    price: float
    """Of an hour."""
    life_seconds: float = PRIOR_LIFE_SECONDS
    """From an attempt's claim to its preemption, on the mean."""
    wait_seconds: float = PRIOR_WAIT_SECONDS
    """For capacity, on the mean, boot not counted."""
    was_dry_at: datetime | None = None
    """When a wait for it was last given up, if nothing came since."""


@dataclass(frozen=True)
class PoolChoice:
    """The pool to go to, and why; no words where there is no choice."""

    deployment: str
    why: str = ""
    wait_share: float = 1.0
    """How much of the time that a run would wait for spot it waits here, before it asks another pool."""

    @property
    def asked(self) -> str | None:
        """The pool that the choice is about; None where there is but one."""
        return self.deployment if self.why else None


def choose_pool(spec: RunSpec, history: History, here: Situation, *, now: datetime) -> PoolChoice:
    """The spot pool for the next attempt."""
    listed = spec.pools.spot
    if len(listed) == 1:
        return PoolChoice(listed[0].deployment)
    seen = spells(history)
    pools = [
        pool_of(seen, pool.deployment, price=spec.pools.spot_pool_price(pool), here=here, now=now) for pool in listed
    ]
    return cheapest(pools, here=here, on_demand_price=spec.pools.on_demand_price, now=now)


def cheapest(pools: list[Pool], *, here: Situation, on_demand_price: float, now: datetime) -> PoolChoice:
    """The pool with the least price of useful work; of pools that are all dry, the one dry for longest."""
    costs = {pool.deployment: cost_of_work(pool, here=here, on_demand_price=on_demand_price) for pool in pools}
    fresh = [pool for pool in pools if not _rests(pool, now)]
    if fresh:
        best = min(fresh, key=lambda pool: costs[pool.deployment])
        resting = [pool.deployment for pool in pools if pool not in fresh]
        why = f"{best.deployment}: {costs[best.deployment]:.3g} an hour of work expected"
        why += f", {' and '.join(resting)} gave none lately" if resting else ""
        return PoolChoice(best.deployment, why, wait_share=1 / len(fresh))
    best = min(pools, key=lambda pool: (pool.was_dry_at or now, costs[pool.deployment]))
    why = f"{best.deployment}: no pool gave capacity lately, this one was asked first"
    return PoolChoice(best.deployment, why, wait_share=1 / len(pools))


def cost_of_work(pool: Pool, *, here: Situation, on_demand_price: float) -> float:
    """What an hour of useful work on a pool is expected to cost, waits included."""
    lost = here.at_risk_seconds / 2  # A death falls anywhere between two commits.
    kept = math.exp(-min(lost / pool.life_seconds, _MOST_DEATHS))
    paid = pool.price * (1 + here.expected_changeover_seconds / pool.life_seconds) / kept
    return paid + on_demand_price * _wait_share(here) * pool.wait_seconds / pool.life_seconds


def pool_of(seen: tuple[Spell, ...], deployment: str, *, price: float, here: Situation, now: datetime) -> Pool:
    """A pool's price, and its life and wait as far as the run knows them."""
    own = [spell for spell in seen if spell.deployment == deployment]
    deaths, lived = PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_LIFE_SECONDS
    waits, waited = PRIOR_WEIGHT, PRIOR_WEIGHT * PRIOR_WAIT_SECONDS
    for spell in own:
        weight = _weight(spell, now)
        if spell.is_up:
            deaths += weight * spell.has_ended
            lived += weight * spell.seconds
        else:
            waits += weight * spell.has_ended
            waited += weight * max(spell.seconds - here.changeover_seconds * spell.has_ended, 0.0)
    last = own[-1] if own else None
    is_dry = last is not None and not last.is_up and not last.has_ended
    return Pool(
        deployment,
        price,
        life_seconds=lived / deaths,
        wait_seconds=waited / waits,
        was_dry_at=_end(last) if last is not None and is_dry else None,
    )


def _wait_share(here: Situation) -> float:
    if here.work_seconds is None or here.remaining_seconds is None or here.remaining_seconds <= 0:
        return _WAIT_SHARE
    return min(here.work_seconds / here.remaining_seconds, 1.0)


def _rests(pool: Pool, now: datetime) -> bool:
    return pool.was_dry_at is not None and (now - pool.was_dry_at).total_seconds() < REST_SECONDS


def _weight(spell: Spell, now: datetime) -> float:
    age = max((now - _end(spell)).total_seconds(), 0.0)
    return float(0.5 ** (age / _HALF_LIFE_SECONDS))


def _end(spell: Spell) -> datetime:
    return spell.begun_at + timedelta(seconds=spell.seconds)
