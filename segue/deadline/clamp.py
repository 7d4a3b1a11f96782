"""The safety clamp: outside every policy, permits spot only if the worst case still meets the deadline. Pure."""

from __future__ import annotations

from segue.deadline.estimates import Situation


def needed_for_spot_seconds(now: Situation) -> float | None:
    """The least time left at which one more spot attempt is permitted; None while the work is unmeasured.

    In the worst case the attempt boots (d), works until just before its next commit (at risk), dies in silence and is
    noticed late (detection); then on-demand boots (d) and does all of the work (C). While an attempt commits in time,
    time left and work left fall together, so what held at its start holds until its end.
    """
    if now.work_seconds is None:
        return None
    return now.work_seconds + 2 * now.changeover_seconds + now.at_risk_seconds + now.detection_seconds


def permits_spot(now: Situation) -> bool:
    """Whether one more spot attempt can be afforded. Without a deadline, or unmeasured, there is nothing to lose."""
    needed = needed_for_spot_seconds(now)
    if needed is None or now.remaining_seconds is None:
        return True
    return now.remaining_seconds >= needed


def longest_wait_seconds(now: Situation) -> float | None:
    """How long a spot attempt may wait for capacity before its first step; None without a deadline or a rate."""
    needed = needed_for_spot_seconds(now)
    if needed is None or now.remaining_seconds is None:
        return None
    return max(now.remaining_seconds - needed, 0.0) + now.changeover_seconds


def must_recall(now: Situation) -> bool:
    """Whether a spot attempt that is still running has to come home.

    `now.work_seconds` counts from its newest commit. If it died this instant and were noticed late, would on-demand
    still make it? When the answer is about to become no (commits fail, or steps are slower than measured), it is
    asked to commit and stop while it is still yes.
    """
    if now.work_seconds is None or now.remaining_seconds is None:
        return False
    return now.remaining_seconds < now.work_seconds + now.changeover_seconds + now.detection_seconds


def is_late(now: Situation) -> bool:
    """Whether even on-demand from this moment misses the deadline."""
    if now.work_seconds is None or now.remaining_seconds is None:
        return False
    return now.remaining_seconds < now.changeover_seconds + now.work_seconds
