"""Predicts the choices of a run's policy, now and later, from the run's own history. The module is pure.

With several spot pools and a deadline, the policy PLAN plans all pools together (`segue.policy.pool_outlook`). All
other policies plan one pool.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from itertools import takewhile

import numpy as np

from segue.policy.availability import intervals, open_down_interval, preemptions
from segue.policy.estimates import Situation
from segue.policy.pool_choice import PoolChoice, cheaper_pools
from segue.policy.pool_outlook import Outlook, pool_outlook, pools_to_move_to
from segue.policy.rules.hazards import DOWN_RATES, UNKNOWN_AGE_SECONDS, UP_RATES, expected_ends
from segue.policy.rules.heuristics import Capped, Policy
from segue.policy.rules.plan import Plan
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Floats, Intervals, Job, Mode, View
from segue.policy.spending import priced_pools
from segue.records import Capacity, SegmentPlan
from segue.runlog.history import History
from segue.spec import RunSpec

_MOMENTS = 96
"""Number of moments of the coming wait for which the module asks the policy whether it would still wait."""


def job_of(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, deployment: str | None = None
) -> Job | None:
    """Return the job that a policy has to plan, or None without a deadline or without a measured rate.

    `deployment` is the spot pool whose price the job has. None means the price of the cheapest pool.

    The decisions of PLAN do not depend on the past, so its job is the rest of the run. The other policies compare the
    actual progress of the run with the planned progress since the start. The start is the run's start, or the moment at
    which a person last started the run again.
    """
    if spec.deadline is None or here.work_seconds is None or here.remaining_seconds is None:
        return None
    total, work = here.remaining_seconds, here.work_seconds
    if spec.policy.name != "plan":
        since = list(takewhile(lambda entry: entry.action == "run", reversed(history.decisions)))
        first = since[-1] if since else None
        from_step = first.plan.parent.step if first and first.plan and first.plan.parent else 0
        left = max(spec.steps - history.committed_step, 1)
        total = (spec.deadline - (first.written_at if first else now)).total_seconds()
        work = work / left * max(spec.steps - from_step, left)
    pools = priced_pools(spec, history)
    price_ratio = pools.price_ratio if deployment is None else pools.ratio_to(pools.price(Capacity.SPOT, deployment))
    return Job(
        total_seconds=max(total, 1.0),
        work_seconds=max(work, 1e-3),
        changeover_seconds=here.expected_changeover_seconds,
        price_ratio=price_ratio,
        knowledge="sentinel" if spec.policy.handover else "none",
        handover=spec.policy.handover,
        lost_by_a_death_seconds=min(here.at_risk_seconds, work) / 2 + (here.save_seconds or 0.0),
    )


def outlook(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, pool: PoolChoice | None = None
) -> Outlook | None:
    """Return the future actions of the policy, or None without a deadline or without a measured rate.

    Without a joint plan of the pools, the function uses the price of the chosen `pool` and the availability of the
    awaited pool. If the attempt waits for several pools, the function uses the combined availability of all pools.
    """
    kept = pool.deployment if pool is not None and pool.is_kept else None
    planned = pool_outlook(spec, history, here, now=now, kept=kept)
    asked, awaited = (pool.asked, pool.awaited) if pool is not None and planned is None else (None, None)
    job = job_of(spec, history, here, now=now, deployment=asked)
    if job is None or here.remaining_seconds is None or here.work_seconds is None:
        return None
    longest = spec.liveness.start_seconds
    offsets = np.linspace(0.0, min(longest, max(here.remaining_seconds, 0.0)), _MOMENTS)
    down = open_down_interval(history, awaited)
    age = UNKNOWN_AGE_SECONDS if down is None else max((now - down.begun_at).total_seconds(), 0.0)
    recent = max(2 * spec.liveness.heartbeat_timeout_seconds, 60.0)
    if down is not None and (now - down.observed_until).total_seconds() > recent:
        age = min(age, UNKNOWN_AGE_SECONDS)  # Spot may have ended and begun again since.
    view = _view(history, here, job, mode=Mode.IDLE, is_up=down is None, ages=offsets + age, offsets=offsets)
    policy = named_policy(spec.policy.name, dict(spec.policy.parameters))
    leaves = np.flatnonzero(_capped(policy, spec).choose(view) == Mode.ON_DEMAND)
    share = policy.cost_share(view.only(offsets == 0.0)) if isinstance(policy, Plan) else None
    if planned is not None:
        return replace(planned, cost_share=share)
    return Outlook(float(offsets[leaves[0]]) if len(leaves) else longest, share)


def wants_spot(
    spec: RunSpec,
    history: History,
    here: Situation,
    plan: SegmentPlan,
    *,
    up_seconds: float,
    now: datetime,
    deployment: str,
) -> bool:
    """Whether the run should move from its attempt to a machine of this pool, which has been up for `up_seconds`.

    If PLAN does not plan the pools together, the result is False without a measured rate, or if the pool is not
    cheaper. Without a deadline, the result is True for every cheaper pool. The function does not consult the clamp.
    """
    planned = pools_to_move_to(spec, history, here, plan, now=now, up_seconds=up_seconds)
    if planned is not None:
        return deployment in planned
    if plan.capacity is Capacity.SPOT:
        return deployment in cheaper_pools(spec, history, here, plan, now=now)
    if spec.deadline is None:
        # The run is on on-demand only because it has waited too long for spot (`policy.max_wait_seconds`).
        pools = priced_pools(spec, history)
        return pools.ratio_to(pools.price(Capacity.SPOT, deployment)) > 1
    job = job_of(spec, history, here, now=now, deployment=deployment)
    if job is None or here.remaining_seconds is None or job.price_ratio <= 1:
        return False
    once = np.zeros(1)
    view = _view(history, here, job, mode=Mode.ON_DEMAND, is_up=True, ages=once + max(up_seconds, 0.0), offsets=once)
    policy = named_policy(spec.policy.name, dict(spec.policy.parameters))
    return bool(_capped(policy, spec).choose(view)[0] == Mode.SPOT)


def _view(
    history: History, here: Situation, job: Job, *, mode: Mode, is_up: bool, ages: Floats, offsets: Floats
) -> View:
    rows = len(offsets)
    return View(
        job=job,
        remaining_seconds=(here.remaining_seconds or 0.0) - offsets,
        work_seconds=np.full(rows, here.work_seconds),
        mode=np.full(rows, mode, np.int8),
        is_up=np.full(rows, is_up),
        age_seconds=ages,
        preemptions=np.full(rows, float(preemptions(history))),
        observed=_observed(history, job.changeover_seconds, rows),
    )


def _capped(policy: Policy, spec: RunSpec) -> Policy:
    return policy if spec.policy.max_preemptions is None else Capped(policy, spec.policy.max_preemptions)


def _observed(history: History, changeover_seconds: float, rows: int) -> Intervals:
    up_ends = up_expected = down_ends = down_expected = 0.0
    for interval in intervals(history):
        if interval.is_up:
            up_ends += interval.has_ended
            up_expected += expected_ends(UP_RATES, interval.seconds)
        elif interval.seconds > changeover_seconds or not interval.has_ended:
            down_ends += interval.has_ended  # A wait no longer than a boot was no wait.
            down_expected += expected_ends(DOWN_RATES, interval.seconds)
    return Intervals(*(np.full(rows, value) for value in (up_ends, up_expected, down_ends, down_expected)))
