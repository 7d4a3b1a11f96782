"""A run's speed, changeovers and saves, as its own attempts measured them. Pure.

Usual values are medians over the newest attempts, so that one slow disk, queue or batch does not change a policy's
choice. The deadline does not rest on medians: the clamp counts the longest of the newest changeovers, with a margin for
the one to on-demand, and the slower of two paces, that of all attempts and that of on-demand.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from statistics import median, median_high

from segue.policy import queueing
from segue.records import Capacity, SegmentReport, StopReason
from segue.runlog.entries import ClaimEntry, DecisionEntry
from segue.runlog.history import Attempt, History
from segue.spec import RunSpec

_LONGEST_OF, _USUAL_OF = 3, 5
"""How many of the newest attempts the longest changeover and the usual values are taken from."""
_ENOUGH_STEPS, _ENOUGH_SECONDS = 5, 300.0
"""More steps than this, or more time in steps, must be measured before the measured rate replaces the prior."""
UNSEEN_START_FACTOR, SEEN_START_FACTOR = 1.5, 1.1
"""Factors by which on-demand may start slower than expected: while this run has seen no start of it, and afterwards."""


@dataclass(frozen=True)
class Situation:
    """The numbers that a policy and the clamp decide by, in seconds."""

    remaining_seconds: float | None
    """Time until the deadline (R); None without a deadline."""
    work_seconds: float | None
    """Computing still needed at the measured rate (C), overestimated by the margin; None while unmeasured."""
    changeover_seconds: float
    """Longest time from the end of one segment to the first new step of the next (d)."""
    at_risk_seconds: float
    """Most work that one kill can lose: the time between commits."""
    detection_seconds: float
    """Longest time until a silent death is noticed."""
    answer_seconds: float = 0.0
    """Longest time from a recall to the safe point at which the attempt stops, and its last save there."""
    probe_seconds: float | None = None
    """Time that probes may still use while C is unmeasured; None without a deadline."""
    usual_changeover_seconds: float | None = None
    """The usual d, for expectations; None: as long as the longest."""
    on_demand_changeover_seconds: float | None = None
    """Longest time from the end of a segment to the first new step on on-demand, with a margin; None: no margin."""
    save_seconds: float | None = None
    """The usual time from a snapshot to its commit; None while unmeasured."""
    on_demand_queue_seconds: float = 0.0
    """The wait for on-demand, because other runs have its slots."""
    spot_queue_seconds: float = 0.0
    """The wait for a slot of spot, because other runs have its slots."""
    crowd_seconds: float = 0.0
    """The additional wait for on-demand after spot is given up, because runs before this one also give up spot."""

    @property
    def expected_changeover_seconds(self) -> float:
        """The d that a policy expects; the clamp counts with the longest."""
        usual = self.usual_changeover_seconds
        return self.changeover_seconds if usual is None else usual

    @property
    def to_on_demand_seconds(self) -> float:
        """The longest changeover to on-demand, by which the clamp permits spot."""
        longest = self.on_demand_changeover_seconds
        return self.changeover_seconds if longest is None else longest

    @property
    def slack_seconds(self) -> float | None:
        """R - C; None when either is unknown."""
        if self.remaining_seconds is None or self.work_seconds is None:
            return None
        return self.remaining_seconds - self.work_seconds


def situation(
    spec: RunSpec,
    history: History,
    *,
    now: datetime,
    slowest_step_seconds: float = 0.0,
    on_demand_queue_seconds: float | None = None,
) -> Situation:
    """Where the run stands. With `slowest_step_seconds`, a running attempt can raise the seconds per step to its own.

    The wait for a slot of on-demand is that of the newest decision, if it is not given.
    """
    if on_demand_queue_seconds is None:
        newest = history.decisions[-1].numbers if history.decisions else {}
        on_demand_queue_seconds = newest.get(queueing.NUMBER, 0.0)
    measured = history.once(_measured, spec)
    rate, save = measured.step_seconds, measured.save_seconds
    if slowest_step_seconds:
        rate = max(rate or 0.0, slowest_step_seconds)
    work = None if rate is None else (spec.steps - history.committed_step) * rate * (1 + spec.policy.margin_share)
    return Situation(
        remaining_seconds=None if spec.deadline is None else (spec.deadline - now).total_seconds(),
        work_seconds=work,
        changeover_seconds=measured.changeover_seconds,
        at_risk_seconds=at_risk_seconds(spec, rate, save_seconds=save),
        detection_seconds=detection_seconds(spec),
        # An attempt reads a recall with each heartbeat, stops between two steps, and saves once more. That save comes
        # after the save at risk, which was not committed yet when the recall came.
        answer_seconds=spec.liveness.heartbeat_seconds + (rate or 0.0) + (save or 0.0),
        probe_seconds=_probe_seconds(spec, measured.begun_at or now, now=now),
        usual_changeover_seconds=measured.usual_changeover_seconds,
        on_demand_changeover_seconds=measured.on_demand_changeover_seconds,
        save_seconds=save,
        on_demand_queue_seconds=on_demand_queue_seconds,
    )


@dataclass(frozen=True)
class _Measured:
    """The part of a situation that does not change while time passes."""

    step_seconds: float | None
    save_seconds: float | None
    changeover_seconds: float
    usual_changeover_seconds: float
    on_demand_changeover_seconds: float
    begun_at: datetime | None


def _measured(spec: RunSpec, history: History) -> _Measured:
    return _Measured(
        step_seconds=step_seconds(spec, history),
        save_seconds=save_seconds(history),
        changeover_seconds=changeover_seconds(spec, history),
        usual_changeover_seconds=usual_changeover_seconds(spec, history),
        on_demand_changeover_seconds=on_demand_changeover_seconds(spec, history),
        begun_at=_begun_at(history),
    )


def step_seconds(spec: RunSpec, history: History) -> float | None:
    """Seconds per step, saves included: the newest attempts' median by steps; the prior until enough are measured.

    Reports leave out each attempt's first step, which includes allocations and compilation. If on-demand was slower,
    its own median counts: in the worst case the remaining work is done there.
    """
    measured = [report for report in history.last_reports() if report.train_steps > 0]
    steps, seconds = (sum(getattr(r, name) for r in measured) for name in ("train_steps", "train_seconds"))
    if spec.policy.step_seconds is not None and steps <= _ENOUGH_STEPS and seconds <= _ENOUGH_SECONDS:
        return spec.policy.step_seconds
    on_demand = [report for report in measured if report.capacity is Capacity.ON_DEMAND]
    usual = [_median_pace(reports[-_USUAL_OF:]) for reports in (measured, on_demand) if reports]
    return max(usual, default=spec.policy.step_seconds)


def changeover_seconds(spec: RunSpec, history: History) -> float:
    """The longest of the newest changeovers, never below the prior: on-demand may boot slower than spot did.

    Waits for spot are included. How much of the time to a claim was a wait is unknown, and on-demand may take as long.
    """
    return max([spec.policy.changeover_seconds, *_newest_changeovers(history)])


def on_demand_changeover_seconds(spec: RunSpec, history: History) -> float:
    """The longest changeover to on-demand, with its margin: the deadline relies on it, and it may be a guess.

    While the run has seen no start of on-demand, it may take half as long again as the usual changeover, and no less
    than a tenth longer than the slowest machine that other runs of the store have waited for. Afterwards, it may take a
    tenth longer than the longest of its newest starts. It is never below the longest of the newest changeovers.
    """
    seen = _newest_changeovers(history, Capacity.ON_DEMAND)
    if seen:
        expected = SEEN_START_FACTOR * max(seen)
    else:
        expected = UNSEEN_START_FACTOR * max(spec.policy.changeover_seconds, usual_changeover_seconds(spec, history))
        by_others = [start.seconds for start in history.seen_pools.starts if start.pool == spec.pools.on_demand]
        own = max((report.startup_seconds for report in history.last_reports()), default=0.0)
        expected = max(expected, SEEN_START_FACTOR * (max(by_others, default=0.0) + own))
    return max(expected, changeover_seconds(spec, history))


def machine_starts(history: History) -> list[tuple[DecisionEntry, float]]:
    """The starts of on-demand machines: the decision, and the seconds from it to the attempt's claim."""
    attempts = history.attempts
    found = []
    for before, attempt in zip((None, *attempts)[: len(attempts)], attempts, strict=True):
        decided = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
        is_new = decided is not None and not _keeps_machine_of(before, attempt, history=history)
        if decided is not None and is_new and attempt.claim.capacity is Capacity.ON_DEMAND:
            found.append((decided, _to_claim_seconds(attempt.claim, history)))
    return found


