"""Manages the starts of one attempt.

An attempt usually has one start. If the start is slower than usual on its pool, segue requests another start of the
attempt. Several starts are safe, because only one start can claim the attempt. The first start that claims the attempt
in the run's log trains the attempt. Every other start finds the claim and ends without changing anything, even if it is
late and this parent is dead. It does no harm if the slow start is alive or cannot be stopped. If the slow start claims
the attempt first, it continues. If another start claims the attempt first, segue gives up the slow start. A second
attempt instead of a second start would need two open plans, and a decision between the plans. For later parents, the
log contains which start was slow (so that a start with the next number exists), and how each start ended.

If the plan names several pools, segue starts the attempt on each pool. The start that claims the attempt first trains
it, and segue withdraws the starts on the other pools.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from segue.clock import Clock
from segue.controller.orchestrator import Orchestrator
from segue.controller.waiting.start_records import Outcome, note_start
from segue.errors import OrchestratorError
from segue.policy import starts
from segue.policy.estimates import Situation
from segue.policy.queueing import Queues
from segue.policy.starts import Start, StartLimit, StartNumbers, Step
from segue.records import Capacity, SegmentPlan, SegmentReport, StopReason
from segue.runlog.entries import ClaimEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_ORDINALS = {2: "a second start", 3: "a third start"}


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
    """The starts of an attempt, for example its flow runs, that have not ended and may still claim the attempt.

    After the claim, the object contains only the start that claimed the attempt.
    """

    def __init__(self, runlog: RunLog, spec: RunSpec, submitted: Submitted, *, clock: Clock) -> None:
        self._runlog, self._spec, self._clock = runlog, spec, clock
        self.plan, self.orchestrator = submitted.plan, submitted.orchestrator
        self._numbers = StartNumbers.of(submitted.plan)
        self._living = [_Living(1, submitted.handle, clock.monotonic())]
        self._requested, self._refused = {1}, set[int]()
        self._ended: list[_Living] = []
        self._taken_seconds: dict[int, float] = {}
        """The last known seconds since a worker took a start, by the number of the start."""
        self._has_waited = self.is_settled = False
        self.slow: str | None = None
        """The reason for the request of another start, or None without such a request."""

    # The following methods concern all starts of the attempt.

    def state(self) -> str | None:
        """Return the name of the final state of the last start.

        Return None while a start may still claim the attempt.
        """
        for each in self._living if self.plan.pools and not self.is_settled else []:
            # An ended flow run no longer shows the time since a worker took the start.
            seconds = self.orchestrator.starting_seconds(each.handle)
            if seconds is not None:
                self._taken_seconds[each.number] = seconds
        names = [self.orchestrator.state(each.handle) for each in self._living]
        if None not in names:
            return names[-1]
        found = list(zip(self._living, names, strict=True))
        self._ended += [each for each, name in found if name is not None]
        self._living = [each for each, name in found if name is None]
        return None

    def is_running(self) -> bool:
        return any(self.orchestrator.is_running(each.handle) for each in self._living)

    @property
    def is_starting(self) -> bool:
        """Whether the wait for capacity is over: a worker has taken the attempt, or a machine already runs it."""
        return any(self.orchestrator.starting_seconds(each.handle) is not None for each in self._living)

    @property
    def pools(self) -> str:
        """Name the pools of the starts that may still claim the attempt.

        If some starts have a machine, the text names only the pools of these starts.
        """
        running = [each for each in self._living if self.orchestrator.is_running(each.handle)]
        return ", ".join(dict.fromkeys(self._numbers.pool_of(each.number) for each in running or self._living))

    def why_waiting(self) -> str | None:
        return self.orchestrator.why_waiting(self._living[0].handle)

    def queues(self, spec: RunSpec) -> Queues | None:
        """Return the queues of the attempt, if they determine when the attempt gives up spot."""
        is_asked = spec.deadline is not None and self.plan.capacity is Capacity.SPOT
        return self.orchestrator.queues(spec, self._living[0].handle) if is_asked else None

    def refusal(self) -> str | None:
        return self.orchestrator.refusal(self._living[-1].handle)

    def was_cancelled(self) -> bool:
        return any(self.orchestrator.was_cancelled(each.handle) for each in self._living)

    def cancel(self, why: str, *, reason: StopReason | None) -> None:
        """Cancel all starts of an attempt that has a report.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        for each in self._living:
            self.orchestrator.cancel(each.handle, why, reason=reason)
        for each in self._living if self.plan.pools else []:
            self._note(each, "withdrawn", self._taken_seconds.get(each.number), why)

    def mark_lost(self, why: str) -> None:
        for each in self._living:
            self.orchestrator.mark_lost(each.handle, why)

    # Starts on several pools, and slow starts.

    def look(self, history: History, here: Situation) -> str | None:
        """Request another start or give up a start, if it is time to do so.

        Return the reason if segue has to give up the attempt itself.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        self._has_waited = True
        self._find_those_of_the_log(history)
        if not self.is_running():
            self._request_due(history)
        for pool in dict.fromkeys(self._numbers.pool_of(each.number) for each in self._living):
            why = self._look_at(pool, history, here)
            if why is not None:
                return why
        return None

    def request_next_pool(self) -> bool:
        """Request the start on the next pool early, before its planned time.

        Return whether a pool without a request was left.
        """
        return any(self._request(number) for number in self._unrequested())

    def settle(self, claim: ClaimEntry) -> None:
        """Keep the start that has claimed the attempt, and give up the other starts.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        if self.is_settled:
            return
        self._find_those_of_the_log(read_history(self._runlog))
        winner = self._winner(claim)
        seconds = self.orchestrator.starting_seconds(winner.handle)
        # Without flow runs, no pool has a start. A kept machine was started for an earlier attempt.
        if claim.flow_run_id is not None and self._has_waited and seconds:
            self._note(winner, "claimed", seconds)
        for each in [*self._living, *self._ended]:
            if each.number != winner.number:
                self._drop(each, winner)
        self._living, self._ended, self.is_settled = [winner], [], True

    def withdraw(self, report: SegmentReport) -> None:
        """Withdraw the starts on the other pools after the report of an attempt.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        if not self.plan.pools:
            return
        history = read_history(self._runlog)
        attempt = history.attempt_of(self.plan.segment, self.plan.attempt)
        if attempt is not None:
            self.settle(attempt.claim)
            return
        self._find_those_of_the_log(history)
        is_short = report.stop_reason is StopReason.NO_CAPACITY
        self.cancel(report.note or "the attempt has ended", reason=report.stop_reason if is_short else None)

    def _look_at(self, pool: str, history: History, here: Situation) -> str | None:
        """Request or give up a start on one pool. Return the reason if no start of the attempt is left."""
        own = [each for each in self._living if self._numbers.pool_of(each.number) == pool]
        limit, seen = self._limit(pool, history, here), [self._seen(each) for each in own]
        asked = max(
            self._numbers.turn_of(number) for number in self._requested if self._numbers.pool_of(number) == pool
        )
        step = starts.next_step(seen, limit, asked=asked, left_seconds=starts.left_seconds(here, self.plan.capacity))
        if step is Step.END and (len(own) < len(self._living) or self.request_next_pool()):
            step = Step.GIVE_UP
        match step:
            case Step.ASK:
                self._ask_again(own[-1], seen[-1], limit, here)
            case Step.GIVE_UP:
                self._give_up(own[0], seen[0])
            case Step.END:
                why = f"a worker took it, and it did not claim the run within {limit.longest_seconds:.0f} s"
                self._note(own[0], "start_failed", seen[0].seconds, why)
                return why
            case Step.WAIT:
                pass
        return None

    def _winner(self, claim: ClaimEntry) -> _Living:
        """Return the start that claimed the attempt. This start is never a start on another pool."""
        by_flow_run = {self.orchestrator.flow_run_id(each.handle): each for each in self._living}
        if claim.flow_run_id is not None and claim.flow_run_id in by_flow_run:
            return by_flow_run[claim.flow_run_id]
        pool = claim.deployment or self._numbers.pool_of(1)
        own = [each for each in self._living if self._numbers.pool_of(each.number) == pool]
        if not own and pool in self._numbers.pools:
            # The parent died after the request, before it could record the request.
            number = self._numbers.first_on(pool)
            handle = self._submit_again(number)
            own = [_Living(number, handle, self._clock.monotonic())] if handle is not None else []
        return (own or self._living)[0]

    def _unrequested(self) -> list[int]:
        """Return the numbers of the first starts on pools without a request, in the order of their planned times."""
        if self.is_settled:
            return []
        return [number for number in range(1, len(self.plan.pools) + 1) if number not in self._requested]

    def _request_due(self, history: History) -> None:
        """Request the due starts on other pools, and one additional start for each ended start."""
        decision = history.decision_of(self.plan.segment, self.plan.attempt)
        since = decision.written_at if decision is not None else self._clock.now()
        gone = (self._clock.now() - since).total_seconds()
        early = len(self._ended)
        for number in self._unrequested():
            is_due = self.plan.pools[number - 1].after_seconds <= gone
            if is_due or number - 1 <= early:
                self._request(number)

    def _request(self, number: int) -> bool:
        handle = self._submit_again(number)
        if handle is not None:
            start = _Living(number, handle, self._clock.monotonic())
            # The start comes before its record, because this parent and the next parent get the same start for the same
            # number.
            self._note(start, "requested", 0.0)
            self._living.append(start)
        self._requested.add(number)
        return handle is not None

    def _drop(self, loser: _Living, winner: _Living) -> None:
        is_same_pool = self._numbers.pool_of(loser.number) == self._numbers.pool_of(winner.number)
        is_late = is_same_pool and loser.number < winner.number
        first = f"start {winner.number}" if is_same_pool else f"the start on {self._numbers.pool_of(winner.number)}"
        why = f"{first} of this attempt came first and trains it"
        seconds = self.orchestrator.starting_seconds(loser.handle) or self._taken_seconds.get(loser.number, 0.0)
        has_ended = loser in self._ended and not seconds
        self._note(loser, "start_failed" if is_late or has_ended else "withdrawn", seconds, why)
        self.orchestrator.cancel(loser.handle, why, reason=StopReason.START_FAILED if is_late else None)

    def _seen(self, each: _Living) -> Start:
        handle = each.handle
        # If a trainer waits in a cluster's queue, its segment runs, and the start of the trainer is not known.
        is_elsewhere = self._spec.trains_elsewhere and self.orchestrator.is_running(handle)
        seconds = None if is_elsewhere else self.orchestrator.starting_seconds(handle)
        waited = self._clock.monotonic() - each.asked_at
        return Start(each.number, seconds, waited_seconds=waited, may_be_doubled=self.plan.standby is None)

    def _limit(self, pool: str, history: History, here: Situation) -> StartLimit:
        known = starts.known_seconds(history, self.plan.on_pool(pool))
        return starts.limit_of(known, spec=self._spec, changeover_seconds=here.changeover_seconds)

    def _ask_again(self, oldest: _Living, slow: Start, limit: StartLimit, here: Situation) -> None:
        assert slow.seconds is not None
        number, turn = self._numbers.after(oldest.number), self._numbers.turn_of(oldest.number)
        after = starts.slow_after_seconds(
            limit, seconds=slow.seconds, left_seconds=starts.left_seconds(here, self.plan.capacity), asked=turn
        )
        why = f"{limit.in_words(seconds=after)}; {_ORDINALS[turn + 1]} was requested"
        handle = self._submit_again(number)
        if handle is None:
            return
        # The start comes before its record. If the write of the record fails, the same number later returns the same
        # start.
        self._note(oldest, "slow", slow.seconds, why)
        log.warning("slow start segment=%d attempt=%d: %s", self.plan.segment, self.plan.attempt, why)
        self._requested.add(number)
        self._living.append(_Living(number, handle, self._clock.monotonic()))
        self.slow = why

    def _submit_again(self, number: int) -> str | None:
        plan = self.plan.on_pool(self._numbers.pool_of(number))
        try:
            return self.orchestrator.submit_again(self._spec, plan, number)
        except OrchestratorError as error:
            if number not in self._refused:
                log.warning("another start of the attempt was refused pool=%s reason=%s", plan.deployment, error)
            self._refused.add(number)
            return None

    def _give_up(self, oldest: _Living, seen: Start) -> None:
        why = f"its process did not start within {seen.seconds or 0.0:.0f} s; another start of the attempt waits"
        self._note(oldest, "start_failed", seen.seconds, why)
        self._living.remove(oldest)
        self.orchestrator.cancel(oldest.handle, why, reason=StopReason.START_FAILED)

    def _find_those_of_the_log(self, history: History) -> None:
        """Find the starts that an earlier parent requested."""
        known = history.starts_of(self.plan.segment, self.plan.attempt)
        over = {entry.number for entry in known if entry.outcome in ("start_failed", "withdrawn")}
        for entry in known:
            number = self._numbers.after(entry.number) if entry.outcome == "slow" else entry.number
            if entry.outcome not in ("slow", "requested") or number in self._requested:
                continue
            handle = self._submit_again(number) if number not in over else None
            if handle is not None:
                self._living.append(_Living(number, handle, self._clock.monotonic()))
            if handle is not None and entry.outcome == "slow":
                self.slow = entry.reason
            if handle is not None or number in over:
                self._requested.add(number)
        if any(each.number not in over for each in self._living):
            self._living = [each for each in self._living if each.number not in over]

    def _note(self, start: _Living, outcome: Outcome, seconds: float | None, why: str = "") -> None:
        pool = self._numbers.pool_of(start.number)
        note_start(self._runlog, self.plan.on_pool(pool), start.number, outcome, seconds=seconds or 0.0, why=why)
