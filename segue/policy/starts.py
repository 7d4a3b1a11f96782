"""How long a start may take: from the moment a worker takes an attempt to the attempt's claim of the run. Pure.

The limit is learned from the starts on the same pool that the run's log has. Past it another start of the same attempt
is asked for beside the slow one; past a longest time a start is given up.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from segue.records import SegmentPlan
from segue.runlog.history import History
from segue.spec import RunSpec

SHARE = 0.99
"""The share of known starts that a limit covers."""
_NEWEST = 200
"""The most starts of a pool by which the pool is judged, the newest ones."""
_FACTOR = 2.0
"""Factor by which a start may take longer than the known ones before it is slow.

If no start of an attempt claimed it, its starts count as longer by the same factor: if all starts take longer than the
limit so far, the next attempt has more time.
"""
MOST_STARTS = 3
"""Starts of one attempt, the first included."""
_LONGEST_IN_LIMITS = 3.0
_CHANGEOVERS = 5.0
"""With a deadline a start may take this multiple of a changeover, and of its limit, before it is given up."""


@dataclass(frozen=True)
class StartLimit:
    """The limit beyond which a start on a pool is slow, and the starts from which it was learned."""

    seconds: float
    soon_seconds: float
    """The limit if the deadline leaves no time to wait for `seconds`."""
    longest_seconds: float
    """A start is given up after this time."""
    usual_seconds: float | None
    """99 % of the known starts took no longer; None: none is known."""
    known: int

    def in_words(self, *, seconds: float) -> str:
        """Why a start that has taken so long is slow."""
        if self.usual_seconds is None:
            return f"the start takes longer than {seconds:.0f} s, and none on this pool is known yet"
        before = f"{SHARE:.0%} of the {self.known} starts" if self.known > 1 else "the one start"
        longest = f"{before} on this pool before took at most {self.usual_seconds:.0f} s"
        return f"the start takes longer than {seconds:.0f} s, and {longest}"


@dataclass(frozen=True)
class Start:
    """One start of an attempt, as it is seen now."""

    number: int
    seconds: float | None
    """Time since a worker took it; None: it waits for capacity."""
    waited_seconds: float = 0.0
    """Time since it was asked for."""
    may_be_doubled: bool = True
    """Whether another one beside it would cost nothing but its machine."""


class Step(StrEnum):
    """The next action on the starts of an attempt that has not claimed the run."""

    WAIT = "wait"
    ASK = "ask"
    """Ask for another start beside the newest one."""
    GIVE_UP = "give up"
    """Give up the oldest start, and wait for the other one."""
    END = "end"
    """Give up the attempt: none of its starts is waited for any more."""


def quantile(values: Sequence[float], share: float) -> float | None:
    """The least of the values that this share of them does not exceed; None without values."""
    if not values:
        return None
    return sorted(values)[max(math.ceil(share * len(values)), 1) - 1]


def known_seconds(history: History, plan: SegmentPlan) -> list[float]:
    """How long the newest starts on the pool of a plan took, those of that plan excepted.

    A start that failed beside one that did not shows nothing about the pool.
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
    """The limit of a pool whose starts took so long."""
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
    """How long a start that has taken `seconds` may take until it is slow; each earlier start doubles the time.

    `left_seconds` is the time in which another start must have begun, for the deadline; None: there is none.
    """
    patient = limit.seconds * 2.0 ** (asked - 1)
    is_urgent = left_seconds is not None and left_seconds < patient - seconds
    return limit.soon_seconds if is_urgent and asked == 1 else patient


def next_step(starts: Sequence[Start], limit: StartLimit, *, asked: int, left_seconds: float | None = None) -> Step:
    """The next action on an attempt's living starts, oldest first; `asked` is how many were asked for in all."""
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
