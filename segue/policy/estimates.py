"""Estimates a run's speed, changeovers and saves from the measurements of the run's own attempts. The module is pure.

A usual value is the median over the newest attempts. One slow disk, queue or batch therefore does not change the choice
of a policy. The clamp does not use medians. The clamp uses the longest of the newest changeovers, and adds a margin to
the changeover to on-demand. For the seconds per step, the clamp compares all attempts with the attempts on on-demand
and uses the slower value.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from itertools import accumulate, takewhile
from statistics import median, median_high

from segue.policy import queueing
from segue.records import Capacity, SegmentReport, StopReason
from segue.runlog.entries import ClaimEntry
from segue.runlog.history import Attempt, History
from segue.spec import RunSpec

_LONGEST_OF, _USUAL_OF = 3, 5
"""Number of newest attempts for the longest changeover (first number), and for usual values (second number)."""
_ENOUGH_STEPS, _ENOUGH_SECONDS = 5, 300.0
"""The measured rate replaces the prior if more than this many steps, or seconds in steps, were measured."""
_MOST_BY_OTHERS = 5.0
"""Upper limit of the boots of other runs, as a multiple of the changeover in the run spec."""
UNSEEN_START_FACTOR, SEEN_START_FACTOR = 1.5, 1.1
"""Factors by which an on-demand machine may start slower than expected.

