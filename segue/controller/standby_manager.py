"""The parent's side: sends a standby while on-demand works, answers it, and hands the run over to it."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.controller.standby_messages import (
    StandbyCommand,
    StandbyStatus,
    command_of,
    newest_standby,
    put_command,
    status_of,
)
from segue.policy.estimates import Situation
from segue.policy.handover import SPOT_AGAIN, is_worth_a_standby, pause_seconds, permits
from segue.policy.pool_choice import choose_pool
from segue.records import SegmentPlan
from segue.runlog import keys
from segue.runlog.entries import Entry, HandoverEntry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_ASK_POOL_SECONDS = 5.0
_SEND_AGAIN_SECONDS = 10.0
"""After the orchestrator did not answer."""


class StandbyRun(Protocol):
    """A standby as the orchestrator sees it. None of this is trusted over its words."""

    def ended_as(self) -> str | None:
        """The name of its final state; None while it has none, or the orchestrator does not answer."""
        ...

    def cancel(self, why: str) -> None:
        """Take it back. Best effort."""
        ...


class StandbyPool(Protocol):
    """Where standbys are sent."""

    def send(self, standby: str, *, deployment: str) -> StandbyRun | None:
        """The standby of this name on a pool: a new one, or the one that was sent before; None when nobody answers."""
        ...


@dataclass
class _Sent:
    """The standby that is out."""

    run: StandbyRun
    order: StandbyCommand
    lease: HeartbeatTimeout
    asked_pool_at: float
    ordered_at: float
    sent_at: float | None
    """None for one that was adopted: how long it had waited is not known."""
    ended_as: str | None = None
    seen_at: float | None = None

    @property
    def name(self) -> str:
        return self.order.standby


class StandbyManager:
    """Minds the standbys of one attempt on on-demand. Whatever becomes of them, the attempt is left alone.

    Holds nothing that matters: a parent that was started again adopts the standby that is out.
    """

    def __init__(self, runlog: RunLog, spec: RunSpec, plan: SegmentPlan, *, pool: StandbyPool, clock: Clock) -> None:
        self._runlog, self._spec, self._plan, self._pool, self._clock = runlog, spec, plan, pool, clock
        self._sent: _Sent | None = None
        self._next: StandbyCommand | None = None
        self._next_at = clock.monotonic()
        self._in_vain = 0

    def look(self, history: History, here: Situation) -> bool:
        """Mind the standby once, while the attempt is at work; whether the attempt is to be recalled for it.

        Raises:
            StoreReadError, StoreWriteError: calling again is safe.
        """
        at = self._clock.monotonic()
        if self._sent is None:
            self._send_if_due(history, here, at)
        sent = self._sent
        if sent is None:
            return False
        if history.handover_of(self._plan.segment, self._plan.attempt) is not None:
            self._repeat_order(sent, at)
            return True
        word = status_of(self._runlog.store, self._runlog.run_id, sent.name)
        gone = self._why_gone(sent, word, at)
        if gone is not None:
            self._release(sent, gone, is_here=False)
            self._pause(here, at)
        elif word is not None:
            self._repeat_order(sent, at)
            return self._answer(sent, word, history, here, at)
        return False

    def close(self) -> None:
        """Release the standby, unless the run is handed over to it. A store that is away is no reason to wait."""
        sent = self._sent
        if sent is None:
            return
        try:
            if read_history(self._runlog).handover_of(self._plan.segment, self._plan.attempt) is None:
                self._release(sent, "on-demand has ended", is_here=False)
        except (StoreReadError, StoreWriteError) as error:
            log.warning("standby not released, it will leave by itself standby=%s reason=%s", sent.name, error)

    def _send_if_due(self, history: History, here: Situation, at: float) -> None:
        order = self._next or self._next_order(history, here, at)
        self._next, is_out = order, order.counter > 0
        if not is_out and (at < self._next_at or not is_worth_a_standby(here)):
            return
        # The order first: a parent that dies here finds the number again, and by it the standby.
        put_command(self._runlog.store, self._runlog.run_id, order)
        run = self._pool.send(order.standby, deployment=order.deployment)
        if run is None:
            self._next_at = at + _SEND_AGAIN_SECONDS
            return
        log.info("standby %s standby=%s", "adopted" if is_out else "sent", order.standby)
        lease = HeartbeatTimeout(self._spec.liveness.heartbeat_timeout_seconds)
        self._sent, self._next = _Sent(run, order, lease, at, at, sent_at=None if is_out else at), None

    def _next_order(self, history: History, here: Situation, at: float) -> StandbyCommand:
        """The order of the next standby; of the one that is out, if there is one."""
        newest = newest_standby(self._runlog.store, self._runlog.run_id)
        last = None if newest is None else command_of(self._runlog.store, self._runlog.run_id, keys.standby_id(newest))
        if last is not None and last.order != "leave" and not _has_been_used(history, last.standby):
            beside = {"segment": self._plan.segment, "attempt": self._plan.attempt}
            return last.model_copy(update={"counter": last.counter + 1} | beside)
        if last is not None and not self._in_vain and (last.segment, last.attempt) == self._numbers:
            self._pause(here, at)  # This parent was started again: the one before it sent some.
        return StandbyCommand(
            standby=keys.standby_id(0 if newest is None else newest + 1),
            counter=0,
            order="wait",
            why="waits for spot",
            deployment=choose_pool(self._spec, history, here, now=self._clock.now()).deployment,
            segment=self._plan.segment,
            attempt=self._plan.attempt,
        )

    @property
    def _numbers(self) -> tuple[int, int]:
        return self._plan.segment, self._plan.attempt

    def _why_gone(self, sent: _Sent, word: StandbyStatus | None, at: float) -> str | None:
        if word is not None and word.phase == "gone":
            return word.note or "it left"
        if sent.ended_as is None and at - sent.asked_pool_at >= _ASK_POOL_SECONDS:
            sent.asked_pool_at, sent.ended_as = at, sent.run.ended_as()
        if word is not None:
            sent.lease.saw(word.counter, at=at)
            if sent.lease.is_expired:
                return f"no sign of life for {sent.lease.heartbeat_timeout_seconds:g} s"
        is_silent = word is None or sent.lease.still_seconds > 3 * self._spec.liveness.heartbeat_seconds
        return f"its flow run ended as {sent.ended_as}" if sent.ended_as is not None and is_silent else None

    def _answer(self, sent: _Sent, word: StandbyStatus, history: History, here: Situation, at: float) -> bool:
        """What to do about a standby that lives; True to hand over."""
        sent.seen_at = at if sent.seen_at is None else sent.seen_at
        no = None
        if word.phase == "ready" and permits(here):
            return self._hand_over(sent, at)
        if word.phase == "ready":
            no = "not needed: the slack does not cover going back to spot any more"
        elif sent.order.order == "wait":
            if is_worth_a_standby(here) and self._is_spot_wanted(sent, history, here, up_seconds=at - sent.seen_at):
                self._order(sent, "boot", "spot is wanted again", at)
                return False
            no = "not needed: on-demand goes on"
        elif at - sent.seen_at > (patience := self._spec.liveness.start_seconds + here.changeover_seconds):
            no = f"it did not boot within {patience:g} s"
        if no is not None:
            self._release(sent, no, is_here=True)
            self._pause(here, at)
        return False

    def _is_spot_wanted(self, sent: _Sent, history: History, here: Situation, *, up_seconds: float) -> bool:
        from segue.policy.outlook import wants_spot  # Only here, for it loads NumPy.

        now, pool = self._clock.now(), sent.order.deployment
        return wants_spot(self._spec, history, here, up_seconds=up_seconds, now=now, deployment=pool)

    def _hand_over(self, sent: _Sent, at: float) -> bool:
        segment, attempt = self._numbers
        numbers = {}
        if sent.seen_at is not None and sent.sent_at is not None:
            numbers = {"waited_seconds": sent.seen_at - sent.sent_at, "held_seconds": at - sent.seen_at}

        def build(stamp: Stamp) -> Entry:
            history = read_history(self._runlog)
            if history.report_of(segment, attempt) or history.handover_of(segment, attempt):
                raise _TooLateError
            where = {"standby": sent.name, "deployment": sent.order.deployment}
            facts = where | {"segment": segment, "attempt": attempt, "reason": SPOT_AGAIN, "numbers": numbers}
            return HandoverEntry.model_validate(stamp(epoch=0) | facts)

        with suppress(_TooLateError):
            self._runlog.append(build)
            log.info("handing over to standby=%s", sent.name)
            return True
        return False

    def _order(self, sent: _Sent, order: str, why: str, at: float) -> None:
        changes = {"order": order, "why": why, "counter": sent.order.counter + 1}
        made = StandbyCommand.model_validate(sent.order.model_dump() | changes)
        put_command(self._runlog.store, self._runlog.run_id, made)
        sent.order, sent.ordered_at = made, at

    def _repeat_order(self, sent: _Sent, at: float) -> None:
        # A standby that hears nothing any more takes its parent for dead.
        if at - sent.ordered_at >= self._spec.liveness.heartbeat_timeout_seconds / 2:
            self._order(sent, sent.order.order, sent.order.why, at)

    def _release(self, sent: _Sent, why: str, *, is_here: bool) -> None:
        self._order(sent, "leave", why, self._clock.monotonic())
        if not is_here:
            sent.run.cancel(why)  # One that is here reads its order, and can say why it left.
        log.info("standby released standby=%s reason=%s", sent.name, why)
        self._sent = None

    def _pause(self, here: Situation, at: float) -> None:
        self._in_vain += 1
        self._next_at = at + pause_seconds(here, sent=self._in_vain)


def release_leftover(runlog: RunLog, *, pool: StandbyPool) -> None:
    """Take back the standby of a run that is over, if a parent that was killed left one on the pool.

    Raises:
        StoreReadError, StoreWriteError: calling again is safe; the standby also leaves by itself, once it starts.
    """
    newest = newest_standby(runlog.store, runlog.run_id)
    order = None if newest is None else command_of(runlog.store, runlog.run_id, keys.standby_id(newest))
    if order is None or order.order == "leave" or _has_been_used(read_history(runlog), order.standby):
        return
    why = "the run is over"
    made = order.model_copy(update={"order": "leave", "why": why, "counter": order.counter + 1})
    put_command(runlog.store, runlog.run_id, made)
    run = pool.send(order.standby, deployment=order.deployment)
    if run is not None:
        run.cancel(why)


class _TooLateError(Exception):
    """Leaves an append: the attempt has ended, or is handed over already."""


def _has_been_used(history: History, standby: str) -> bool:
    return any(entry.plan is not None and entry.plan.standby == standby for entry in history.decisions)