def usual_changeover_seconds(spec: RunSpec, history: History) -> float:
    """The median of the newest changeovers and the prior.

    A spot attempt may have waited for capacity, which is not part of a changeover. It counts with its own startup after
    the shortest time to a claim of any attempt, or with its whole time if that is within the prior.
    """
    prior = spec.policy.changeover_seconds
    to_claims = [_to_claim_seconds(attempt.claim, history) for attempt in history.attempts]
    shortest = min((seconds for seconds in to_claims if seconds > 0), default=0.0)
    seen = []
    for attempt in history.attempts:
        seconds = _changeover_of(attempt, history)
        if seconds is not None and attempt.report is not None:
            is_spot = attempt.claim.capacity is Capacity.SPOT
            seen.append(min(seconds, max(prior, shortest + attempt.report.startup_seconds)) if is_spot else seconds)
    return median_high([prior, *seen[-_USUAL_OF:]])


def save_seconds(history: History) -> float | None:
    """The time from a snapshot to its commit: the median of the newest attempts that measured it; None without any."""
    seen = [report.save_seconds for report in history.last_reports() if report.save_seconds is not None]
    return median(seen[-_USUAL_OF:]) if seen else None


def at_risk_seconds(spec: RunSpec, rate: float | None, *, save_seconds: float | None = None) -> float:
    """The longest time between two commits; by steps it needs a rate."""
    cadence, step, save = spec.checkpoints, rate or 0.0, save_seconds or 0.0
    if cadence.every_seconds is None and cadence.every_steps is None:
        save = 0.0  # The measured save interval already subtracts it.
    # A save waits for the end of the step in which it is due, and the first one for the end of the replay.
    by_time = cadence.longest_seconds + step + save if cadence.longest_seconds is not None else None
    by_steps = cadence.every_steps * step + save if cadence.every_steps is not None and rate is not None else None
    between = min((seconds for seconds in (by_time, by_steps) if seconds is not None), default=0.0)
    return max(between, spec.continuity.witness_steps * step)


