"""A run's history as a policy sees it, and what the policy makes of the moments to come. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

import numpy as np

from segue.policy.availability import gap_of, preemptions, spells
from segue.policy.estimates import Situation
from segue.policy.rules.hazards import DOWN_RATES, UNSEEN_SECONDS, UP_RATES, expected_ends
from segue.policy.rules.heuristics import Capped, Policy
from segue.policy.rules.plan import Plan
from segue.policy.rules.registry import named_policy
from segue.policy.rules.view import Floats, Job, Mode, Spells, View
from segue.records import Capacity
from segue.runlog.history import History
from segue.spec import RunSpec

_LOOKS = 96
"""Moments of the coming wait at which the policy is asked whether it would still wait."""


def job_of(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, deployment: str | None = None
) -> Job | None:
    """What a policy has to plan for; None without a deadline, or while the work is unmeasured.

    `deployment` is the spot pool whose price counts; None: the cheapest one's.

    PLAN looks ahead only: its job is what is left. The others compare with where the run should be by now, counted
    from its start, or from when a person started it again.
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
    pools = spec.pools
    price_ratio = (
        pools.price_ratio if deployment is None else pools.on_demand_price / pools.price(Capacity.SPOT, deployment)
    )
    return Job(
        total_seconds=max(total, 1.0),
        work_seconds=max(work, 1e-3),
        changeover_seconds=here.expected_changeover_seconds,
        price_ratio=price_ratio,
        knowledge="sentinel" if spec.policy.handover else "none",
        handover=spec.policy.handover,
        lost_by_a_death_seconds=min(here.at_risk_seconds, work) / 2 + (here.save_seconds or 0.0),
    )


@dataclass(frozen=True)
class Outlook:
    """What the policy makes of the moments to come."""

    waits_seconds: float
    """How long it would queue for spot from now if none came; 0 when it wants on-demand at once."""
    cost_share: float | None
    """What PLAN expects to pay from here to the goal, of on-demand's price for it; None for other policies."""


def outlook(
    spec: RunSpec, history: History, here: Situation, *, now: datetime, deployment: str | None = None
) -> Outlook | None:
    """The policy's answer from here; None when there is nothing to decide by: no deadline, or unmeasured work.

    `deployment` is the spot pool that would be asked: its price counts, and whether another one gives capacity says
    little about it.
    """
    job = job_of(spec, history, here, now=now, deployment=deployment)
    if job is None or here.remaining_seconds is None or here.work_seconds is None:
        return None
    patience = spec.liveness.start_seconds
    offsets = np.linspace(0.0, min(patience, max(here.remaining_seconds, 0.0)), _LOOKS)
    gap = gap_of(history, deployment)
    age = UNSEEN_SECONDS if gap is None else max((now - gap.begun_at).total_seconds(), 0.0)
    if gap is not None and (now - gap.seen_until).total_seconds() > max(
        2 * spec.liveness.heartbeat_timeout_seconds, 60.0
    ):
        age = min(age, UNSEEN_SECONDS)  # Nobody has looked since.
    view = _view(history, here, job, mode=Mode.IDLE, is_up=gap is None, ages=offsets + age, offsets=offsets)
    policy = named_policy(spec.policy.name, dict(spec.policy.parameters))
    leaves = np.flatnonzero(_capped(policy, spec).choose(view) == Mode.ON_DEMAND)
    share = policy.cost_share(view.only(offsets == 0.0)) if isinstance(policy, Plan) else None
    return Outlook(float(offsets[leaves[0]]) if len(leaves) else patience, share)


def wants_spot(
    spec: RunSpec,
    history: History,
    here: Situation,
    *,
    up_seconds: float,
    now: datetime,
    deployment: str | None = None,
) -> bool:
    """Whether the policy would leave on-demand for spot, which is known to be up on that pool since `up_seconds`.

    False when there is nothing to decide by, or that pool is not cheaper. The clamp is not asked.
    """
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
    looks = len(offsets)
    return View(
        job=job,
        remaining_seconds=(here.remaining_seconds or 0.0) - offsets,
        work_seconds=np.full(looks, here.work_seconds),
        mode=np.full(looks, mode, np.int8),
        is_up=np.full(looks, is_up),
        spell_seconds=ages,
        preemptions=np.full(looks, float(preemptions(history))),
        seen=_seen(history, job.changeover_seconds, looks),
    )


def _capped(policy: Policy, spec: RunSpec) -> Policy:
    return policy if spec.policy.max_preemptions is None else Capped(policy, spec.policy.max_preemptions)


def _seen(history: History, changeover_seconds: float, rows: int) -> Spells:
    up_ends = up_expected = down_ends = down_expected = 0.0
    for spell in spells(history):
        if spell.is_up:
            up_ends += spell.has_ended
            up_expected += expected_ends(UP_RATES, spell.seconds)
        elif spell.seconds > changeover_seconds or not spell.has_ended:
            down_ends += spell.has_ended  # A wait no longer than a boot was no wait.
            down_expected += expected_ends(DOWN_RATES, spell.seconds)
    return Spells(*(np.full(rows, value) for value in (up_ends, up_expected, down_ends, down_expected)))
