"""Asks the orchestrator whether an attempt has ended. The attempt's report may arrive a little later."""

from __future__ import annotations

from segue.clock import Clock
from segue.controller.waiting.attempt_starts import Starts
from segue.spec import RunSpec

_LATE_REPORT_SECONDS = 5.0


class FlowRunEnd:
    """The end of an attempt's flow runs, according to the orchestrator."""

    def __init__(self, spec: RunSpec, starts: Starts, *, clock: Clock, ask_seconds: float) -> None:
        self._starts, self._clock, self._ask_seconds = starts, clock, ask_seconds
        self.late_report_seconds = max(_LATE_REPORT_SECONDS, 3 * spec.liveness.heartbeat_seconds)
        """Seconds after the end of the flow run in which a report may still arrive."""
        self.state_name: str | None = None
        """Name of the final state, or None while no end is known."""
        self._ended_at = self._asked_at = clock.monotonic()

    def ask(self) -> None:
        """Ask the orchestrator for the final state, if a request is due."""
        at = self._clock.monotonic()
        if self.state_name is not None or at - self._asked_at < self._ask_seconds:
            return
        self._asked_at = at
        self.state_name = self._starts.state()
        if self.state_name is not None:
            self._ended_at = self._clock.monotonic()

    def forget(self) -> None:
        """Discard the known end, because the attempt has other flow runs from now on."""
        self.state_name = None

    @property
    def is_final(self) -> bool:
        """Whether the flow runs ended so long ago that no report will arrive any more."""
        return self.state_name is not None and self._clock.monotonic() - self._ended_at > self.late_report_seconds
