"""Plans a run over several spot pools with PLAN, from the run's own history. The module is pure.

The module decides on which pools to request an attempt, and how long to wait for these pools. The module also decides
on which pools a standby should wait, and whether to move to a standby that has a machine. The module ignores
observations of other runs of the store. A prior from other runs made runs dearer on the cases of SkyNomad's artifact
(docs/benchmarks.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

import numpy as np

from segue.policy import clamp
from segue.policy.availability import Interval, intervals, open_down_interval, preemptions, wait_of
from segue.policy.estimates import Situation, keeps_machine_of, save_seconds, usual_changeover_seconds
from segue.policy.pool_choice import PoolChoice
from segue.policy.rules.pool_beliefs import UNKNOWN_AGE_SECONDS, Beliefs, Weights
from segue.policy.rules.pool_plan import PoolPlan, in_tuples
from segue.policy.rules.pool_table import Pools
from segue.policy.rules.view import Floats
from segue.policy.spending import HOUR, priced_pools, read_cost
from segue.records import Capacity, PoolRequest, SegmentPlan
from segue.runlog.history import History
from segue.spec import RunSpec

_STILL_DOWN_SECONDS = 900.0
"""Seconds for which PLAN assumes that a pool is still down after the last observation that it was down."""
_NEWEST = 5
"""Number of newest hand-overs and attempts from which the module computes medians."""
_DIGITS = 2
"""Number of digits to which the module rounds up measured seconds, so that it can use a solved table again."""


def plans_pools(spec: RunSpec, history: History, here: Situation) -> bool:
    """Whether PLAN plans several spot pools of the run together now."""
    most = spec.policy.max_preemptions
    return (
        len(spec.pools.spot) > 1
        and spec.policy.name == "plan"
        and not spec.trains_elsewhere
        and here.slack_seconds is not None
        and here.slack_seconds > 0
        and (most is None or preemptions(history) < most)
    )


@dataclass(frozen=True)
class Outlook:
    """The future actions of the policy."""

    waits_seconds: float
    """Seconds that the policy will wait for spot if no spot machine comes.

    The value is 0 if the policy wants on-demand at once.
    """
    cost_share: float | None
    """The cost that PLAN expects from now to the goal, as a share of the cost of on-demand alone.

    With several pools, the value is the cost with the cheapest pool alone. The value is None for other policies.
    """
    pool: PoolChoice | None = None
    """The pools on which PLAN requests the attempt, or None if PLAN does not plan the pools together."""


def pool_outlook(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, kept: str | None = None
) -> Outlook | None:
    """Return PLAN's choice for the next attempt, or None if PLAN does not plan the pools together now.

    `kept` is the pool whose machine the run still has. The result has no expected cost. The cost in the table was too
    low by a third on published traces, because pools are not independent.
    """
    if not plans_pools(spec, history, here):
        return None
    plan, names = _plan_of(spec, history, here), _names(spec)
    longest = spec.liveness.start_seconds
    if kept is not None:
        is_kept = plan.keeps(names.index(kept), _age_seconds(history, here, now))
        return Outlook(longest if is_kept else 0.0, None, PoolChoice(kept, "the machine is kept", is_kept=True))
    longest = min(longest, here.remaining_seconds or 0.0)
    waits = plan.waits(_down_seconds(spec, history, now=now), longest_seconds=longest)
    requests = tuple(
        PoolRequest(deployment=names[pool], after_seconds=round(seconds, 3))
        for pool, seconds in waits.after_seconds.items()
    )
    chosen = requests[0].deployment if requests else priced_pools(spec, history).deployment(Capacity.SPOT)
    why = f"PLAN over {len(names)} pools asks {chosen} first"
    pool = PoolChoice(chosen, why, requests=requests if len(requests) > 1 else (), asked_within_share=1.0)
    return Outlook(waits.longest_seconds, None, pool)


def pools_to_move_to(
    spec: RunSpec,
    history: History,
    here: Situation,
    plan: SegmentPlan,
    *,
    now: datetime,
    up_seconds: float | None = None,
) -> tuple[str, ...] | None:
    """Return the pools to which the attempt of a plan should move if they have a machine, the best pool first.

    Return None if PLAN does not plan the pools together now. `up_seconds` is the number of seconds for which a pool
    with a machine has been up. If `up_seconds` is None, this time is unknown for pools without recent observations, and
    the other pools have just come up.

    A move from spot to spot must save at least the cost of another boot, so that a run does not move back and forth.
    """
    attempt = history.attempt_of(plan.segment, plan.attempt)
    carried_out = history.plan_of(plan.segment, plan.attempt)
    if not plans_pools(spec, history, here) or attempt is None or carried_out is None:
        return None
    names, down = _names(spec), _down_seconds(spec, history, now=now)
    is_on_spot = carried_out.capacity is Capacity.SPOT
    if is_on_spot and carried_out.deployment not in names:
        return ()
    place = names.index(carried_out.deployment) if is_on_spot else None
    known = down[np.isfinite(down)]
    age = _age_seconds(history, here, now) if is_on_spot else float(known.min()) if len(known) else UNKNOWN_AGE_SECONDS
    up = np.where(np.isfinite(down), 0.0, UNKNOWN_AGE_SECONDS)
    if up_seconds is not None:
        up = np.full(len(names), max(up_seconds, 0.0))
    saved = _plan_of(spec, history, here).savings(place, age, up)
    prices = _relative_prices(spec, history)
    least = prices * here.expected_changeover_seconds / HOUR if is_on_spot else np.zeros(len(names))
    order = sorted(np.flatnonzero(saved > least), key=lambda pool: -saved[pool])
    return tuple(names[pool] for pool in order)


def handover_seconds(history: History) -> float:
    """Return the seconds from the record of a hand-over to the first new step of the standby.

    The value is the median of the newest hand-overs of the run. Without a hand-over, the value is the time of a save
    plus the usual time from a claim to the first new step. Without a hand-over, the estimate is too high, because the
    process of a standby has already booted.
    """
    seen, usual = [], [report.startup_seconds for report in history.last_reports() if report.train_steps > 0]
    for attempt in history.attempts:
        decided = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
        standby = decided.plan.standby if decided is not None and decided.plan is not None else None
        at = next((each.written_at for each in history.handovers if standby and each.standby == standby), None)
        if at is not None and attempt.report is not None and attempt.report.train_steps > 0:
            seen.append((attempt.claim.written_at - at).total_seconds() + attempt.report.startup_seconds)
    if seen:
        return max(median(seen[-_NEWEST:]), 0.0)
    return (save_seconds(history) or 0.0) + (median(usual[-_NEWEST:]) if usual else 0.0)


def _names(spec: RunSpec) -> list[str]:
    return [pool.deployment for pool in spec.pools.spot]


def _relative_prices(spec: RunSpec, history: History) -> Floats:
    """Return the price of each spot pool as a share of the price of on-demand."""
    listed = priced_pools(spec, history)
    return np.array([listed.spot_pool_price(pool) / listed.on_demand_price for pool in listed.spot])


def _age_seconds(history: History, here: Situation, now: datetime) -> float:
    """Return the seconds for which the pool of the newest attempt has been up, across planned ends."""
    attempts = list(history.attempts)
    while len(attempts) > 1 and keeps_machine_of(attempts[-2], attempts[-1], history=history):
        attempts.pop()
    if not attempts:
        return 0.0
    claim = attempts[-1].claim
    decided = history.decision_of(claim.segment, claim.attempt)
    if decided is None:
        return (now - claim.written_at).total_seconds()
    asked_at, up_at = wait_of(history, decided, claim.written_at)
    # Without a wait, the pool was up before.
    is_at_once = (up_at - asked_at).total_seconds() <= here.expected_changeover_seconds
    return (UNKNOWN_AGE_SECONDS if is_at_once else 0.0) + (now - up_at).total_seconds()


def _down_seconds(spec: RunSpec, history: History, *, now: datetime) -> Floats:
    """Return the seconds for which each pool is known to be down, or infinity if the run does not know."""
    found, least = [], usual_changeover_seconds(spec, history)
    for name in _names(spec):
        down = open_down_interval(history, name, least_seconds=least)
        is_known = down is not None and (now - down.observed_until).total_seconds() <= _STILL_DOWN_SECONDS
        found.append((now - down.begun_at).total_seconds() if down is not None and is_known else math.inf)
    return np.asarray(np.maximum(found, 0.0), float)


def _plan_of(spec: RunSpec, history: History, here: Situation) -> PoolPlan:
    count = len(spec.pools.spot)
    work, remaining = here.work_seconds or 0.0, here.remaining_seconds or 0.0
    recall = clamp.seconds_to_recall(here)
    least = remaining - work - recall if recall is not None else 0.0
    lost = min(here.at_risk_seconds, work) / 2 + (here.save_seconds or 0.0)
    listed = priced_pools(spec, history)
    unit = listed.on_demand_price
    reads = tuple(read_cost(listed, history, Capacity.SPOT, name) / unit for name in _names(spec))
    pools = Pools(
        prices=tuple((_relative_prices(spec, history) / HOUR).tolist()),
        on_demand_price=1 / HOUR,
        transfer=(reads,) * (count + 1),
        transfer_to_on_demand=(read_cost(listed, history, Capacity.ON_DEMAND, listed.on_demand) / unit,) * (count + 1),
        on_demand_source=count,
        changeover_seconds=_rounded_up(here.expected_changeover_seconds),
        least_slack_seconds=_rounded_up(least),
        lost_by_a_death_seconds=_rounded_up(lost),
        handover_seconds=_rounded_up(handover_seconds(history)),
        moves="overlapping" if spec.policy.handover else "none",
        **history.once(_believed, spec),
    )
    ahead = min(spec.liveness.start_seconds, remaining)
    return PoolPlan(pools, remaining_seconds=remaining, work_seconds=work, ahead_seconds=ahead)


def _believed(spec: RunSpec, history: History) -> dict[str, Any]:
    """Return the hazards and the shares of the pools. The function ignores a wait that is no longer than a boot."""
    names, boot_seconds = _names(spec), usual_changeover_seconds(spec, history)
    beliefs = Beliefs(len(names), Weights())
    age_at_begin = dict.fromkeys(names, 0.0)
    last_up: dict[str, Interval] = {}
    for interval in intervals(history):
        name = interval.deployment
        if name not in names:
            continue
        if interval.is_up:
            begin = age_at_begin[name]
            beliefs.up.add(names.index(name), begin, interval.seconds, has_ended=interval.has_ended)
            age_at_begin[name], last_up[name] = begin + interval.seconds, interval
        elif not _is_kept(last_up.get(name), interval, boot_seconds) and not _is_short(interval, boot_seconds):
            is_at_once = interval.seconds <= boot_seconds
            beliefs.asked(names.index(name), is_granted=is_at_once)
            age_at_begin[name] = UNKNOWN_AGE_SECONDS if is_at_once else 0.0
            if not is_at_once:
                beliefs.down.add(names.index(name), 0.0, interval.seconds, has_ended=interval.has_ended)
    return {
        "up_rates": in_tuples(beliefs.up.rates()),
        "down_rates": in_tuples(beliefs.down.rates()),
        "shares": tuple(beliefs.shares().tolist()),
    }


def _is_kept(before: Interval | None, wait: Interval, boot_seconds: float) -> bool:
    """Whether a wait is the pause between two segments on one machine."""
    if before is None or before.has_ended or not wait.has_ended or wait.seconds > boot_seconds:
        return False
    return (wait.begun_at - before.ended_at).total_seconds() <= boot_seconds


def _is_short(wait: Interval, boot_seconds: float) -> bool:
    """Whether segue withdrew a request before a machine of its pool could have booted."""
    return not wait.has_ended and wait.seconds <= boot_seconds


def _rounded_up(seconds: float) -> float:
    if seconds <= 0:
        return 0.0
    unit = 10.0 ** (math.floor(math.log10(seconds)) + 1 - _DIGITS)
    return float(math.ceil(seconds / unit - 1e-9) * unit)
