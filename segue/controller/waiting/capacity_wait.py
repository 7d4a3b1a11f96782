"""Manages the wait of an attempt for a machine: its duration, its end, and its text for people."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

from segue.clock import Clock
from segue.controller.waiting.attempt_starts import Starts
from segue.controller.waiting.queue_wait import QueueWatch
from segue.controller.waiting.wait_text import wait_text
from segue.policy import budget_cap, clamp, queueing, refusals
from segue.policy.estimates import Situation, situation
from segue.policy.queueing import Queues
from segue.policy.starts import limit_of
from segue.records import StopReason
from segue.runlog.history import History
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_SHOW_SECONDS = 10.0
"""Seconds that an attempt may take to start before people see its wait."""

_ROUNDING_SECONDS = 1e-3

Show = Callable[[str | None], None]
"""Shows why an attempt waits for a machine. The argument is None when the attempt has a machine."""


class CapacityWait:
    """The wait of one submitted attempt, until it claims the run."""

    def __init__(self, spec: RunSpec, starts: Starts, *, clock: Clock, show: Show, queue: QueueWatch) -> None:
        self._spec, self._starts, self._plan = spec, starts, starts.plan
        self._clock, self._show, self._queue = clock, show, queue
        self._started_at = clock.monotonic()
        self._shown: str | None = None
        self._running_since: float | None = None
        self._in_queue_at: float | None = None
        self._is_behind = False

    def show(self, history: History, *, is_claimed: bool) -> None:
        """Show the reason why the attempt waits, if the reason has changed."""
        text = refused = blocker = None
        has_machine = False
        if not is_claimed:
            self._queue.look()
            has_machine = self._has_machine()
            refused = refusals.in_words(history) if not has_machine else None
            if refused or self._starts.slow or self._waited_seconds(history) > _SHOW_SECONDS:
                blocker = self._queue.why or self._starts.slow or self._starts.why_waiting() or refused
                facts = {"has_machine": has_machine, "is_starting": self._is_starting()}
                text = wait_text(self._plan.capacity, pools=self._starts.pools, blocker=blocker, **facts)
        if text != self._shown:
            self._shown = text
            # The decision has already warned of refusals. A warning here would repeat with each attempt.
            if text is not None and not (refused and text.endswith(refused)):
                is_slow_start = self._is_starting() and blocker in (None, self._starts.slow)
                _log(text, is_slow_start=is_slow_start)
            self._show(text)

    def why_give_up(self, history: History) -> tuple[StopReason, str] | None:
        """Return the stop reason and the note if the wait ends now, or None if the wait continues."""
        if history.stop is not None:
            return StopReason.CANCELLED, history.stop.reason
        if self._boots_for_too_long():
            return StopReason.START_FAILED, f"its machine did not claim the run within {self._boot_seconds:.0f} s"
        if self.seconds_left(history) > 0:
            return None
        waited = self._waited_seconds(history)
        if self._run_seconds_left(history) <= 0:
            return (
                StopReason.NO_CAPACITY,
                f"no machine after {waited:.0f} s, and the time of the run is used up",
            )
        if self._is_starting():
            why = f"its machine did not claim the run within {waited:.0f} s; the deadline required another attempt"
            return StopReason.START_FAILED, why
        why = f"no capacity on {self._plan.capacity} within {waited:.0f} s"
        if self._is_behind:
            why += "; behind other runs, its slot would have come too late"
        return StopReason.NO_CAPACITY, why

    def seconds_left(self, history: History) -> float:
        """Return the seconds until the wait ends, or infinity for a request that stays in its queue."""
        return min(self._patience_left(history), self._run_seconds_left(history))

    def _run_seconds_left(self, history: History) -> float:
        return budget_cap.time_left_seconds(self._spec, history, now=self._clock.now())

    def _patience_left(self, history: History) -> float:
        """Return the seconds until the wait for this attempt ends, without regard to the run's time limit.

        The plan contains the end of the wait. The wait ends earlier if other runs in the spot queue will also need
        on-demand. In a run with a deadline, only the deadline ends the wait for an attempt that is already starting. If
        the run has no other spot pool, a request keeps its place in a queue until the deadline requires on-demand,
        because a new request would be last. After the request has left the queue, the attempt has to claim the run
        within the time in the plan.
        """
        self._is_behind = False
        patience = self._plan.start_within_seconds
        if patience is None:
            return math.inf
        waited, now = self._waited_seconds(history), self._clock.monotonic()
        left = patience - waited
        queues = self._starts.queues(self._spec)
        here = self._situation(history, queues)
        by_deadline = clamp.seconds_to_recall(here) if self._has_machine() else _seconds_to_deadline(here)
        if self._is_starting() and (self._spec.deadline is None or _repeats_a_failure(history)):
            return math.inf
        if by_deadline is None or _repeats_a_failure(history):
            return left
        if self._is_starting():
            return by_deadline
        is_queued = queues is not None and queues.spot_free_at is not None and not self._has_machine()
        if is_queued:
            self._in_queue_at = now
        elif self._in_queue_at is None and self._was_kept_in_queue(history, patience_seconds=patience):
            self._in_queue_at = self._started_at
        if self._in_queue_at is not None and self._keeps_its_place(here, patience_seconds=patience):
            left = patience - (now - self._in_queue_at)
        elif not is_queued:
            return left
        self._is_behind = is_queued and by_deadline <= 0
        return min(left, by_deadline)

    def _situation(self, history: History, queues: Queues | None) -> Situation:
        now, wait = self._clock.now(), queues.on_demand_seconds if queues is not None else None
        here = situation(self._spec, history, now=now, on_demand_queue_seconds=wait)
        if queues is None or self._has_machine():
            return here
        crowd = clamp.crowd_seconds(here, queues, at=now)
        return replace(here, spot_queue_seconds=queues.spot_seconds(now), crowd_seconds=crowd)

    def _keeps_its_place(self, here: Situation, *, patience_seconds: float) -> bool:
        """Whether the plan waits for the whole capacity timeout, and the run has no other spot pool to try.

        The run has no other pool to try if it has only one pool, or if every pool already has a request.
        """
        longest = self._spec.liveness.start_seconds + here.changeover_seconds + self._plan.delay_seconds
        is_all = len(self._spec.pools.spot) == 1 or bool(self._plan.pools)
        return is_all and patience_seconds >= longest - _ROUNDING_SECONDS

    def _was_kept_in_queue(self, history: History, *, patience_seconds: float) -> bool:
        """Whether an earlier parent waited longer than the plan's time because the attempt was in a queue."""
        decision = history.decision_of(self._plan.segment, self._plan.attempt)
        was_queued = decision is not None and decision.numbers.get(queueing.SPOT_NUMBER, 0.0) > 0
        here = self._clock.monotonic() - self._started_at
        return was_queued and self._waited_seconds(history) - here >= patience_seconds

    def _boots_for_too_long(self) -> bool:
        """Whether a cluster's machine has run the attempt for longer than any boot takes.

        A machine that boots for too long may be dead or hung.
        """
        if not self._spec.trains_elsewhere or not self._has_machine():
            self._running_since = None
            return False
        now = self._clock.monotonic()
        self._running_since = now if self._running_since is None else self._running_since
        return now - self._running_since > self._boot_seconds

    @property
    def _boot_seconds(self) -> float:
        return limit_of((), spec=self._spec, changeover_seconds=0.0).longest_seconds

    def _has_machine(self) -> bool:
        """Whether the attempt's trainer has its machine. A segment may run while its trainer waits."""
        return self._queue.why is None and self._starts.is_running()

    def _is_starting(self) -> bool:
        """Whether the attempt has its capacity and is starting."""
        if self._plan.standby is not None or self._queue.why is not None:
            return False  # A booted standby claims the run at once or not at all.
        return self._starts.is_running() or self._starts.is_starting

    def _waited_seconds(self, history: History) -> float:
        here = self._clock.monotonic() - self._started_at
        if self._spec.deadline is None:
            return here
        # The waited time includes the wait of an earlier, dead parent for this plan.
        decision = history.decision_of(self._plan.segment, self._plan.attempt)
        if decision is None or decision.plan != self._plan:
            return here
        return max(here, (self._clock.now() - decision.written_at).total_seconds())


def _log(text: str, *, is_slow_start: bool) -> None:
    if is_slow_start:
        log.info("the trainer has not started yet: %s", text)
    else:
        log.warning("no machine yet: %s", text)


def _seconds_to_deadline(here: Situation) -> float | None:
    """Return the seconds that a spot attempt may wait until the deadline requires on-demand.

    Return None if the deadline never requires on-demand.
    """
    left, spare = clamp.seconds_to_claim(here), clamp.spare_on_spot_seconds(here)
    return left if left is None or spare is None else max(left, spare)


def _repeats_a_failure(history: History) -> bool:
    """Whether this attempt repeats an attempt in which the recipe raised an exception."""
    last = history.fresh_reports[-1] if history.fresh_reports else None
    return last is not None and last.is_own_fault
