"""What the run itself tells about its speed, its changeovers and its saves. Pure.

Usual values are medians over the newest attempts, so that one slow disk, queue or batch does not move a policy. What
keeps the deadline is not left to medians: the clamp counts the longest changeover seen lately, and the slower of all
attempts' and on-demand's pace.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from statistics import median, median_high

from segue.records import Capacity, SegmentReport
from segue.runlog.entries import ClaimEntry
from segue.runlog.history import Attempt, History
from segue.spec import RunSpec

_LONGEST_OF, _USUAL_OF = 3, 5
"""How many of the newest attempts the longest changeover and the usual values are looked for in."""
_ENOUGH_STEPS, _ENOUGH_SECONDS = 5, 300.0
"""More steps, or longer ones, must have been timed before they count for more than the prior."""


@dataclass(frozen=True)
class Situation:
    """The numbers a policy decides by, in seconds."""

    remaining_seconds: float | None
    """Until the deadline (R); None without one."""
    work_seconds: float | None
    """Computing still needed at the measured rate (C), overestimated by the margin; None while unmeasured."""
    changeover_seconds: float
    """From the end of one segment to the first new step of the next (d)."""
    at_risk_seconds: float
    """Longest stretch of work that one kill can cost: the time between commits."""
    detection_seconds: float
    """Longest time until a silent death is noticed."""
    answer_seconds: float = 0.0
    """Longest time from a recall to the safe point at which the attempt heeds it, and its last save there."""
    probe_seconds: float | None = None
    """What is left of the time in which unmeasured probes may find out C; None without a deadline."""
    usual_changeover_seconds: float | None = None
    """The usual d, for expectations; None: as long as the longest."""
    save_seconds: float | None = None
    """Usually from a snapshot to its commit; None while unmeasured."""

    @property
    def expected_changeover_seconds(self) -> float:
        """The d that a policy should expect, where the clamp counts with the longest."""
        usual = self.usual_changeover_seconds
        return self.changeover_seconds if usual is None else usual

    @property
    def slack_seconds(self) -> float | None:
        """R - C; None when either is unknown."""
        if self.remaining_seconds is None or self.work_seconds is None:
            return None
        return self.remaining_seconds - self.work_seconds


def situation(spec: RunSpec, history: History, *, now: datetime, slowest_step_seconds: float = 0.0) -> Situation:
    """Where the run stands. An attempt that is at work raises the rate to its own with `slowest_step_seconds`."""
    rate = step_seconds(spec, history)
    if slowest_step_seconds:
        rate = max(rate or 0.0, slowest_step_seconds)
    save = save_seconds(history)
    work = None if rate is None else (spec.steps - history.committed_step) * rate * (1 + spec.policy.margin_share)
    return Situation(
        remaining_seconds=None if spec.deadline is None else (spec.deadline - now).total_seconds(),
        work_seconds=work,
        changeover_seconds=changeover_seconds(spec, history),
        at_risk_seconds=at_risk_seconds(spec, rate, save_seconds=save),
        detection_seconds=detection_seconds(spec),
        # It looks for a recall with each heartbeat, stops between two steps, and saves once more. That save is another
        # one than the save at risk, which had not landed when the recall came.
        answer_seconds=spec.liveness.heartbeat_seconds + (rate or 0.0) + (save or 0.0),
        probe_seconds=_probe_seconds(spec, history, now=now),
        usual_changeover_seconds=usual_changeover_seconds(spec, history),
        save_seconds=save,
    )


def step_seconds(spec: RunSpec, history: History) -> float | None:
    """Seconds a step, saves included: the newest attempts' median by steps, the prior before there are enough.

    Each attempt's first step, which pays for allocations and compilation, is in no report. Where on-demand was slower
    than that, its own median: what is left has to be done there in the worst case.
    """
    measured = [report for report in history.last_words() if report.train_steps > 0]
    steps, seconds = (sum(getattr(r, name) for r in measured) for name in ("train_steps", "train_seconds"))
    if spec.policy.step_seconds is not None and steps <= _ENOUGH_STEPS and seconds <= _ENOUGH_SECONDS:
        return spec.policy.step_seconds
    on_demand = [report for report in measured if report.capacity is Capacity.ON_DEMAND]
    usual = [_median_pace(reports[-_USUAL_OF:]) for reports in (measured, on_demand) if reports]
    return max(usual, default=spec.policy.step_seconds)


def changeover_seconds(spec: RunSpec, history: History) -> float:
    """The longest changeover seen lately, never below the prior: on-demand may boot slower than spot did.

    Waits for spot are in it. How much of the way to a claim was a wait nobody knows, and on-demand may take as long.
    """
    seen = (_changeover_of(attempt, history) for attempt in history.attempts[-_LONGEST_OF:])
    return max([spec.policy.changeover_seconds, *(seconds for seconds in seen if seconds is not None)])


def usual_changeover_seconds(spec: RunSpec, history: History) -> float:
    """The median of the newest changeovers seen, with the prior as one of them.

    Spot may have been waited for, and a wait is no changeover: a spot attempt counts with its own start after the
    shortest way to a claim that was seen, or with all of it where that is within the prior.
    """
    prior = spec.policy.changeover_seconds
    ways = [_to_claim_seconds(attempt.claim, history) for attempt in history.attempts]
    shortest = min((way for way in ways if way > 0), default=0.0)
    seen = []
    for attempt in history.attempts:
        seconds = _changeover_of(attempt, history)
        if seconds is not None and attempt.report is not None:
            is_spot = attempt.claim.capacity is Capacity.SPOT
            seen.append(min(seconds, max(prior, shortest + attempt.report.startup_seconds)) if is_spot else seconds)
    return median_high([prior, *seen[-_USUAL_OF:]])


def save_seconds(history: History) -> float | None:
    """From a snapshot to its commit, the median of the newest attempts that measured it; None before there are any."""
    seen = [report.save_seconds for report in history.last_words() if report.save_seconds is not None]
    return median(seen[-_USUAL_OF:]) if seen else None


def at_risk_seconds(spec: RunSpec, rate: float | None, *, save_seconds: float | None = None) -> float:
    """The longest time between two commits; by steps it needs a rate."""
    cadence, step, save = spec.checkpoints, rate or 0.0, save_seconds or 0.0
    if cadence.every_seconds is None and cadence.every_steps is None:
        save = 0.0  # The measured cadence takes it off the interval.
    # A save waits for the end of the step in which it falls due, and the first one for the end of the replay.
    by_time = cadence.longest_seconds + step + save if cadence.longest_seconds is not None else None
    by_steps = cadence.every_steps * step + save if cadence.every_steps is not None and rate is not None else None
    between = min((seconds for seconds in (by_time, by_steps) if seconds is not None), default=0.0)
    return max(between, spec.continuity.witness_steps * step)


def detection_seconds(spec: RunSpec) -> float:
    """The longest time until a silent death is noticed: the heartbeat timeout and one heartbeat interval."""
    given = spec.policy.detection_seconds
    return spec.liveness.heartbeat_timeout_seconds + spec.liveness.heartbeat_seconds if given is None else given


def _probe_seconds(spec: RunSpec, history: History, *, now: datetime) -> float | None:
    if spec.deadline is None:
        return None
    # An import is no probe, and may lie long before the run.
    since = takewhile(lambda entry: entry.action == "run", reversed(history.decisions))
    begun = min((entry.written_at for entry in since), default=now)
    return spec.policy.probe_share * (spec.deadline - begun).total_seconds() - (now - begun).total_seconds()


def _median_pace(reports: list[SegmentReport]) -> float:
    """The pace at which half of the steps were done, or the next slower one."""
    paces = sorted((report.train_seconds / report.train_steps, report.train_steps) for report in reports)
    done = list(accumulate(steps for _, steps in paces))
    return next(pace for (pace, _), steps in zip(paces, done, strict=True) if steps > done[-1] / 2)


def _changeover_of(attempt: Attempt, history: History) -> float | None:
    """From the decision to the first new step; None for an attempt that came to none."""
    report = attempt.report
    if report is None or report.train_steps == 0:
        return None
    return _to_claim_seconds(attempt.claim, history) + report.startup_seconds


def _to_claim_seconds(claim: ClaimEntry, history: History) -> float:
    # Two machines' wall clocks: an estimate, which is why it can only lengthen the prior.
    plans = (
        e for e in history.decisions if e.plan and (e.plan.segment, e.plan.attempt) == (claim.segment, claim.attempt)
    )
    decided = next(plans, None)
    return max((claim.written_at - decided.written_at).total_seconds(), 0.0) if decided else 0.0
