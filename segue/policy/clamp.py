"""The safety clamp: outside every policy, permits spot only if the worst case still meets the deadline. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from segue.policy.estimates import Situation

if TYPE_CHECKING:
    from segue.policy.rules.view import Flags, Floats, Job


def permits(slack: Floats, *, risk_seconds: Floats, on_demand_seconds: float) -> Flags:
    """Whether on-demand still makes it after the worst that can come before the next decision, element by element.

    `risk_seconds` is the slack that can be gone by then: time in which nothing was committed.
    """
    return slack - risk_seconds >= on_demand_seconds - 1e-6


def is_hopeless(job: Job, *, pace: float = 1.0) -> bool:
    """Whether not even on-demand from the start is sure to make it; `pace` is the work done in a second."""
    return job.total_seconds < job.changeover_seconds + job.work_seconds / pace


def needed_for_spot_seconds(now: Situation) -> float | None:
    """The least time left at which one more spot attempt is permitted; None while the work is unmeasured.

    In the worst case the attempt boots (d), works until just before its next commit (at risk), is asked to come home
    and dies in silence before its last save is committed (answer), which is noticed late (detection); then on-demand
    boots (d) and does all of the work (C). While an attempt commits in time, time left and work left fall together, so
    what held at its start holds until its end.
    """
    if now.work_seconds is None:
        return None
    return now.changeover_seconds + now.at_risk_seconds + _needed_by_a_death_seconds(now, now.work_seconds)


def permits_spot(now: Situation) -> bool:
    """Whether one more spot attempt can be afforded. Without a deadline there is nothing to lose.

    Unmeasured, nothing can be promised; but probes that bring no measure, for want of capacity or because they die
    young, may use up no more than their share of the time.
    """
    if now.remaining_seconds is None:
        return True
    needed = needed_for_spot_seconds(now)
    if needed is None:
        return now.probe_seconds is None or now.probe_seconds > 0
    return now.remaining_seconds >= needed


def longest_wait_seconds(now: Situation) -> float | None:
    """How long a spot attempt may wait for capacity, from the decision to its claim; None without a deadline.

    The clamp counts a changeover for the attempt, so it may wait that much longer than the clamp leaves over. One
    that claims so late and is slow to its first step on top has to be recalled.
    """
    if now.remaining_seconds is None:
        return None
    needed = needed_for_spot_seconds(now)
    standby = now.probe_seconds if needed is None else now.remaining_seconds - needed
    return max(standby or 0.0, 0.0) + now.changeover_seconds


def must_recall(now: Situation) -> bool:
    """Whether a spot attempt that is still running has to come home.

    `now.work_seconds` counts from its newest commit. If it died this instant and were noticed late, would on-demand
    still make it? When the answer is about to become no (it came late, commits fail, or steps are slower than
    measured), it is asked to commit and stop while it is still yes.
    """
    if now.work_seconds is None or now.remaining_seconds is None:
        return False
    return now.remaining_seconds < _needed_by_a_death_seconds(now, now.work_seconds)


def is_late(now: Situation, *, in_seconds: float = 0.0) -> bool:
    """Whether even on-demand from this moment, or one soon, misses the deadline; unmeasured work counts as none."""
    if now.remaining_seconds is None:
        return False
    return now.remaining_seconds - in_seconds < now.changeover_seconds + (now.work_seconds or 0.0)


def _needed_by_a_death_seconds(now: Situation, work_seconds: float) -> float:
    return now.answer_seconds + now.detection_seconds + now.changeover_seconds + work_seconds