The larger factor applies until the run has observed a start of on-demand. The smaller factor applies afterwards.
"""


@dataclass(frozen=True)
class Situation:
    """The numbers on which a policy and the clamp base their decisions. All numbers are in seconds."""

    remaining_seconds: float | None
    """Seconds until the deadline (R). The value is None if the run has no deadline."""
    work_seconds: float | None
    """Seconds of work that the run still needs at the measured rate (C), including the margin.

    The value is None if no rate has been measured yet.
    """
    changeover_seconds: float
    """Longest time in seconds from the end of one segment to the first new step of the next segment (d)."""
    at_risk_seconds: float
    """Seconds of work that a kill can lose at most: the time between two commits."""
    detection_seconds: float
    """Longest time in seconds until the controller notices that an attempt died silently."""
    answer_seconds: float = 0.0
    """Longest time in seconds from a recall to the end of the attempt's last save."""
    probe_seconds: float | None = None
    """Seconds that probes may still use until a rate is measured. The value is None if the run has no deadline."""
    usual_changeover_seconds: float | None = None
    """The usual changeover in seconds, from which policies compute expected costs.

    The value None means that the usual changeover equals the longest changeover.
    """
    on_demand_changeover_seconds: float | None = None
    """Longest time in seconds from the end of a segment to the first new step on on-demand, with a margin.

    If the value is None, the longest changeover without a margin applies.
    """
    save_seconds: float | None = None
    """The usual time in seconds from a snapshot to its commit. The value is None if no save has been measured yet."""
    on_demand_queue_seconds: float = 0.0
    """Seconds that this run waits for a slot of on-demand, because other runs use the slots."""
    spot_queue_seconds: float = 0.0
    """Seconds that this run waits for a slot of spot, because other runs use the slots."""
    crowd_seconds: float = 0.0
    """Additional seconds of the wait for on-demand, because other runs give up spot at the same time."""

    @property
    def expected_changeover_seconds(self) -> float:
        """The changeover in seconds that a policy expects. The clamp uses the longest changeover instead."""
        usual = self.usual_changeover_seconds
        return self.changeover_seconds if usual is None else usual

    @property
    def to_on_demand_seconds(self) -> float:
        """The longest changeover to on-demand in seconds.

        The clamp uses the changeover to on-demand to decide whether it permits spot.
        """
        longest = self.on_demand_changeover_seconds
        return self.changeover_seconds if longest is None else longest

    @property
    def slack_seconds(self) -> float | None:
        """The remaining seconds minus the seconds of work (R - C). The value is None if either number is unknown."""
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
    """Return the situation of the run at the time `now`.

    The seconds per step are at least `slowest_step_seconds`, if given. If the wait for a slot of on-demand is not
    given, the function uses the wait of the newest decision.
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
        # An attempt reads a recall with each heartbeat, stops between two steps, and saves once more. The last save
        # comes after the save at risk, which was not committed yet when the recall came.
        answer_seconds=spec.liveness.heartbeat_seconds + (rate or 0.0) + (save or 0.0),
        probe_seconds=_probe_seconds(spec, measured.begun_at or now, now=now),
        usual_changeover_seconds=measured.usual_changeover_seconds,
        on_demand_changeover_seconds=measured.on_demand_changeover_seconds,
        save_seconds=save,
        on_demand_queue_seconds=on_demand_queue_seconds,
    )


@dataclass(frozen=True)
class _Measured:
    """The numbers of a situation that do not depend on the current time."""

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
    """Return the seconds per step, including saves.

    The value is the median of the newest attempts, weighted by steps. Until enough steps are measured, the value is the
    prior.

    The measurements omit each attempt's first step, because the first step includes allocations and compilation. If
    on-demand was slower than the median, the value is the median of on-demand. In the worst case, on-demand does the
    remaining work.
    """
    measured = [report for report in history.last_reports() if report.train_steps > 0]
    steps, seconds = (sum(getattr(r, name) for r in measured) for name in ("train_steps", "train_seconds"))
    if spec.policy.step_seconds is not None and steps <= _ENOUGH_STEPS and seconds <= _ENOUGH_SECONDS:
        return spec.policy.step_seconds
    on_demand = [report for report in measured if report.capacity is Capacity.ON_DEMAND]
    usual = [_median_pace(reports[-_USUAL_OF:]) for reports in (measured, on_demand) if reports]
    return max(usual, default=spec.policy.step_seconds)


def changeover_seconds(spec: RunSpec, history: History) -> float:
    """Return the longest of the newest changeovers in seconds, or the prior if the prior is longer.

    The prior is a lower limit, because on-demand may boot slower than spot did.

    A changeover includes the wait for spot, because the wait and the boot cannot be distinguished. On-demand may take
    as long as spot.
    """
    return max([spec.policy.changeover_seconds, *_newest_changeovers(history)])


def on_demand_changeover_seconds(spec: RunSpec, history: History) -> float:
    """Return the longest changeover to on-demand in seconds, with a margin.

    The deadline needs the margin, because the changeover to on-demand may be only a guess.

    Until the run has observed a start of on-demand, the result is 1.5 times the usual changeover. The result is then at
    least 1.1 times the longest changeover that other runs of the store have observed. After a start of on-demand, the
    result is 1.1 times the longest of the newest starts of on-demand. The result is never shorter than the longest of
    the newest changeovers.
    """
    seen = _newest_changeovers(history, Capacity.ON_DEMAND)
    if seen:
        expected = SEEN_START_FACTOR * max(seen)
    else:
        expected = UNSEEN_START_FACTOR * max(spec.policy.changeover_seconds, usual_changeover_seconds(spec, history))
        by_others = [start.seconds for start in history.seen_pools.starts if start.pool == spec.pools.on_demand]
        own = max((report.startup_seconds for report in history.last_reports()), default=0.0)
        # A single start that waited for a worker all night must not prevent later runs from using spot.
        longest = min(max(by_others, default=0.0), _MOST_BY_OTHERS * spec.policy.changeover_seconds)
        expected = max(expected, SEEN_START_FACTOR * (longest + own))
    return max(expected, changeover_seconds(spec, history))


def usual_changeover_seconds(spec: RunSpec, history: History) -> float:
    """Return the median of the newest changeovers and the prior.

    The median must not include the wait of a spot attempt for capacity. The changeover of a spot attempt is therefore
    its own startup time plus the shortest time that any attempt needed to claim. If the whole time of a spot attempt is
    within the prior, its changeover is the whole time.
    """
    prior = spec.policy.changeover_seconds
    to_claims = [to_claim_seconds(attempt.claim, history) for attempt in history.attempts]
    shortest = min((seconds for seconds in to_claims if seconds > 0), default=0.0)
    seen = []
    for attempt in history.attempts:
        seconds = _changeover_of(attempt, history)
        if seconds is not None and attempt.report is not None:
            is_spot = attempt.claim.capacity is Capacity.SPOT
            seen.append(min(seconds, max(prior, shortest + attempt.report.startup_seconds)) if is_spot else seconds)
    return median_high([prior, *seen[-_USUAL_OF:]])


def save_seconds(history: History) -> float | None:
    """Return the time in seconds from a snapshot to its commit.

    The value is the median of the newest attempts with a measurement, or None if no attempt has one.
    """
    seen = [report.save_seconds for report in history.last_reports() if report.save_seconds is not None]
    return median(seen[-_USUAL_OF:]) if seen else None


def at_risk_seconds(spec: RunSpec, rate: float | None, *, save_seconds: float | None = None) -> float:
    """Return the longest time in seconds between two commits.

    If commits are set by steps, the function needs a measured rate.
    """
    cadence, step, save = spec.checkpoints, rate or 0.0, save_seconds or 0.0
    if cadence.every_seconds is None and cadence.every_steps is None:
        save = 0.0  # The measured save interval already subtracts it.
    # A save waits for the end of the step in which it is due. The first save waits for the end of the replay.
    by_time = cadence.longest_seconds + step + save if cadence.longest_seconds is not None else None
    by_steps = cadence.every_steps * step + save if cadence.every_steps is not None and rate is not None else None
    between = min((seconds for seconds in (by_time, by_steps) if seconds is not None), default=0.0)
    return max(between, spec.continuity.witness_steps * step)


def detection_seconds(spec: RunSpec) -> float:
    """Return the longest time in seconds until the controller notices a silent death.

    The time is the heartbeat timeout plus the heartbeat period, or plus the period of store reads if that is longer.
    """
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
    """Return the median of the seconds per step, weighted by steps.

    If the median is between two attempts, return the slower value.
    """
    paces = sorted((report.train_seconds / report.train_steps, report.train_steps) for report in reports)
    done = list(accumulate(steps for _, steps in paces))
    return next(pace for (pace, _), steps in zip(paces, done, strict=True) if steps > done[-1] / 2)


def _newest_changeovers(history: History, capacity: Capacity | None = None) -> list[float]:
    """Return the newest changeovers, including the newest changeovers with a new machine.

    An attempt after a planned end keeps its machine.

    The next new machine may start as slowly as the earlier new machines, even if the run has often kept its machine
    since then.
    """
    attempts = history.attempts
    before = (None, *attempts)[: len(attempts)]
    of_it = [pair for pair in zip(before, attempts, strict=True) if capacity in (None, pair[1].claim.capacity)]
    new = [pair for pair in of_it if not keeps_machine_of(*pair, history=history)]
    counted = {id(each): each for _, each in (*of_it[-_LONGEST_OF:], *new[-_LONGEST_OF:])}
    seen = (_changeover_of(each, history) for each in counted.values())
    return [seconds for seconds in seen if seconds is not None]


def keeps_machine_of(before: Attempt | None, attempt: Attempt, *, history: History) -> bool:
    """Whether an attempt continues on the machine of the previous attempt after a planned end."""
    if before is None or before.report is None or before.report.stop_reason is not StopReason.BOUND:
        return False
    decided = history.decision_of(before.claim.segment, before.claim.attempt)
    plan = decided.plan if decided is not None else None
    if plan is None or not plan.keeps_machine or plan.capacity is not attempt.claim.capacity:
        return False
    # If the machine was gone, its attempt ended without a claim, and this attempt is a later attempt.
    return attempt.claim.attempt == 1 and attempt.claim.host == before.claim.host


def _changeover_of(attempt: Attempt, history: History) -> float | None:
    """Return the seconds from the decision to the first new step, or None for an attempt without a new step."""
    report = attempt.report
    if report is None or report.train_steps == 0:
        return None
    return to_claim_seconds(attempt.claim, history) + report.startup_seconds


def _lost_to_a_slow_start(claim: ClaimEntry, history: History) -> float:
    """Return the seconds that a failed start cost before the start that claimed the run.

    The time lasts from the moment at which a worker took the failed start until a worker took the successful start.
    """
    known = history.starts_on_its_pool(claim.segment, claim.attempt)
    slow = next((start for start in known if start.outcome == "slow"), None)
    claimed = next((start for start in known if start.outcome == "claimed"), None)
    if slow is None or claimed is None or claimed.number == slow.number:
        return 0.0
    since_taken = (claim.written_at - slow.written_at).total_seconds() + slow.seconds
    return max(since_taken - claimed.seconds, 0.0)


def to_claim_seconds(claim: ClaimEntry, history: History) -> float:
    """Return the seconds between the decision to start an attempt and the attempt's claim of the run. The extra time of
    a slow start does not count."""
    # The difference between the wall clocks of two machines is an estimate, so it can only lengthen the prior.
    decided = history.decision_of(claim.segment, claim.attempt)
    if decided is None:
        return 0.0
    seconds = max((claim.written_at - decided.written_at).total_seconds() - _lost_to_a_slow_start(claim, history), 0.0)
    longest = decided.plan.start_within_seconds if decided.plan is not None else None
    # A run keeps its place in the queue of spot for longer than the plan allows, but not in the queue of on-demand.
    return seconds if longest is None else min(seconds, longest)
