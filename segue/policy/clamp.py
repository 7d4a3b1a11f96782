"""The safety clamp works outside every policy.

It permits spot only if the run meets the deadline even in the worst case. The module is pure.
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

    The function works element by element on arrays. `risk_seconds` is the slack in seconds that can be lost until the
    next decision. It is the time in which nothing was committed.
    """
    return slack - risk_seconds >= on_demand_seconds - 1e-6


def is_hopeless(job: Job, *, pace: float = 1.0) -> bool:
    """Whether the run may miss the deadline even if it uses on-demand from the start.

    `pace` is the seconds of work done per second.
    """
    return job.total_seconds < job.changeover_seconds + job.work_seconds / pace


def needed_for_spot_seconds(now: Situation) -> float | None:
    """Return the least remaining time in seconds at which one more spot attempt is permitted.

    Return None while no rate is measured. In the worst case, the attempt first boots (d) and works until just before
    its next commit (at risk). The attempt is then recalled, dies silently before its last save is committed (answer),
    and the death is noticed late (detection). After that, the run waits for on-demand (queue, and the crowd that leaves
    spot), on-demand boots (d, with a margin), and on-demand does all of the work (C). While an attempt commits in time,
    the remaining time and the remaining work fall together. A condition that was true at the attempt's start is
    therefore true until its end.
    """
    if now.work_seconds is None:
        return None
    on_demand = _needed_by_a_death_seconds(now, now.work_seconds) + now.crowd_seconds
    return now.changeover_seconds + now.at_risk_seconds + on_demand


def permits_spot(now: Situation) -> bool:
    """Whether one more spot attempt is safe. Without a deadline, every spot attempt is safe.

    While no rate is measured, the clamp cannot promise that the deadline is met. Probes may measure nothing, because no
    capacity comes or because the probes die early. Such probes may use at most `policy.probe_share` of the remaining
    time.
    """
    if now.remaining_seconds is None:
        return True
    needed = needed_for_spot_seconds(now)
    if needed is None:
        return now.probe_seconds is None or now.probe_seconds > 0
    return now.remaining_seconds >= needed


def longest_wait_seconds(now: Situation) -> float | None:
    """Return the seconds that a spot attempt may wait for capacity, from the decision to the claim.

    Return None without a deadline. The clamp already counts one changeover for the attempt. The attempt may therefore
    wait for the changeover plus the time that the clamp leaves over. If an attempt claims the run at the end of this
    wait and then also needs long to make its first step, the attempt has to be recalled.
    """
    if now.remaining_seconds is None:
        return None
    needed = needed_for_spot_seconds(now)
    spare = now.probe_seconds if needed is None else now.remaining_seconds - needed
    return max(spare or 0.0, 0.0) + now.changeover_seconds


def seconds_to_claim(now: Situation) -> float | None:
    """Return the seconds until a waiting spot attempt must have claimed the run.

    The value is below 0 if this moment has passed. The value is None without a deadline, and while no rate is measured.
    """
    needed = needed_for_spot_seconds(now)
    if needed is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - needed + now.changeover_seconds


def crowd_seconds(now: Situation, queues: Queues, *, at: datetime) -> float:
    """Return the additional seconds that a run waits for on-demand after it gives up spot, because runs before this run
    also give up spot.

    The value is 0 without a deadline, and while no rate is measured. The additional wait for on-demand does not become
    shorter if other runs already wait for on-demand.
    """
    if now.work_seconds is None:
        return 0.0
    patience = longest_wait_seconds(replace(now, on_demand_queue_seconds=0.0, crowd_seconds=0.0))
    return 0.0 if patience is None else queues.crowd_seconds(until=later(at, patience))


def is_behind_others(now: Situation) -> bool:
    """Whether on-demand misses the deadline and other runs are before this run in the queue of on-demand."""
    return now.on_demand_queue_seconds > 0 and is_late(now)


def spare_on_spot_seconds(now: Situation) -> float | None:
    """Return the seconds that spot without a preemption has to spare, for a run that misses the deadline on on-demand
    because of the runs before it in the queue.

    The value is None if on-demand meets the deadline. The value is below 0 if spot is also late, or if no rate is
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
    and its death is noticed late. The worst case takes too long if the attempt started late, if commits fail, or if
    steps are slower than measured. An attempt is not recalled if on-demand would only wait behind other runs until the
    deadline is missed.
    """
    left = seconds_to_recall(now)
    return left is not None and left < 0 and not is_behind_others(now)


def seconds_to_recall(now: Situation) -> float | None:
    """Return the seconds until a running spot attempt must be recalled if it commits nothing in this time.

    None means that the attempt never has to be recalled.
    """
    if now.work_seconds is None or now.remaining_seconds is None:
        return None
    return now.remaining_seconds - _needed_by_a_death_seconds(now, now.work_seconds)


def is_late(now: Situation, *, in_seconds: float = 0.0) -> bool:
    """Whether the run misses the deadline even if it uses on-demand from now on, or from soon on.

    If no rate is measured, the work counts as none.
    """
    if now.remaining_seconds is None:
        return False
    on_demand = now.on_demand_queue_seconds + now.changeover_seconds + (now.work_seconds or 0.0)
    return now.remaining_seconds - in_seconds < on_demand


def _needed_by_a_death_seconds(now: Situation, work_seconds: float) -> float:
    on_demand = now.on_demand_queue_seconds + now.to_on_demand_seconds + work_seconds
    return now.answer_seconds + now.detection_seconds + on_demand
