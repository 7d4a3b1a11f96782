"""What the run itself tells about its speed and its changeovers. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile

from segue.history import Attempt, History
from segue.records import Capacity
from segue.spec import RunSpec

_RECENT_REPORTS = 3


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
    """Longest time from a recall to the safe point at which the attempt heeds it."""
    probe_seconds: float | None = None
    """What is left of the time in which unmeasured probes may find out C; None without a deadline."""

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
    work = None if rate is None else (spec.steps - history.committed_step) * rate * (1 + spec.policy.margin_share)
    return Situation(
        remaining_seconds=None if spec.deadline is None else (spec.deadline - now).total_seconds(),
        work_seconds=work,
        changeover_seconds=changeover_seconds(spec, history),
        at_risk_seconds=at_risk_seconds(spec, rate),
        detection_seconds=detection_seconds(spec),
        # It looks for a recall with each heartbeat, and stops between two steps.
        answer_seconds=spec.liveness.heartbeat_seconds + (rate or 0.0),
        probe_seconds=_probe_seconds(spec, history, now=now),
    )


def step_seconds(spec: RunSpec, history: History) -> float | None:
    """Seconds a step, saves included: the newest reports' mean, the prior before there are any."""
    measured = [report for report in history.last_words() if report.train_steps > 0][-_RECENT_REPORTS:]
    steps = sum(report.train_steps for report in measured)
    return sum(report.train_seconds for report in measured) / steps if steps else spec.policy.step_seconds


def changeover_seconds(spec: RunSpec, history: History) -> float:
    """The longest changeover seen lately, never below the prior: on-demand may boot slower than spot did."""
    seen = [_changeover_of(attempt, history) for attempt in history.attempts[-_RECENT_REPORTS:]]
    return max([spec.policy.changeover_seconds, *(seconds for seconds in seen if seconds is not None)])


def at_risk_seconds(spec: RunSpec, rate: float | None) -> float:
    """The longest time between two commits; by steps it needs a rate."""
    cadence, step = spec.checkpoints, rate or 0.0
    # A save waits for the end of the step in which it falls due, and the first one for the end of the replay.
    by_time = cadence.longest_seconds + step if cadence.longest_seconds is not None else None
    by_steps = cadence.every_steps * step if cadence.every_steps is not None and rate is not None else None
    between = min((seconds for seconds in (by_time, by_steps) if seconds is not None), default=0.0)
    return max(between, spec.continuity.witness_steps * step)


def detection_seconds(spec: RunSpec) -> float:
    """The longest time until a death without a word is noticed: the lease, and the beat it is counted from."""
    given = spec.policy.detection_seconds
    return spec.liveness.lease_seconds + spec.liveness.heartbeat_seconds if given is None else given


def _probe_seconds(spec: RunSpec, history: History, *, now: datetime) -> float | None:
    if spec.deadline is None:
        return None
    # An import is no probe, and may lie long before the run.
    since = takewhile(lambda entry: entry.action == "run", reversed(history.decisions))
    begun = min((entry.written_at for entry in since), default=now)
    return spec.policy.probe_share * (spec.deadline - begun).total_seconds() - (now - begun).total_seconds()


def _changeover_of(attempt: Attempt, history: History) -> float | None:
    claim, report = attempt.claim, attempt.report
    if report is None or report.train_steps == 0:
        return None
    plans = (
        e for e in history.decisions if e.plan and (e.plan.segment, e.plan.attempt) == (claim.segment, claim.attempt)
    )
    decided = next(plans, None)
    # Two machines' wall clocks: an estimate, which is why it can only lengthen the prior.
    boot = (claim.written_at - decided.written_at).total_seconds() if decided else 0.0
    return max(boot, 0.0) + report.startup_seconds


def paid_seconds(history: History) -> dict[Capacity, float]:
    """Seconds on each capacity, as far as reports tell."""
    return {capacity: history.seconds_on(capacity) for capacity in Capacity}
