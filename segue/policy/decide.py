"""Decides the next step of a run from the history of the run. The module is pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from segue.policy import budget_cap, clamp, failure_classes, queueing, refusals
from segue.policy.anomalies import reason_to_give_up, rollback_reason, skips_of
from segue.policy.availability import died_in_place, preemptions
from segue.policy.broken_resumes import next_recovery_step, verdict_to_stop
from segue.policy.estimates import Situation, situation
from segue.policy.handover import handover_to
from segue.policy.machines.bad_machines import avoided_nodes, of_run, warning_of
from segue.policy.planned_ends import PlannedEnd, kept_pool, planned_end
from segue.policy.pool_choice import PoolChoice, choose_pool, others_in_words
from segue.policy.queueing import Queues
from segue.policy.spending import priced_pools, read_cost
from segue.policy.wait_limit import (
    booted_seconds,
    choice_without_deadline,
    gives_up,
    is_only_spot_in_time,
    wait_seconds,
)
from segue.records import Capacity, CheckpointRef, PoolRequest, SegmentPlan, StopReason
from segue.runlog.entries import Action, HandoverEntry
from segue.runlog.history import History
from segue.spec import RunSpec
from segue.units import duration

if TYPE_CHECKING:
    from segue.policy.pool_outlook import Outlook

_NOTHING_LEFT = (
    "the goal is committed, so another start of the run would prove nothing. Fix: begin a new run with the fixed "
    'recipe, or set continuity.rehearsal = "warn" to accept the result'
)


@dataclass(frozen=True)
class Decision:
    """The next action, the reason for the action, and the numbers behind the decision."""

    action: Action
    reason: str
    plan: SegmentPlan | None = None
    numbers: dict[str, float] = field(default_factory=dict)
    warning: str = ""
    """A problem in spite of which the run continues. The reason also contains the problem."""


@dataclass(frozen=True)
class _Choice:
    """The capacity of the next attempt, and the reason."""

    capacity: Capacity
    why: str
    pool: PoolChoice
    """The chosen spot pool, even if the attempt runs on on-demand."""
    ahead: Outlook | None = None
    handover: HandoverEntry | None = None

    def deployment(self, spec: RunSpec) -> str:
        return self.pool.deployment if self.capacity is Capacity.SPOT else spec.pools.on_demand

    @property
    def wanted_seconds(self) -> float | None:
        """The longest wait for capacity that the policy wants, or None if the policy has no limit."""
        return None if self.ahead is None else self.ahead.waits_seconds

    @property
    def requests(self) -> tuple[PoolRequest, ...]:
        """The requests for the attempt on several pools. The tuple is empty for a request on one pool."""
        return self.pool.requests if self.capacity is Capacity.SPOT else ()


def decide(spec: RunSpec, history: History, *, now: datetime, queues: Queues | None = None) -> Decision:
    """Decide the next action of the run. The next attempt would be the last attempt in each queue of `queues`."""
    ended = _is_over(spec, history)
    if ended is not None:
        return ended
    here = _here(spec, history, now, queues or Queues())
    chosen, purse = _choose(spec, history, here, now), budget_cap.purse_of(spec, history, here, now=now)
    asked = spec
    if purse is not None:
        spec, here, chosen = _affordable(spec, history, here, chosen, purse, now=now)
    price = priced_pools(spec, history).price(chosen.capacity, chosen.deployment(spec))
    numbers = _numbers(here, chosen.ahead) | (purse.numbers() if purse is not None else {})
    spent = budget_cap.reason_out_of_time(asked, history, here, now=now)
    if spent is None and purse is not None:
        start_cost = _read_cost(spec, history, chosen)
        spent = budget_cap.reason_to_end(asked, history, here, purse, price=price, start_cost=start_cost)
    if spent is not None:
        return Decision("budget", spent, numbers=numbers)
    chosen = replace(chosen, pool=budget_cap.affordable_pools(spec, history, here, purse, chosen.pool, now=now))
    listed = priced_pools(spec, history)
    asked_of = [chosen.deployment(spec), *(each.deployment for each in chosen.requests)]
    price = max(listed.price(chosen.capacity, deployment) for deployment in asked_of)
    start_cost = _read_cost(spec, history, chosen)
    most = budget_cap.bound_seconds(spec, purse, price=price, start_cost=start_cost, history=history, now=now)
    plan, reasons = _planned(spec, history, here, chosen, most, now=now)
    # If the run gave up the deadline, the reason already names the money.
    money = budget_cap.warning_of(spec, purse) if purse is not None and spec is asked else ""
    reason = "; ".join(part for part in (*reasons, money) if part)
    warning = "; ".join(part for part in (refusals.warning_of(history), money) if part)
    plan = plan.model_copy(update={"ignores_deadline": asked.deadline is not None and spec.deadline is None})
    return Decision(action="run", reason=reason, plan=plan, numbers=numbers, warning=warning)


def _here(spec: RunSpec, history: History, now: datetime, queues: Queues) -> Situation:
    here = situation(spec, history, now=now, on_demand_queue_seconds=queues.on_demand_seconds)
    if handover_to(history, here) is not None or kept_pool(spec, history) is not None:
        return here  # The next attempt already has a slot of spot.
    spot = queues.spot_seconds(now)
    return replace(here, spot_queue_seconds=spot, crowd_seconds=clamp.crowd_seconds(here, queues, at=now))


def _choose(spec: RunSpec, history: History, here: Situation, now: datetime) -> _Choice:
    back = handover_to(history, here)
    if back is not None:
        return _Choice(Capacity.SPOT, back.reason, PoolChoice(back.deployment), handover=back)
    pool = kept_pool(spec, history) or choose_pool(spec, history, here, now=now)
    capacity, why, ahead = _by_policy(spec, history, here, pool, now)
    return _Choice(capacity, why, ahead.pool or pool if ahead is not None else pool, ahead)


def _read_cost(spec: RunSpec, history: History, chosen: _Choice) -> float:
    """Return the cost of reading the checkpoint of the next attempt, on the dearest of the requested pools."""
    names = {chosen.deployment(spec), *(each.deployment for each in chosen.requests)}
    return max(read_cost(spec.pools, history, chosen.capacity, name) for name in names)


def _affordable(
    spec: RunSpec, history: History, here: Situation, chosen: _Choice, purse: budget_cap.Purse, *, now: datetime
) -> tuple[RunSpec, Situation, _Choice]:
    """Replace on-demand with spot in the choice, if the budget does not pay for on-demand.

    If the policy chooses on-demand even without a deadline and without a longest wait, the choice stays.
    """
    if chosen.capacity is Capacity.SPOT or not budget_cap.forbids_on_demand(spec, history, here, purse):
        return spec, here, chosen
    free, there = budget_cap.without_deadline(spec, here)
    pool = chosen.pool if chosen.pool.is_kept else choose_pool(free, history, there, now=now)
    capacity, _, _ = _by_policy(free, history, there, pool, now)
    if capacity is not Capacity.SPOT:
        return spec, here, chosen
    if spec.deadline is not None:
        why = f"spot in spite of the deadline, because the budget wins: {purse.shortage()}"
    else:
        short = budget_cap.on_demand_shortage(spec, history, here, purse)
        why = f"spot in spite of policy.max_wait_seconds, because the budget wins: {short}"
    return free, there, _Choice(capacity, why, pool)


def _planned(
    spec: RunSpec, history: History, here: Situation, chosen: _Choice, most_seconds: float | None, *, now: datetime
) -> tuple[SegmentPlan, tuple[str, ...]]:
    """Return the plan of the next attempt, and the parts of its reason. The budget pays for `most_seconds`."""
    capacity, back = chosen.capacity, chosen.handover
    recovery = next_recovery_step(history) if history.broken_resumes else None
    source = recovery.take if recovery else history.newest
    parent = source.ref if source else None
    segment, attempt = numbers_of_next(history, parent=parent)
    skips = skips_of(spec, history)
    deployment, slack = chosen.deployment(spec), here.slack_seconds
    delay = max(
        failure_classes.delay_seconds(history, slack_seconds=slack),
        refusals.delay_seconds(history, deployment=deployment, slack_seconds=slack),
    )
    is_last_resort = capacity is Capacity.ON_DEMAND
    end = planned_end(spec, here, source)
    bounds = [seconds for seconds in (_bound_seconds(spec, here, capacity), end.seconds) if seconds is not None]
    is_money_short = most_seconds is not None and most_seconds < min(bounds, default=math.inf)
    wait = None
    if back is not None:
        wait = booted_seconds(spec, here)
    elif gives_up(spec, history, capacity, now=now):
        share = 1.0 if is_last_resort else chosen.pool.wait_share
        wait = wait_seconds(spec, history, here, now=now, share=share, wanted=chosen.wanted_seconds)
    plan = SegmentPlan(
        segment=segment,
        attempt=attempt,
        capacity=capacity,
        deployment=deployment,
        parent=parent,
        at_most=parent if source is not history.newest else None,
        max_seconds=most_seconds if is_money_short else min(bounds, default=None),
        stop_at_step=end.step,
        stop_at_epoch=end.epoch,
        start_within_seconds=None if wait is None else wait + delay,
        skips=skips,
        # A request without a capacity timeout must not wait for ever for another node.
        avoided_nodes=() if wait is None else avoided_nodes(spec, history, now=now),
        standby=back.standby if back else None,
        delay_seconds=delay,
        pools=() if wait is None or is_last_resort else chosen.pool.requests_within(wait - here.changeover_seconds),
        # No attempt follows if the money has run out. The end of a job releases its nodes.
        keeps_machine=not spec.trains_elsewhere
        and (end._replace(seconds=None) if is_money_short else end) != PlannedEnd(),
    )
    before = recovery.reason if recovery else rollback_reason(spec, history, skips=skips)
    where = chosen.pool.why + others_in_words(plan.pools) if capacity is Capacity.SPOT else ""
    later = f"retry in {duration(delay)}" if delay else ""
    still = "the code after the program's loop was cut off, and must run" if history.owes_end(spec) else ""
    bad = warning_of(of_run(history, log_id="", now=now))
    return plan, (still, before or "", chosen.why, later, where, refusals.in_words(history), bad)


def _is_over(spec: RunSpec, history: History) -> Decision | None:
    if history.is_finished(spec):
        why = f"; the training code ended the run there: {history.finish_reason}" if history.finish_reason else ""
        if any(entry.plan is not None and entry.plan.ignores_deadline for entry in history.decisions):
            why += "; the budget did not pay for the on-demand that the deadline required"
        return Decision("finished", f"step {history.committed_step} is committed{why}")
    last = history.fresh_reports[-1] if history.fresh_reports else None
    if last is not None and last.stop_reason is StopReason.CANCELLED:
        return Decision("cancelled", f"segment {last.segment} was cancelled; start the run again to resume it")
    if history.broken_resumes and next_recovery_step(history) is None:
        return Decision("broken", history.broken_resumes[-1].verdict.findings[0].sentence)
    untrusted = verdict_to_stop(spec, history)
    if untrusted is not None:
        again = "" if history.drills else f"; {_NOTHING_LEFT}"
        return Decision("broken", f"resume rehearsal failed: {untrusted.findings[0].sentence}{again}")
    gone_bad = reason_to_give_up(spec, history)
    if gone_bad is not None:
        return Decision("failed", gone_bad)
    failed = failure_classes.reason_to_stop(spec, history)
    if failed is not None:
        return Decision("failed", failed)
    in_place = died_in_place(history)
    if len(in_place) >= spec.policy.max_lost_in_place and in_place[0].capacity is Capacity.ON_DEMAND:
        return Decision("hopeless", f"{len(in_place)} attempts in a row ended without a commit, the last on on-demand")
    return None


def _without_policy(spec: RunSpec, history: History, here: Situation) -> tuple[Capacity, str] | None:
    """Return the capacity and the reason if only one capacity is possible, or None if the policy has a choice."""
    last = history.fresh_reports[-1] if history.fresh_reports else None
    retry = failure_classes.retry_reason(spec, history)
    if last is not None and retry is not None:
        return last.capacity, retry
    if spec.policy.name == "on_demand_only":
        return Capacity.ON_DEMAND, "on-demand: the policy is on_demand_only"
    bound, deaths = spec.policy.preemption_bound, preemptions(history)
    if bound is not None and deaths >= bound:
        return Capacity.ON_DEMAND, f"on-demand: {deaths} preemptions, and at most {bound} are allowed"
    if priced_pools(spec, history).price_ratio <= 1:
        return Capacity.ON_DEMAND, "on-demand: no spot pool is cheaper"
    in_place = len(died_in_place(history))
    if in_place < spec.policy.max_lost_in_place and is_only_spot_in_time(spec, here):
        behind = duration(here.on_demand_queue_seconds)
        return Capacity.SPOT, f"spot: behind other runs ({behind}), on-demand would miss the deadline; spot is in time"
    if clamp.is_late(here):
        needed = here.on_demand_queue_seconds + here.changeover_seconds + (here.work_seconds or 0.0)
        missing = needed - (here.remaining_seconds or 0.0)
        return Capacity.ON_DEMAND, f"on-demand; the deadline will be missed by about {duration(missing)}"
    if last is not None and last.capacity is Capacity.ON_DEMAND and here.remaining_seconds is not None:
        return Capacity.ON_DEMAND, "on-demand continues: it was chosen before"
    if not clamp.permits_spot(here):
        if here.work_seconds is None:
            return Capacity.ON_DEMAND, "on-demand: the spot probes used all of their time without measuring a step"
        others = here.on_demand_queue_seconds + here.crowd_seconds
        behind = f", with {duration(others)} for other runs on on-demand" if others >= 1 else ""
        why = f"slack {_slack(here)} is too short for one more spot attempt that dies{behind}"
        return Capacity.ON_DEMAND, f"on-demand: {why}"
    if in_place >= spec.policy.max_lost_in_place:
        return Capacity.ON_DEMAND, f"on-demand: the last {in_place} attempts ended without a commit"
    return None


def _by_policy(
    spec: RunSpec, history: History, here: Situation, pool: PoolChoice, now: datetime
) -> tuple[Capacity, str, Outlook | None]:
    ruled = _without_policy(spec, history, here)
    if ruled is not None:
        return *ruled, None
    if here.remaining_seconds is None:
        return *choice_without_deadline(spec, history, now), None
    from segue.policy.outlook import outlook  # Only here: it loads NumPy.

    ahead = outlook(spec, history, here, now=now, pool=pool)
    if ahead is None:
        return Capacity.SPOT, "spot: a short probe to measure the seconds per step", None
    by = f"slack {_slack(here)}; {_expects(spec, ahead)}"
    if ahead.waits_seconds <= 0:
        return Capacity.ON_DEMAND, f"on-demand: {by}", ahead
    longest = duration(wait_seconds(spec, history, here, now=now, share=pool.wait_share, wanted=ahead.waits_seconds))
    return Capacity.SPOT, f"spot, waiting for a machine for at most {longest}: {by}", ahead


def _expects(spec: RunSpec, ahead: Outlook) -> str:
    if ahead.cost_share is None:
        return f"policy {spec.policy.name}"
    pool = "with the cheapest spot pool alone, " if ahead.pool is not None else ""
    return f"{pool}PLAN expects the rest to cost {ahead.cost_share:.0%} of what it costs on on-demand alone"


def numbers_of_next(history: History, *, parent: CheckpointRef | None) -> tuple[int, int]:
    """Return the segment and attempt number of the next plan. Each plan of a run has its own pair of numbers."""
    plans = [entry.plan for entry in history.decisions if entry.plan is not None]
    if not plans:
        return 0, 1
    last = plans[-1]
    # A new attempt starts from the same parent. A new segment starts from another checkpoint, which is older only after
    # damage.
    return (last.segment, last.attempt + 1) if parent == last.parent else (last.segment + 1, 1)


def _bound_seconds(spec: RunSpec, here: Situation, capacity: Capacity) -> float | None:
    if capacity is Capacity.SPOT and here.remaining_seconds is not None and here.work_seconds is None:
        return max(spec.policy.probe_share * here.remaining_seconds, 1.0)
    return None


def _numbers(here: Situation, ahead: Outlook | None) -> dict[str, float]:
    named = {
        "waits_seconds": ahead.waits_seconds if ahead else None,
        "expected_cost_share": ahead.cost_share if ahead else None,
        "remaining_seconds": here.remaining_seconds,
        "work_seconds": here.work_seconds,
        "slack_seconds": here.slack_seconds,
        "changeover_seconds": here.changeover_seconds,
        "usual_changeover_seconds": here.usual_changeover_seconds,
        "on_demand_changeover_seconds": here.on_demand_changeover_seconds,
        "save_seconds": here.save_seconds,
        "at_risk_seconds": here.at_risk_seconds,
        "detection_seconds": here.detection_seconds,
        "needed_for_spot_seconds": clamp.needed_for_spot_seconds(here),
        queueing.NUMBER: here.on_demand_queue_seconds or None,
        queueing.SPOT_NUMBER: here.spot_queue_seconds or None,
        "crowd_seconds": here.crowd_seconds or None,
    }
    return {name: round(value, 3) for name, value in named.items() if value is not None}


def _slack(here: Situation) -> str:
    return "unknown" if here.slack_seconds is None else duration(here.slack_seconds)
