"""The safety clamp, outside every policy: it permits spot only if the worst case still meets the deadline. Pure."""

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
    """Whether on-demand still meets the deadline after the worst case until the next decision, element by element.

    `risk_seconds` is the slack that can be lost by then: time in which nothing was committed.
    """
    return slack - risk_seconds >= on_demand_seconds - 1e-6


def is_hopeless(job: Job, *, pace: float = 1.0) -> bool:
    """Whether even on-demand from the start may miss the deadline; `pace` is the work done per second."""
    return job.total_seconds < job.changeover_seconds + job.work_seconds / pace


def needed_for_spot_seconds(now: Situation) -> float | None:
    """The least remaining time at which one more spot attempt is permitted; None while the work is unmeasured.

    In the worst case the attempt boots (d), works until just before its next commit (at risk), is recalled and dies
    silently before its last save is committed (answer), which is noticed late (detection); then on-demand is waited for
    (queue, and the crowd that leaves spot), boots (d, with its margin) and does all of the work (C). While an attempt
    commits in time, the remaining time and the remaining work fall together, so what held at its start holds until its
    end.
    """
    if now.work_seconds is None:
        return None
    on_demand = _needed_by_a_death_seconds(now, now.work_seconds) + now.crowd_seconds
    return now.changeover_seconds + now.at_risk_seconds + on_demand


def permits_spot(now: Situation) -> bool:
    """Whether one more spot attempt is safe. Without a deadline every attempt is.

    While the work is unmeasured, nothing can be promised; but probes that measure nothing, because no capacity comes or
    because they die early, may use no more than their share of the time.
    """
    if now.remaining_seconds is None:
        return True
    needed = needed_for_spot_seconds(now)
    if needed is None:
        return now.probe_seconds is None or now.probe_seconds > 0
    return now.remaining_seconds >= needed


def longest_wait_seconds(now: Situation) -> float | None:
    """How long a spot attempt may wait for capacity, from the decision to its claim; None without a deadline.

    The clamp counts a changeover for the attempt, so the attempt may wait that much longer than the clamp leaves over.
    An attempt that claims that late and is also slow to its first step has to be recalled.
    """
    if now.remaining_seconds is None:
        return None
    needed = needed_for_spot_seconds(now)
    spare = now.probe_seconds if needed is None else now.remaining_seconds - needed
    return max(spare or 0.0, 0.0) + now.changeover_seconds


def seconds_to_claim(now: Situation) -> float | None:
    """How long until a spot attempt that waits must have claimed the run; below 0 if that time has passed.

    None without a deadline, and while the work is unmeasured.
    """
    needed = needed_for_spot_seconds(now)
    if needed is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - needed + now.changeover_seconds


def crowd_seconds(now: Situation, queues: Queues, *, at: datetime) -> float:
    """How much longer a run that gives up spot waits for on-demand, because runs before it also give up spot.

    0 without a deadline, and while the work is unmeasured. This time does not become shorter if others already wait for
    on-demand.
    """
    if now.work_seconds is None:
        return 0.0
    patience = longest_wait_seconds(replace(now, on_demand_queue_seconds=0.0, crowd_seconds=0.0))
    return 0.0 if patience is None else queues.crowd_seconds(until=later(at, patience))


def is_behind_others(now: Situation) -> bool:
    """Whether on-demand misses the deadline, and other runs are before this one in its queue."""
    return now.on_demand_queue_seconds > 0 and is_late(now)


def spare_on_spot_seconds(now: Situation) -> float | None:
    """The time that spot, without a preemption, has to spare if on-demand, behind other runs, misses the deadline.

    None if on-demand is in time; below 0 if spot is also late, or the work is unmeasured.
    """
    if now.remaining_seconds is None or not is_behind_others(now):
        return None
    if now.work_seconds is None:
        return -math.inf
    return now.remaining_seconds - now.spot_queue_seconds - now.changeover_seconds - now.work_seconds


def must_recall(now: Situation) -> bool:
    """Whether a running spot attempt has to commit and stop now, so that on-demand still meets the deadline.

    `now.work_seconds` counts from its newest commit. The worst case is that the attempt dies this instant and its death
    is noticed late. This worst case takes too long if the attempt started late, commits fail, or steps are slower than
    measured. An attempt is not recalled to wait behind other runs until the deadline is missed.
    """
    left = seconds_to_recall(now)
    return left is not None and left < 0 and not is_behind_others(now)


def seconds_to_recall(now: Situation) -> float | None:
    """How long until a running spot attempt must be recalled if it commits nothing meanwhile; None: never."""
    if now.work_seconds is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - _needed_by_a_death_seconds(now, now.work_seconds)


def is_late(now: Situation, *, in_seconds: float = 0.0) -> bool:
    """Whether even on-demand from now on, or from soon on, misses the deadline; unmeasured work counts as none."""
    if now.remaining_seconds is None:
        return False
    on_demand = now.on_demand_queue_seconds + now.changeover_seconds + (now.work_seconds or 0.0)
    return now.remaining_seconds - in_seconds < on_demand


def _needed_by_a_death_seconds(now: Situation, work_seconds: float) -> float:
    on_demand = now.on_demand_queue_seconds + now.to_on_demand_seconds + work_seconds
    return now.answer_seconds + now.detection_seconds + on_demand
