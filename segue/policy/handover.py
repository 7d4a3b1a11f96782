"""Decides on which pools a standby waits, when segue starts it again, and when it takes over the run.

A run hands over from on-demand to spot, or from a spot pool to a cheaper spot pool. The module is pure.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from segue.policies import POLICIES
from segue.policy import clamp
from segue.policy.availability import open_down_interval, preemptions
from segue.policy.estimates import Situation
from segue.policy.pool_choice import cheaper_pools, choose_pool
from segue.policy.rules.sentinel import PAUSES_SECONDS
from segue.policy.wait_limit import has_waited_too_long
from segue.records import Capacity, SegmentPlan
from segue.runlog.entries import HandoverEntry
from segue.runlog.history import History
from segue.spec import RunSpec

SPOT_AGAIN = "spot again: the standby is ready; on-demand commits and hands over"

CHEAPER_SPOT = "cheaper spot: the standby is ready; the attempt commits and hands over"

UNKNOWN_AGE_SECONDS = 3600.0
"""Age in seconds of an up interval whose start was not observed (as in `segue.policy.rules.hazards`, without NumPy)."""
_LONGEST_SHARE = 0.1
"""The longest pause between two standbys of a short run, as a share of the remaining time."""


def may_come_back(spec: RunSpec, history: History) -> bool:
    """Whether a run on on-demand may ever return to spot.

    Without a deadline, a run returns only if it left spot because the wait took too long.
    """
    if spec.trains_elsewhere:
        return False  # There are no standbys there: a place in a queue is no waiting machine.
    most = spec.policy.max_preemptions
    if most is not None and preemptions(history) >= most:
        return False
    if not spec.policy.handover or not POLICIES[spec.policy.name].comes_back:
        return False
    if spec.deadline is not None:
        return True
    return bool(history.decisions) and has_waited_too_long(spec, history, now=history.decisions[-1].written_at)


def may_hand_over(spec: RunSpec, history: History, plan: SegmentPlan) -> bool:
    """Whether the attempt of a plan may ever hand the run over to a standby."""
    if plan.capacity is Capacity.ON_DEMAND:
        return may_come_back(spec, history)
    is_able = spec.policy.handover and not spec.trains_elsewhere and not plan.ignores_deadline
    return is_able and len(spec.pools.spot) > 1 and not history.is_import(plan.segment, plan.attempt)


def standby_pools(
    spec: RunSpec, history: History, here: Situation, plan: SegmentPlan, *, now: datetime
) -> tuple[str, ...]:
    """Return the pools on which a standby should wait while the attempt of a plan trains, the best pool first."""
    if spec.deadline is not None and len(spec.pools.spot) > 1:
        from segue.policy.pool_outlook import pools_to_move_to  # Only here: it loads NumPy.

        planned = pools_to_move_to(spec, history, here, plan, now=now)
        if planned is not None:
            return planned
    if plan.capacity is Capacity.SPOT:
        return cheaper_pools(spec, history, here, plan, now=now)
    choice = choose_pool(spec, history, here, now=now)
    return (choice.deployment, *(request.deployment for request in choice.requests[1:]))


def is_worth_a_standby(here: Situation) -> bool:
    """Whether a standby that starts now would have more work left than the hand-over costs."""
    return permits(here) and (here.work_seconds or 0.0) > 2 * here.changeover_seconds


def permits(here: Situation) -> bool:
    """Whether a run can leave its machine for spot now and still meet the deadline.

    The clamp must permit spot even if the attempt answers the recall late and dies before it commits. Without a
    deadline, the run can leave its machine at any time.
    """
    if here.work_seconds is None:
        return False
    if here.remaining_seconds is None:
        return True
    after = here.remaining_seconds - here.answer_seconds - here.detection_seconds
    return clamp.permits_spot(replace(here, remaining_seconds=after))


def up_seconds(
    history: History,
    here: Situation,
    pool: str,
    *,
    waited_seconds: float | None,
    held_seconds: float,
    now: datetime,
) -> float:
    """Return the known seconds for which a pool has been up, if a standby has a machine on the pool.

    `waited_seconds` is the wait of the standby, or None if the wait is not known. If the standby had to wait, the pool
    came up when the standby got its machine, `held_seconds` ago. If the standby did not have to wait, the pool was up
    before the request. The result is then at most the time since the pool was last observed down. It is also at most
    the age that is assumed for an interval of unknown age.
    """
    if waited_seconds is None or waited_seconds > here.expected_changeover_seconds:
        return held_seconds
    down = open_down_interval(history, pool)
    if down is None:
        return UNKNOWN_AGE_SECONDS + held_seconds
    since_down = (now - down.observed_until).total_seconds()
    return min(max(since_down, held_seconds), UNKNOWN_AGE_SECONDS + held_seconds)


def pause_seconds(here: Situation, *, sent: int) -> float:
    """Return the seconds until segue starts the next standby, after `sent` standbys that the run did not use."""
    pause = PAUSES_SECONDS[min(max(sent, 1), len(PAUSES_SECONDS)) - 1]
    return pause if here.remaining_seconds is None else min(pause, max(_LONGEST_SHARE * here.remaining_seconds, 1.0))


def handover_to(history: History, here: Situation) -> HandoverEntry | None:
    """Return the hand-over whose standby runs the next attempt.

    The controller has recalled the last attempt for this standby, and the clamp permits spot. If the recipe raised an
    exception in the meantime, return None, because segue then repeats the failed attempt on its capacity.
    """
    last = history.fresh_reports[-1] if history.fresh_reports else None
    if last is None or last.is_own_fault:
        return None
    handover = history.handover_of(last.segment, last.attempt)
    return handover if handover is not None and clamp.permits_spot(here) else None
