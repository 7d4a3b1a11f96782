"""Manages the starts of one attempt.

An attempt usually has one start. If this start is slower than usual on its pool, another start is requested. The
further start is a start of the same attempt, because an attempt can be claimed only once. The start that claims the
attempt first in the run's log trains it. Every other start finds the claim and ends without changing anything, even if
it comes late and this parent is dead. The slow start may therefore be alive, and may be impossible to stop. If the slow
start claims the attempt first, it continues. If another start claims the attempt first, the slow start is given up. A
second attempt instead of a second start would need two open plans at the same time, and a decision about which plan
counts. The log contains only the facts that another parent has to know. These facts are which start was slow, so that a
further start with the next number exists, and how each start ended.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from segue.clock import Clock
from segue.controller.orchestrator import Orchestrator
from segue.errors import OrchestratorError
from segue.policy import clamp, starts
from segue.policy.estimates import Situation
from segue.policy.queueing import Queues
from segue.policy.starts import Start, StartLimit, Step
from segue.records import Capacity, SegmentPlan, StopReason
from segue.runlog.entries import ClaimEntry, Entry, StartEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_ORDINALS = {2: "a second one", 3: "a third one"}


@dataclass(frozen=True)
class Submitted:
    """An attempt that was submitted to an orchestrator."""

    plan: SegmentPlan
    orchestrator: Orchestrator
    handle: str


@dataclass(frozen=True)
class _Living:
    """A start that may still claim the attempt."""

    number: int
    handle: str
    asked_at: float


class Starts:
    """The starts that may still claim a submitted attempt.

    After the claim, only the start that claimed the attempt is kept.
    """

    def __init__(self, runlog: RunLog, spec: RunSpec, submitted: Submitted, *, clock: Clock) -> None:
        self._runlog, self._spec, self._clock = runlog, spec, clock
        self.plan, self.orchestrator = submitted.plan, submitted.orchestrator
        self._living = [_Living(1, submitted.handle, clock.monotonic())]
        self._asked = 1
        self._ended: list[_Living] = []
        self._has_waited = self._is_settled = False
        self.slow: str | None = None
        """The reason why another start was requested. The value is None if no other start was requested."""

    # The following methods concern all starts of the attempt.

    def state(self) -> str | None:
        """Return the name of the final state of the last start.

        Return None as long as one start may still claim the attempt.
        """
        name = None
        for each in list(self._living):
            found = self.orchestrator.state(each.handle)
            if found is not None and len(self._living) > 1:
                self._living.remove(each)
                self._ended.append(each)
            name = found
        return name

    def is_running(self) -> bool:
        return any(self.orchestrator.is_running(each.handle) for each in self._living)

    @property
    def is_starting(self) -> bool:
        """Whether a worker has taken the attempt or a machine runs it, so that it no longer waits for capacity."""
        return any(self.orchestrator.starting_seconds(each.handle) is not None for each in self._living)

    def why_waiting(self) -> str | None:
        return self.orchestrator.why_waiting(self._living[0].handle)

    def queues(self, spec: RunSpec) -> Queues | None:
        """Return the queues in which the attempt waits, if these queues decide when the attempt gives up spot."""
        is_asked = spec.deadline is not None and self.plan.capacity is Capacity.SPOT
        return self.orchestrator.queues(spec, self._living[0].handle) if is_asked else None

    def refusal(self) -> str | None:
        return self.orchestrator.refusal(self._living[-1].handle)

    def was_cancelled(self) -> bool:
        return any(self.orchestrator.was_cancelled(each.handle) for each in self._living)

    def cancel(self, why: str, *, reason: StopReason) -> None:
        for each in self._living:
            self.orchestrator.cancel(each.handle, why, reason=reason)

    def mark_lost(self, why: str) -> None:
        for each in self._living:
            self.orchestrator.mark_lost(each.handle, why)

    # Slow starts.

    def look(self, history: History, here: Situation) -> str | None:
        """Request another start or give up a start, if this is due.

        Return the reason if the attempt itself is given up.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        self._has_waited = True
        self._find_those_of_the_log(history)
        limit = self._limit(history, here)
        seen = [self._seen(each) for each in self._living]
        match starts.next_step(seen, limit, asked=self._asked, left_seconds=self._left_seconds(here)):
            case Step.ASK:
                self._ask_again(seen[-1], limit, here)
            case Step.GIVE_UP:
                self._give_up(self._living[0], seen[0])
            case Step.END:
                why = f"a worker took it, and it did not claim the run within {limit.longest_seconds:.0f} s"
                self._note(self._living[0], "start_failed", seen[0].seconds, why)
                return why
            case Step.WAIT:
                pass
        return None

    def settle(self, claim: ClaimEntry) -> None:
        """After the claim of the attempt, keep the start that claimed the attempt, and give up the other starts.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        if self._is_settled:
            return
        self._find_those_of_the_log(read_history(self._runlog))
        winner = self._living[0]
        for each in self._living:
            if claim.flow_run_id is not None and self.orchestrator.flow_run_id(each.handle) == claim.flow_run_id:
                winner = each
        seconds = self.orchestrator.starting_seconds(winner.handle)
        # Without flow runs, there is no start on a pool. A kept machine was started for an earlier attempt.
        if claim.flow_run_id is not None and self._has_waited and seconds:
            self._note(winner, "claimed", seconds)
        for each in [*self._living, *self._ended]:
            if each.number != winner.number:
                self._drop(each, winner)
        self._living, self._ended, self._is_settled = [winner], [], True

    def _drop(self, loser: _Living, winner: _Living) -> None:
        seconds = self.orchestrator.starting_seconds(loser.handle)
        is_late = loser.number < winner.number
        why = f"start {winner.number} of this attempt came first and trains it"
        self._note(loser, "start_failed" if is_late else "withdrawn", seconds, why)
        self.orchestrator.cancel(loser.handle, why, reason=StopReason.START_FAILED if is_late else StopReason.CANCELLED)

    def _seen(self, each: _Living) -> Start:
        handle = each.handle
        # A trainer on a cluster waits in the cluster's queue: its segment runs, and the trainer's start is not known.
        is_elsewhere = self._spec.trains_elsewhere and self.orchestrator.is_running(handle)
        seconds = None if is_elsewhere else self.orchestrator.starting_seconds(handle)
        waited = self._clock.monotonic() - each.asked_at
        return Start(each.number, seconds, waited_seconds=waited, may_be_doubled=self.plan.standby is None)

    def _limit(self, history: History, here: Situation) -> StartLimit:
        known = starts.known_seconds(history, self.plan)
        return starts.limit_of(known, spec=self._spec, changeover_seconds=here.changeover_seconds)

    def _left_seconds(self, here: Situation) -> float | None:
        """Return the seconds in which another start has to be requested.

        If the start is requested later, the run does not meet the deadline with it.
        """
        if here.remaining_seconds is None or here.work_seconds is None:
            return None
        if self.plan.capacity is Capacity.SPOT:
            until_on_demand = clamp.seconds_to_recall(here)
            return None if until_on_demand is None else until_on_demand - here.changeover_seconds
        return here.remaining_seconds - here.work_seconds - here.changeover_seconds

    def _ask_again(self, slow: Start, limit: StartLimit, here: Situation) -> None:
        number = self._asked + 1
        assert slow.seconds is not None
        after = starts.slow_after_seconds(
            limit, seconds=slow.seconds, left_seconds=self._left_seconds(here), asked=self._asked
        )
        why = f"{limit.in_words(seconds=after)}; {_ORDINALS[number]} was asked for"
        handle = self._submit_again(number)
        if handle is None:
            return
        # The start comes before its record: if the record cannot be written now, the same number gives the same start.
        self._note(self._living[-1], "slow", slow.seconds, why)
        log.warning("slow start segment=%d attempt=%d: %s", self.plan.segment, self.plan.attempt, why)
        self._add(number, handle, why)

    def _submit_again(self, number: int) -> str | None:
        try:
            return self.orchestrator.submit_again(self._spec, self.plan, number)
        except OrchestratorError as error:
            log.warning("another start of the attempt was refused reason=%s", error)
            return None

    def _add(self, number: int, handle: str, why: str) -> None:
        self._asked, self.slow = number, why
        self._living.append(_Living(number, handle, self._clock.monotonic()))

    def _give_up(self, oldest: _Living, seen: Start) -> None:
        why = f"its process did not start within {seen.seconds or 0.0:.0f} s; another start of the attempt waits"
        self._note(oldest, "start_failed", seen.seconds, why)
        self._living.remove(oldest)
        self.orchestrator.cancel(oldest.handle, why, reason=StopReason.START_FAILED)

    def _find_those_of_the_log(self, history: History) -> None:
        """Find the starts that an earlier parent has requested."""
        known = history.starts_of(self.plan.segment, self.plan.attempt)
        for entry in known:
            if entry.outcome == "slow" and entry.number + 1 > self._asked:
                handle = self._submit_again(entry.number + 1)
                if handle is not None:
                    self._add(entry.number + 1, handle, entry.reason)
        over = {entry.number for entry in known if entry.outcome in ("start_failed", "withdrawn")}
        if any(each.number not in over for each in self._living):
            self._living = [each for each in self._living if each.number not in over]

    def _note(
        self,
        start: _Living,
        outcome: Literal["slow", "claimed", "start_failed", "withdrawn"],
        seconds: float | None,
        why: str = "",
    ) -> None:
        plan = self.plan
        place = {"segment": plan.segment, "attempt": plan.attempt, "number": start.number, "outcome": outcome}
        facts = place | {"deployment": plan.deployment, "seconds": round(max(seconds or 0.0, 0.0), 3), "reason": why}

        def is_known(entry: StartEntry) -> bool:
            return (entry.number, entry.outcome) == (start.number, outcome)

        def build(stamp: Stamp) -> Entry:
            if any(is_known(entry) for entry in read_history(self._runlog).starts_of(plan.segment, plan.attempt)):
                raise _KnownError
            return StartEntry.model_validate(stamp(epoch=0) | facts)

        _unless_known(lambda: self._runlog.append(build))


class _KnownError(Exception):
    """Cancels an append, because the log already has the record."""


def _unless_known(append: Callable[[], object]) -> None:
    try:
        append()
    except _KnownError:
        return
