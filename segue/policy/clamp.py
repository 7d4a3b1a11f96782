"""Implements the safety clamp, which checks the decisions of every policy.

The clamp permits spot only if the run meets the deadline even in the worst case. The module is pure.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from segue.policy.estimates import Situation
from segue.policy.queueing import Queues
from segue.units import later

if TYPE_CHECKING:
    from segue.policy.rules.view import Flags, Floats, Job


def permits(slack: Floats, *, risk_seconds: Floats, on_demand_seconds: Floats) -> Flags:
    """Whether on-demand still meets the deadline after the worst case until the next decision.

    The function works element by element on arrays. `risk_seconds` is the slack in seconds that the run can lose until
    the next decision: the time without a commit.
    """
    return slack - risk_seconds >= on_demand_seconds - 1e-6


def is_hopeless(job: Job, *, pace: float = 1.0) -> bool:
    """Whether the run may miss the deadline even if it uses on-demand from the start.

    `pace` is the number of seconds of work that the run does per second.
    """
    return job.total_seconds < job.changeover_seconds + job.work_seconds / pace


def needed_for_spot_seconds(now: Situation) -> float | None:
    """Return the least remaining time in seconds at which the clamp permits another spot attempt.

    Return None if no rate has been measured yet. In the worst case, the attempt first boots (d) and works until just
    before its next commit (at risk). The controller then recalls the attempt. The attempt dies silently before it
    commits its last save (answer). The controller notices the death late (detection). After that, the run waits for
    on-demand (queue, and other runs that leave spot), on-demand boots (d, with a margin), and on-demand does all of the
    work (C). While an attempt commits in time, remaining time and remaining work decrease at the same rate. A condition
    that was true at the attempt's start is therefore true until its end.
    """
    if now.work_seconds is None:
        return None
    on_demand = _needed_by_a_death_seconds(now, now.work_seconds) + now.crowd_seconds
    return now.changeover_seconds + now.at_risk_seconds + on_demand


def permits_spot(now: Situation) -> bool:
    """Whether another spot attempt is safe. Without a deadline, every spot attempt is safe.

    Without a measured rate, the clamp cannot guarantee the deadline. Probes may measure nothing, because they get no
    capacity or die early. Probes may therefore use at most `policy.probe_share` of the remaining time.
    """
    if now.remaining_seconds is None:
        return True
    needed = needed_for_spot_seconds(now)
    if needed is None:
        return now.probe_seconds is None or now.probe_seconds > 0
    return now.remaining_seconds >= needed


def longest_wait_seconds(now: Situation) -> float | None:
    """Return the seconds that a spot attempt may wait for capacity, from the decision to the claim.

    Return None without a deadline. The worst case of the clamp already includes a changeover for the attempt. The
    attempt may therefore wait for one changeover plus the slack that the clamp does not need. If the attempt claims the
    run at the end of the wait and then starts slowly, the controller has to recall the attempt.
    """
    if now.remaining_seconds is None:
        return None
    needed = needed_for_spot_seconds(now)
    spare = now.probe_seconds if needed is None else now.remaining_seconds - needed
    return max(spare or 0.0, 0.0) + now.changeover_seconds


def seconds_to_claim(now: Situation) -> float | None:
    """Return the seconds within which a waiting spot attempt must claim the run.

    The value is negative if the attempt is already too late. The value is None without a deadline or without a measured
    rate.
    """
    needed = needed_for_spot_seconds(now)
    if needed is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - needed + now.changeover_seconds


def crowd_seconds(now: Situation, queues: Queues, *, at: datetime) -> float:
    """Return the seconds by which other runs that also give up spot lengthen the wait for on-demand.

    The function considers only runs that are before this run in the queue of spot. The value is 0 without a deadline or
    without a measured rate. The additional wait does not become shorter if other runs already wait for on-demand.
    """
    if now.work_seconds is None:
        return 0.0
    patience = longest_wait_seconds(replace(now, on_demand_queue_seconds=0.0, crowd_seconds=0.0))
    return 0.0 if patience is None else queues.crowd_seconds(until=later(at, patience))


def is_behind_others(now: Situation) -> bool:
    """Whether on-demand misses the deadline and other runs are before this run in the queue of on-demand."""
    return now.on_demand_queue_seconds > 0 and is_late(now)


def spare_on_spot_seconds(now: Situation) -> float | None:
    """If on-demand misses the deadline because of its queue, return the slack in seconds on spot without a preemption.

    The value is None if on-demand meets the deadline. The value is negative if spot is also late or no rate has been
    measured.
    """
    if now.remaining_seconds is None or not is_behind_others(now):
        return None
    if now.work_seconds is None:
        return -math.inf
    return now.remaining_seconds - now.spot_queue_seconds - now.changeover_seconds - now.work_seconds


def must_recall(now: Situation) -> bool:
    """Whether a running spot attempt has to commit and stop now, so that on-demand still meets the deadline.

    `now.work_seconds` counts from the newest commit of the attempt. In the worst case, the attempt dies at this moment
    and the controller notices its death late. The worst case takes too long if the attempt started late, if commits
    fail, or if steps are slower than measured. The result is False if on-demand would only wait behind other runs until
    the deadline has passed.
    """
    left = seconds_to_recall(now)
    return left is not None and left < 0 and not is_behind_others(now)


def seconds_to_recall(now: Situation) -> float | None:
    """Return the seconds after which the controller must recall a running spot attempt that makes no new commit.

    Return None if the controller never has to recall the attempt.
    """
    if now.work_seconds is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - _needed_by_a_death_seconds(now, now.work_seconds)


def is_late(now: Situation, *, in_seconds: float = 0.0) -> bool:
    """Whether the run misses the deadline even if it starts to use on-demand in `in_seconds`.

    If no rate has been measured, the function assumes that no work remains.
    """
    if now.remaining_seconds is None:
        return False
    on_demand = now.on_demand_queue_seconds + now.changeover_seconds + (now.work_seconds or 0.0)
    return now.remaining_seconds - in_seconds < on_demand


def _needed_by_a_death_seconds(now: Situation, work_seconds: float) -> float:
    on_demand = now.on_demand_queue_seconds + now.to_on_demand_seconds + work_seconds
    return now.answer_seconds + now.detection_seconds + on_demand
