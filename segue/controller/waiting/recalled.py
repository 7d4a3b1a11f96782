"""Handles an attempt that was asked to commit and stop, until the attempt stops or is declared lost."""

from __future__ import annotations

from segue.controller.liveness import HeartbeatTimeout
from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.records import Heartbeat

_MARGIN_SECONDS = 1.0
"""A recalled attempt is declared lost this number of seconds before the latest start on on-demand."""


class Recalled:
    """A recall that was sent to an attempt."""

    def __init__(self, here: Situation, *, timeout_seconds: float) -> None:
        """`here` is the situation at the recall. An answer is expected within `timeout_seconds`."""
        self._is_in_time = not clamp.is_late(here, in_seconds=_MARGIN_SECONDS)
        # The time is counted like a heartbeat timeout: while the store is unreachable, the attempt cannot answer.
        self._silence = HeartbeatTimeout(timeout_seconds)

    def why_lost(self, here: Situation, beat: Heartbeat | None, *, at: float, is_urgent: bool) -> str | None:
        """Return the reason why the attempt is declared lost now. Return None as long as the attempt may end by itself.

        If `is_urgent` is true, the next attempt needs the time. Otherwise the wait includes the last checkpoint.
        """
        self._silence.update(0, at=at)
        waited, timeout_seconds = self._silence.unchanged_seconds, self._silence.heartbeat_timeout_seconds
        is_stopping = beat is not None and beat.phase == "stopping"
        if is_urgent and not is_stopping and waited > timeout_seconds:
            return f"no answer to a recall for {timeout_seconds:g} s"
        if is_urgent and self._is_in_time and clamp.is_late(here, in_seconds=_MARGIN_SECONDS):
            return "it was recalled and did not end in time for on-demand to meet the deadline"
        # Declaring the attempt lost costs its uncommitted work. A wait longer than this work took would cost more.
        patience = timeout_seconds + here.answer_seconds + here.at_risk_seconds
        return f"it was recalled and did not end within {patience:.0f} s" if waited > patience else None
