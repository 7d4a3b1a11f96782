"""The wait of an attempt for a machine: how long it has lasted, when it is given up, and what is shown of it."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from segue.clock import Clock
from segue.controller.orchestrator import Orchestrator
from segue.records import SegmentPlan, StopReason
from segue.runlog.history import History
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_SHOW_SECONDS = 10.0
"""How long an attempt may take to start before its wait is shown."""

_BOOTS, _LEAST_BOOT_SECONDS = 5.0, 120.0
"""With a deadline, a boot may take this multiple of the changeover's prior, and at least this long."""

Show = Callable[[str | None], None]
"""Called with what an attempt without a machine waits for; None once it has one."""


@dataclass(frozen=True)
class Submitted:
    """An attempt that was submitted to an orchestrator."""

    plan: SegmentPlan
    orchestrator: Orchestrator
    handle: str

    def state(self) -> str | None:
        return self.orchestrator.state(self.handle)

    def is_running(self) -> bool:
        return self.orchestrator.is_running(self.handle)

    def why_waiting(self) -> str | None:
        return self.orchestrator.why_waiting(self.handle)

    def was_cancelled(self) -> bool:
        return self.orchestrator.was_cancelled(self.handle)

    def cancel(self, why: str, *, has_no_capacity: bool) -> None:
        self.orchestrator.cancel(self.handle, why, has_no_capacity=has_no_capacity)

    def mark_lost(self, why: str) -> None:
        self.orchestrator.mark_lost(self.handle, why)


class CapacityWait:
    """The wait of one submitted attempt, until it claims the run."""

    def __init__(self, spec: RunSpec, submitted: Submitted, *, clock: Clock, show: Show) -> None:
        self._spec, self._submitted, self._plan = spec, submitted, submitted.plan
        self._clock, self._show = clock, show
        self._started_at = clock.monotonic()
        self._shown: str | None = None
        self._running_since: float | None = None

    def show(self, history: History, *, is_claimed: bool) -> None:
        """Show what the attempt waits for, when that has changed."""
        text = None
        if not is_claimed and self._waited_seconds(history) > _SHOW_SECONDS:
            blocker = self._submitted.why_waiting()
            doing = "booting" if self._submitted.is_running() else f"waiting for {self._plan.capacity} capacity"
            text = f"{doing} ({self._plan.deployment})" + (f": {blocker}" if blocker else "")
        if text != self._shown:
            self._shown = text
            if text is not None:
                log.warning("no machine yet: %s", text)
            self._show(text)

    def why_give_up(self, history: History) -> tuple[StopReason, str] | None:
        """Reason and note with which the wait ends now; None while it goes on."""
        if history.stop is not None:
            return StopReason.CANCELLED, history.stop.reason
        if self._boots_for_too_long():
            return StopReason.LOST, f"its machine did not claim the run within {self._boot_seconds:.0f} s"
        left = self.seconds_left(history)
        if left > 0 or self._may_boot_on():
            return None
        waited = self._waited_seconds(history)
        return StopReason.NO_CAPACITY, f"no capacity on {self._plan.capacity} within {waited:.0f} s"

    def seconds_left(self, history: History) -> float:
        """Seconds until the plan's limit; infinite for a request that stays queued."""
        patience = self._plan.start_within_seconds
        return math.inf if patience is None else patience - self._waited_seconds(history)

    def _boots_for_too_long(self) -> bool:
        """Whether the attempt has had a machine for longer than any boot takes: its process may be dead or hung."""
        if not self._submitted.is_running():
            self._running_since = None
            return False
        now = self._clock.monotonic()
        self._running_since = now if self._running_since is None else self._running_since
        return now - self._running_since > self._boot_seconds

    @property
    def _boot_seconds(self) -> float:
        longest = self._spec.liveness.first_step_seconds
        if self._spec.deadline is None:
            return longest
        return min(longest, max(_BOOTS * self._spec.policy.changeover_seconds, _LEAST_BOOT_SECONDS))

    def _may_boot_on(self) -> bool:
        """Whether an attempt that has a machine may go on booting. A deadline allows no more than the plan does."""
        return self._spec.deadline is None and self._submitted.is_running()

    def _waited_seconds(self, history: History) -> float:
        here = self._clock.monotonic() - self._started_at
        if self._spec.deadline is None:
            return here
        # An earlier parent may have waited for this plan and died; that time counts too.
        decision = history.decision_of(self._plan.segment, self._plan.attempt)
        if decision is None or decision.plan != self._plan:
            return here
        return max(here, (self._clock.now() - decision.written_at).total_seconds())
