"""Decides how long a start may take.

A start lasts from the moment at which a worker takes an attempt to the attempt's claim of the run. The module derives
the limit of a pool from the starts on the pool in the run's log. If a start takes longer than the limit, segue requests
another start of the same attempt beside the slow start. If a start takes longer than a maximum time, segue gives up the
start. The module is pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from segue.policy import clamp
from segue.policy.estimates import Situation, keeps_machine_of, to_claim_seconds
from segue.records import Capacity, SegmentPlan
from segue.runlog.entries import DecisionEntry
from segue.runlog.history import History
from segue.spec import RunSpec

SHARE = 0.99
"""The share of the known starts that take at most the limit."""
_NEWEST = 200
"""Number of newest starts from which the limit of a pool is derived."""
_FACTOR = 2.0
"""A start is slow only if it takes longer than the known starts by this factor.

If no start claimed the attempt, the factor also multiplies the times of the attempt's starts. The next attempt then has
more time.
"""
MOST_STARTS = 3
"""Maximum number of starts of one attempt on one pool, including the first start."""
_LONGEST_IN_LIMITS = 3.0
_CHANGEOVERS = 5.0
"""Longest time of a start in a run with a deadline, in changeovers.

If this time is shorter than a multiple of the start's limit, the multiple applies.
"""


@dataclass(frozen=True)
class StartLimit:
    """The limit after which a start on a pool is slow, and the known starts behind the limit."""

    seconds: float
    soon_seconds: float
    """The limit in seconds that applies if the deadline leaves no time for a wait of `seconds`."""
    longest_seconds: float
    """Number of seconds after which segue gives up a start."""
    usual_seconds: float | None
    """99 % of the known starts took at most this number of seconds. The value is None if no start is known."""
    known: int

    def in_words(self, *, seconds: float) -> str:
        """Explain in words why a start that has taken this number of seconds is slow."""
        if self.usual_seconds is None:
            return f"the start takes longer than {seconds:.0f} s, and no earlier start on this pool is known"
        before = f"{SHARE:.0%} of the {self.known} earlier starts" if self.known > 1 else "the only earlier start"
        longest = f"{before} on this pool took at most {self.usual_seconds:.0f} s"
        return f"the start takes longer than {seconds:.0f} s, and {longest}"


@dataclass(frozen=True)
class Start:
    """The current state of one start of an attempt."""

    number: int
    seconds: float | None
    """Seconds since a worker took the start. The value is None if the start waits for capacity."""
    waited_seconds: float = 0.0
    """Seconds since the start was requested."""
    may_be_doubled: bool = True
    """Whether the only cost of another start would be its machine."""


@dataclass(frozen=True)
class StartNumbers:
    """The numbers of an attempt's starts, counted pool by pool.

    With three pools, the numbers 1, 2 and 3 are the first starts, and number 5 is the second start on the second pool.
    """

    pools: tuple[str, ...]

    @classmethod
    def of(cls, plan: SegmentPlan) -> StartNumbers:
        return cls(tuple(each.deployment for each in plan.pools) or (plan.deployment,))

    def pool_of(self, number: int) -> str:
        return self.pools[(number - 1) % len(self.pools)]

    def first_on(self, pool: str) -> int:
        """Return the number of the first start on a pool."""
        return self.pools.index(pool) + 1

    def turn_of(self, number: int) -> int:
        """Return the number of a start among the starts on its pool, from 1."""
        return (number - 1) // len(self.pools) + 1

    def after(self, number: int) -> int:
        """Return the number of the next start on the same pool."""
        return number + len(self.pools)

    @property
    def all(self) -> range:
        """The numbers of all starts that the attempt may have."""
        return range(1, MOST_STARTS * len(self.pools) + 1)


class Step(StrEnum):
    """The next action for the starts of an attempt that has not claimed the run."""

    WAIT = "wait"
    ASK = "ask"
    """Request another start beside the newest start."""
    GIVE_UP = "give up"
    """Give up the oldest start, and wait for the other start."""
    END = "end"
    """Give up the attempt and all of its starts."""


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that a `share` of the values does not exceed. Return None without values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def known_seconds(history: History, plan: SegmentPlan) -> list[float]:
    """Return the seconds of the newest starts on the pool of a plan, without the starts of the plan itself.

    If a start failed and another start of the same attempt succeeded, the failure shows nothing about the pool.
    """
    place = plan.segment, plan.attempt
    of_pool = [entry for entry in history.starts if entry.deployment == plan.deployment and entry.seconds > 0]
    here = [entry for entry in of_pool if (entry.segment, entry.attempt) != place]
    claimed = {(entry.segment, entry.attempt) for entry in here if entry.outcome == "claimed"}
    known = [
        entry.seconds * (1.0 if entry.outcome == "claimed" else _FACTOR)
        for entry in here
        if entry.outcome == "claimed"
        or (entry.outcome == "start_failed" and (entry.segment, entry.attempt) not in claimed)
    ]
    return known[-_NEWEST:]


def limit_of(known: Sequence[float], *, spec: RunSpec, changeover_seconds: float) -> StartLimit:
    """Return the start limit of a pool. `known` contains the seconds of its earlier starts."""
    usual, liveness = quantile(known, SHARE), spec.liveness
    most = liveness.first_step_seconds
    learned = _FACTOR * usual if usual is not None else 0.0
    seconds = min(max(liveness.slow_start_seconds, learned), most)
    longest = most
    if spec.deadline is not None:
        longest = min(most, max(_CHANGEOVERS * spec.policy.changeover_seconds, _LONGEST_IN_LIMITS * seconds))
    soon = min(max(learned, changeover_seconds), seconds)
    return StartLimit(seconds, soon, longest, usual_seconds=usual, known=len(known))


def slow_after_seconds(limit: StartLimit, *, seconds: float, left_seconds: float | None, asked: int) -> float:
    """Return the seconds after which a start that has taken `seconds` so far is slow.

    Each earlier start doubles the time. To meet the deadline, another start must begin within `left_seconds`. If the
    run has no deadline, `left_seconds` is None.
    """
    patient = limit.seconds * 2.0 ** (asked - 1)
    is_urgent = left_seconds is not None and left_seconds < patient - seconds
    return limit.soon_seconds if is_urgent and asked == 1 else patient


def next_step(starts: Sequence[Start], limit: StartLimit, *, asked: int, left_seconds: float | None = None) -> Step:
    """Return the next action for an attempt whose living starts are `starts`, oldest first.

    `asked` is the number of all requested starts.
    """
    if not starts:
        return Step.WAIT
    oldest, newest = starts[0], starts[-1]
    if oldest.seconds is not None and oldest.seconds > limit.longest_seconds:
        return Step.GIVE_UP if len(starts) > 1 else Step.END
    if len(starts) > 1:
        # The other start may only wait for the slot of the pool that the slow start holds.
        is_blocked = newest.seconds is None and newest.waited_seconds > limit.seconds
        return Step.GIVE_UP if is_blocked and oldest.seconds is not None else Step.WAIT
    if newest.seconds is None or not newest.may_be_doubled or asked >= MOST_STARTS:
        return Step.WAIT
    slow_after = slow_after_seconds(limit, seconds=newest.seconds, left_seconds=left_seconds, asked=asked)
    return Step.ASK if newest.seconds > slow_after else Step.WAIT


def left_seconds(here: Situation, capacity: Capacity) -> float | None:
    """Return the seconds in which the controller has to request another start, or None without a limit.

    If the controller requests the start later, the run misses the deadline.
    """
    if here.remaining_seconds is None or here.work_seconds is None:
        return None
    if capacity is Capacity.SPOT:
        until_on_demand = clamp.seconds_to_recall(here)
        return None if until_on_demand is None else until_on_demand - here.changeover_seconds
    return here.remaining_seconds - here.work_seconds - here.changeover_seconds


def machine_starts(history: History) -> list[tuple[DecisionEntry, float]]:
    """Return the starts of on-demand machines.

    The result pairs each decision with the seconds from the decision to the attempt's claim.
    """
    attempts = history.attempts
    found = []
    for before, attempt in zip((None, *attempts)[: len(attempts)], attempts, strict=True):
        decided = history.decision_of(attempt.claim.segment, attempt.claim.attempt)
        is_new = decided is not None and not keeps_machine_of(before, attempt, history=history)
        if decided is not None and is_new and attempt.claim.capacity is Capacity.ON_DEMAND:
            found.append((decided, to_claim_seconds(attempt.claim, history)))
    return found
