"""Runs a standby on its machine.

The agent reports that the standby has a machine, boots on command, and takes the plan that names the standby.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from segue.clock import Clock
from segue.controller.liveness import HeartbeatTimeout
from segue.controller.standbys.messages import Phase, StandbyStatus, command_of, put_status
from segue.launch.assignment import Assignment
from segue.launch.launcher import StandbyTrainer
from segue.records import SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.25
_PATIENCE_TIMEOUTS = 10
"""Number of heartbeat timeouts for which a standby waits for a silent parent.

The wait is longer than the wait of Prefect's client for a server.
"""


@dataclass(frozen=True)
class Taken:
    """The standby has become an attempt."""

    plan: SegmentPlan
    trainer: StandbyTrainer


@dataclass(frozen=True)
class Left:
    """The standby has left without becoming an attempt, and has changed nothing."""

    why: str
    how: Literal["not needed", "taken back", "broken"] = "not needed"


class StandbyAgent:
    """One standby on its machine. The standby reads the run's log and never writes to it."""

    def __init__(
        self,
        runlog: RunLog,
        spec: RunSpec,
        standby: str,
        *,
        boot: Callable[[], StandbyTrainer],
        clock: Clock,
        flow_run_id: str | None = None,
    ) -> None:
        self._runlog, self._spec, self._standby, self._boot, self._clock = runlog, spec, standby, boot, clock
        self._flow_run_id = flow_run_id
        self._trainer: StandbyTrainer | None = None
        self._phase: Phase = "here"
        self._counter, self._beat_at = 0, float("-inf")
        self._begun_at = clock.monotonic()
        self._parent = HeartbeatTimeout(_PATIENCE_TIMEOUTS * spec.liveness.heartbeat_timeout_seconds)
        self._was_named = False

    def serve(self, is_called_off: Callable[[], str | None]) -> Taken | Left:
        """Block until the standby gets a plan or has a reason to leave. `is_called_off` may return a reason.

        The standby keeps waiting while the store is unreachable. If no plan came, the method ends the trainer before it
        returns.
        """
        outcome: Taken | Left | None = None
        try:
            while outcome is None:
                why = is_called_off()
                outcome = Left(why, "taken back") if why is not None else self._look_at_the_store()
                if outcome is None:
                    self._clock.sleep(_POLL_SECONDS)
        finally:
            if not isinstance(outcome, Taken):
                self._leave(outcome.why if outcome is not None else "it was stopped")
        return outcome

    def _look_at_the_store(self) -> Taken | Left | None:
        try:
            return self._look()
        except (StoreReadError, StoreWriteError) as error:
            log.warning("standby cannot read or write the store reason=%s", error)
            return None

    def _look(self) -> Taken | Left | None:
        self._beat_if_due()
        command = command_of(self._runlog.store, self._runlog.run_id, self._standby)
        if command is not None and command.action == "leave":
            return Left(command.why)
        self._parent.update(command.counter if command is not None else None, at=self._clock.monotonic())
        history = read_history(self._runlog)
        plan = self._plan_for_this(history)
        why = self._why_outdated(history) or self._why_no_plan_can_come(history, plan)
        if why is not None:
            return Left(why)
        if self._trainer is None and (plan is not None or (command is not None and command.action == "boot")):
            self._trainer = self._boot()
            self._enter("booting")
        return None if self._trainer is None else self._look_at(self._trainer, plan)

    def _look_at(self, trainer: StandbyTrainer, plan: SegmentPlan | None) -> Taken | Left | None:
        code = trainer.poll()
        if code is not None:
            return Left(f"its trainer ended while it booted, with exit code {code}", "broken")
        if not trainer.is_booted():
            return None
        if self._phase == "booting":
            self._enter("ready")
        if plan is None:
            return None
        trainer.take(Assignment(spec=self._spec, plan=plan, flow_run_id=self._flow_run_id))
        return Taken(plan, trainer)

    def _plan_for_this(self, history: History) -> SegmentPlan | None:
        plan = history.open_plan
        return plan if plan is not None and plan.standby == self._standby else None

    def _why_outdated(self, history: History) -> str | None:
        """Return the reason why the standby must not train: it booted with an older run spec.

        Return None if the standby may train.
        """
        is_old = history.spec is not None and history.spec != self._spec
        return "the run spec has changed" if is_old else None

    def _why_no_plan_can_come(self, history: History, plan: SegmentPlan | None) -> str | None:
        """Return the reason why no plan can come for this standby any more, or None if a plan may come."""
        if plan is not None:
            return None
        if history.is_over:
            return "not needed: the run is over"
        if history.handover is not None and history.handover.standby == self._standby:
            self._was_named = True
        elif self._was_named or any(e.plan is not None and e.plan.standby == self._standby for e in history.decisions):
            return "not needed: the run continued without it"
        if self._parent.is_expired:
            return f"no command from the parent for {self._parent.heartbeat_timeout_seconds:.0f} s"
        return None

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        log.info("standby entered a phase phase=%s standby=%s", phase, self._standby)
        self._beat()

    def _beat_if_due(self) -> None:
        if self._clock.monotonic() - self._beat_at >= self._spec.liveness.heartbeat_seconds:
            self._beat()

    def _beat(self, *, note: str | None = None) -> None:
        self._counter += 1
        self._beat_at = self._clock.monotonic()
        status = StandbyStatus(
            standby=self._standby,
            counter=self._counter,
            phase=self._phase,
            note=note,
            flow_run_id=self._flow_run_id,
            held_seconds=self._beat_at - self._begun_at,
            beat_at=self._clock.now(),
        )
        put_status(self._runlog.store, self._runlog.run_id, status)

    def _leave(self, why: str) -> None:
        log.info("standby leaves standby=%s reason=%s", self._standby, why)
        self._phase = "gone"
        try:
            self._beat(note=why)  # The status comes first: a machine that is taken back leaves little time.
        except StoreWriteError as error:
            log.warning("standby leaves, but could not write its status reason=%s", error)
        if self._trainer is not None:
            self._trainer.kill()
            self._trainer.wait()
