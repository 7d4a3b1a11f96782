"""Manages the standbys on one pool during an attempt.

The manager submits and commands a standby, and hands the run over to the standby.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.controller.orchestrator import Orchestrator
from segue.controller.standbys.messages import (
    Action,
    StandbyCommand,
    StandbyStatus,
    newest_commands,
    newest_standby,
    put_command,
    status_of,
)
from segue.policy.estimates import Situation
from segue.policy.handover import (
    CHEAPER_SPOT,
    SPOT_AGAIN,
    is_worth_a_standby,
    pause_seconds,
    permits,
    up_seconds,
)
from segue.records import Capacity, SegmentPlan
from segue.runlog import keys
from segue.runlog.entries import Entry, HandoverEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_ASK_POOL_SECONDS = 5.0
_SEND_AGAIN_SECONDS = 10.0
"""Seconds before another submission, if the orchestrator did not answer."""


@dataclass
class _Sent:
    """The submitted standby."""

    handle: str
    command: StandbyCommand
    heartbeat: HeartbeatTimeout
    asked_at: float
    commanded_at: float
    sent_at: float | None
    """The time at which the standby was submitted.

    The value is None if an earlier parent submitted the standby at an unknown time.
    """
    ended_as: str | None = None
    seen_at: float | None = None

    @property
    def name(self) -> str:
        return self.command.standby


class Pauses:
    """The pauses between the standbys of one attempt, on all of its pools."""

    def __init__(self, *, begun_at: float) -> None:
        self.next_at = begun_at
        """The earliest time of the next submission."""
        self.unused = 0
        """The number of unused standbys."""

    def begin(self, here: Situation, at: float) -> None:
        """Begin a pause after an unused standby."""
        self.unused += 1
        self.next_at = at + pause_seconds(here, sent=self.unused)


@dataclass(frozen=True)
class Place:
    """The attempt that trains, and the spot pool of its standbys."""

    plan: SegmentPlan
    deployment: str


class StandbyManager:
    """Manages the standbys of one attempt on one pool. A failure of a standby does not disturb the attempt.

    The manager keeps no state that a restart could lose, because a restarted parent adopts the submitted standby.
    """

    def __init__(
        self,
        runlog: RunLog,
        spec: RunSpec,
        place: Place,
        *,
        orchestrator: Orchestrator,
        clock: Clock,
        pauses: Pauses,
    ) -> None:
        self._runlog, self._spec, self._plan, self._clock = runlog, spec, place.plan, clock
        self._deployment = place.deployment
        self._orchestrator = orchestrator
        self._sent: _Sent | None = None
        self._next: StandbyCommand | None = None
        """The written command of a standby that is not submitted yet."""
        self._has_looked = False
        self._pauses = pauses

    @property
    def is_sent(self) -> bool:
        """Whether a standby is submitted."""
        return self._sent is not None

    @property
    def has_machine(self) -> bool:
        """Whether the submitted standby has a machine."""
        return self._sent is not None and self._sent.seen_at is not None

    def look(self, history: History, here: Situation) -> bool:
        """Submit the standby of a training attempt, or send it a command, if this is due.

        Return whether to recall the attempt.

        Raises:
            StoreReadError, StoreWriteError: the store could not be used. It is safe to call the method again.
        """
        at = self._clock.monotonic()
        if self._sent is None:
            self._send_if_due(history, here, at)
        sent = self._sent
        if sent is None:
            return False
        if history.handover_of(self._plan.segment, self._plan.attempt) is not None:
            self._repeat_command(sent, at)
            return True
        status = status_of(self._runlog.store, self._runlog.run_id, sent.name)
        gone = self._why_gone(sent, status, at)
        if gone is not None:
            self._release(sent, gone, is_here=False)
            self._pauses.begin(here, at)
        elif status is not None:
            self._repeat_command(sent, at)
            return self._answer(sent, status, history, here, at)
        return False

    def close(self) -> None:
        """Release the standby if the run was not handed over to the standby.

        The method does not wait for an unreachable store.
        """
        self.withdraw(f"{self._plan.capacity} has ended")

    def withdraw(self, why: str) -> None:
        """Release the standby if the run was not handed over to it. The method only logs an unreachable store."""
        sent = self._sent
        if sent is None:
            return
        try:
            handover = read_history(self._runlog).handover_of(self._plan.segment, self._plan.attempt)
            if handover is None or handover.standby != sent.name:
                self._release(sent, why, is_here=False)
        except (StoreReadError, StoreWriteError) as error:
            log.warning("could not release the standby; it will leave by itself standby=%s reason=%s", sent.name, error)

    def _send_if_due(self, history: History, here: Situation, at: float) -> None:
        command = self._next
        if command is None:
            if self._has_looked and not self._is_due(here, at):
                return
            # The number of a new standby is chosen here and used at once, because another pool may also need a number.
            command, self._has_looked = self._next_command(history, here, at), True
        is_out = command.counter > 0
        if not is_out and not self._is_due(here, at):
            return
        # The command is written first, so that the next parent can read the standby's number if this parent dies now.
        put_command(self._runlog.store, self._runlog.run_id, command)
        self._next = command
        handle = self._orchestrator.submit_standby(self._spec, command.standby, deployment=command.deployment)
        if handle is None:
            self._pauses.next_at = at + _SEND_AGAIN_SECONDS
            return
        log.info("standby adopted standby=%s" if is_out else "standby submitted standby=%s", command.standby)
        heartbeat = HeartbeatTimeout(self._spec.liveness.heartbeat_timeout_seconds)
        self._sent, self._next = _Sent(handle, command, heartbeat, at, at, sent_at=None if is_out else at), None

    def _is_due(self, here: Situation, at: float) -> bool:
        return at >= self._pauses.next_at and is_worth_a_standby(here)

    def _next_command(self, history: History, here: Situation, at: float) -> StandbyCommand:
        """Return the command of the submitted standby.

        If no standby is submitted, return the command of the next standby.
        """
        store, run_id = self._runlog.store, self._runlog.run_id
        newest = newest_standby(store, run_id)
        last = next((each for each in newest_commands(store, run_id) if each.deployment == self._deployment), None)
        if last is not None and last.action != "leave" and not has_been_used(history, last.standby):
            numbers = {"segment": self._plan.segment, "attempt": self._plan.attempt}
            return last.model_copy(update={"counter": last.counter + 1} | numbers)
        if last is not None and not self._pauses.unused and (last.segment, last.attempt) == self._numbers:
            # This parent was restarted: the earlier parent submitted standbys for this attempt.
            self._pauses.begin(here, at)
        return StandbyCommand(
            standby=keys.standby_id(0 if newest is None else newest + 1),
            counter=0,
            action="wait",
            why="waiting for spot",
            deployment=self._deployment,
            segment=self._plan.segment,
            attempt=self._plan.attempt,
        )

    @property
    def _numbers(self) -> tuple[int, int]:
        return self._plan.segment, self._plan.attempt

    def _why_gone(self, sent: _Sent, status: StandbyStatus | None, at: float) -> str | None:
        if status is not None and status.phase == "gone":
            return status.note or "it left"
        if sent.ended_as is None and at - sent.asked_at >= _ASK_POOL_SECONDS:
            sent.asked_at, sent.ended_as = at, self._orchestrator.state(sent.handle)
        if status is not None:
            sent.heartbeat.update(status.counter, at=at)
            if sent.heartbeat.is_expired:
                return f"no heartbeat for {sent.heartbeat.heartbeat_timeout_seconds:g} s"
        is_silent = status is None or sent.heartbeat.unchanged_seconds > 3 * self._spec.liveness.heartbeat_seconds
        return f"its flow run ended as {sent.ended_as}" if sent.ended_as is not None and is_silent else None

    def _answer(self, sent: _Sent, status: StandbyStatus, history: History, here: Situation, at: float) -> bool:
        """Command a live standby. Return whether to hand the run over to this standby."""
        sent.seen_at = at if sent.seen_at is None else sent.seen_at
        reject = None
        if status.phase == "ready" and permits(here):
            return self._hand_over(sent, at)
        if status.phase == "ready":
            reject = "not needed: the slack no longer covers another spot attempt"
        elif sent.command.action == "wait":
            if self._is_wanted(sent, history, here, held_seconds=at - sent.seen_at):
                self._command(sent, "boot", "spot is wanted on this pool", at)
                return False
            reject = f"not needed: {self._plan.capacity} continues"
        elif at - sent.seen_at > (patience := self._spec.liveness.start_seconds + here.changeover_seconds):
            reject = f"it did not boot within {patience:g} s"
        if reject is not None:
            self._release(sent, reject, is_here=True)
            self._pauses.begin(here, at)
        return False

    def _is_wanted(self, sent: _Sent, history: History, here: Situation, *, held_seconds: float) -> bool:
        from segue.policy.outlook import wants_spot  # Imported here, because the import loads NumPy.

        now, pool = self._clock.now(), sent.command.deployment
        if not is_worth_a_standby(here):
            return False
        waited = sent.seen_at - sent.sent_at if sent.seen_at is not None and sent.sent_at is not None else None
        up = up_seconds(history, here, pool, waited_seconds=waited, held_seconds=held_seconds, now=now)
        return wants_spot(self._spec, history, here, self._plan, up_seconds=up, now=now, deployment=pool)

    def _hand_over(self, sent: _Sent, at: float) -> bool:
        segment, attempt = self._numbers
        why = CHEAPER_SPOT if self._plan.capacity is Capacity.SPOT else SPOT_AGAIN
        numbers = {}
        if sent.seen_at is not None and sent.sent_at is not None:
            numbers = {"waited_seconds": sent.seen_at - sent.sent_at, "held_seconds": at - sent.seen_at}

        def build(stamp: Stamp) -> Entry:
            history = read_history(self._runlog)
            if history.report_of(segment, attempt) or history.handover_of(segment, attempt):
                raise _TooLateError
            where = {"standby": sent.name, "deployment": sent.command.deployment}
            facts = where | {"segment": segment, "attempt": attempt, "reason": why, "numbers": numbers}
            return HandoverEntry.model_validate(stamp(epoch=0) | facts)

        with suppress(_TooLateError):
            self._runlog.append(build)
            log.info("handing over standby=%s", sent.name)
            return True
        return False

    def _command(self, sent: _Sent, action: Action, why: str, at: float) -> None:
        changes = {"action": action, "why": why, "counter": sent.command.counter + 1}
        made = sent.command.model_copy(update=changes)
        put_command(self._runlog.store, self._runlog.run_id, made)
        sent.command, sent.commanded_at = made, at

    def _repeat_command(self, sent: _Sent, at: float) -> None:
        # The counter must change, because a standby whose command does not change concludes that its parent is dead.
        if at - sent.commanded_at >= self._spec.liveness.heartbeat_timeout_seconds / 2:
            self._command(sent, sent.command.action, sent.command.why, at)

    def _release(self, sent: _Sent, why: str, *, is_here: bool) -> None:
        self._command(sent, "leave", why, self._clock.monotonic())
        if not is_here:
            # A standby with a machine reads its command, and can report why it left.
            self._orchestrator.cancel_standby(sent.handle, why)
        log.info("standby released standby=%s reason=%s", sent.name, why)
        self._sent = None


class _TooLateError(Exception):
    """Cancels an append, because the attempt has ended or was already handed over."""


def has_been_used(history: History, standby: str) -> bool:
    """Whether an attempt was planned for a standby."""
    return any(entry.plan is not None and entry.plan.standby == standby for entry in history.decisions)