def detection_seconds(spec: RunSpec) -> float:
    """The longest time until a silent death is noticed: the heartbeat timeout, and a heartbeat or a look for one."""
    if spec.policy.detection_seconds is not None:
        return spec.policy.detection_seconds
    look_seconds = spec.liveness.remote_look_seconds if spec.store.is_remote else 0.0
    return spec.liveness.heartbeat_timeout_seconds + max(spec.liveness.heartbeat_seconds, look_seconds)


def _begun_at(history: History) -> datetime | None:
    # An import is not a probe, and may be much older than the run.
    since = takewhile(lambda entry: entry.action == "run", reversed(history.decisions))
    return min((entry.written_at for entry in since), default=None)


def _probe_seconds(spec: RunSpec, begun: datetime, *, now: datetime) -> float | None:
    if spec.deadline is None:
        return None
    return spec.policy.probe_share * (spec.deadline - begun).total_seconds() - (now - begun).total_seconds()


def _median_pace(reports: list[SegmentReport]) -> float:
    """The pace at which half of the steps were done, or the next slower one."""
    paces = sorted((report.train_seconds / report.train_steps, report.train_steps) for report in reports)
    done = list(accumulate(steps for _, steps in paces))
    return next(pace for (pace, _), steps in zip(paces, done, strict=True) if steps > done[-1] / 2)


def _newest_changeovers(history: History, capacity: Capacity | None = None) -> list[float]:
    """The newest changeovers, and the newest of those that began with a new machine: those after a planned end do not.

    The next machine starts like the ones before, however often a run goes on with the one that it has.
    """
    attempts = history.attempts
    before = (None, *attempts)[: len(attempts)]
    of_it = [pair for pair in zip(before, attempts, strict=True) if capacity in (None, pair[1].claim.capacity)]
    new = [pair for pair in of_it if not _keeps_machine_of(*pair, history=history)]
    counted = {id(each): each for _, each in (*of_it[-_LONGEST_OF:], *new[-_LONGEST_OF:])}
    seen = (_changeover_of(each, history) for each in counted.values())
    return [seconds for seconds in seen if seconds is not None]


def _keeps_machine_of(before: Attempt | None, attempt: Attempt, *, history: History) -> bool:
    if before is None or before.report is None or before.report.stop_reason is not StopReason.BOUND:
        return False
    decided = history.decision_of(before.claim.segment, before.claim.attempt)
    plan = decided.plan if decided is not None else None
    if plan is None or not plan.keeps_machine or plan.capacity is not attempt.claim.capacity:
        return False
    # If the machine was gone by then, its attempt ended without a claim, and this one is a later one.
    return attempt.claim.attempt == 1 and attempt.claim.host == before.claim.host


def _changeover_of(attempt: Attempt, history: History) -> float | None:
    """Time from the decision to the first new step; None for an attempt without a new step."""
    report = attempt.report
    if report is None or report.train_steps == 0:
        return None
    return _to_claim_seconds(attempt.claim, history) + report.startup_seconds


def _lost_to_a_slow_start(claim: ClaimEntry, history: History) -> float:
    """Seconds from the moment a worker took a start that failed until one took the start that claimed."""
    known = history.starts_of(claim.segment, claim.attempt)
    slow = next((start for start in known if start.outcome == "slow"), None)
    claimed = next((start for start in known if start.outcome == "claimed"), None)
    if slow is None or claimed is None or claimed.number == slow.number:
        return 0.0
    since_taken = (claim.written_at - slow.written_at).total_seconds() + slow.seconds
    return max(since_taken - claimed.seconds, 0.0)


def _to_claim_seconds(claim: ClaimEntry, history: History) -> float:
    # Wall clocks of two machines: an estimate, so it can only lengthen the prior.
    decided = history.decision_of(claim.segment, claim.attempt)
    if decided is None:
        return 0.0
    seconds = max((claim.written_at - decided.written_at).total_seconds() - _lost_to_a_slow_start(claim, history), 0.0)
    longest = decided.plan.start_within_seconds if decided.plan is not None else None
    # A place in a queue is kept for longer than the plan allows; on-demand, which has another queue, is not.
    return seconds if longest is None else min(seconds, longest)
