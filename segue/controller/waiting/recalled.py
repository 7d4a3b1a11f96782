"""Handles a recalled attempt until it stops or the controller declares it lost."""

from __future__ import annotations

from segue.controller.liveness import HeartbeatTimeout
from segue.policy import clamp
from segue.policy.estimates import Situation
from segue.records import Heartbeat

_MARGIN_SECONDS = 1.0
"""Seconds between the moment at which a recalled attempt is declared lost and the latest start on on-demand."""


class Recalled:
    """A recall of an attempt."""

    def __init__(self, here: Situation, *, timeout_seconds: float) -> None:
        """`here` is the situation at the recall. The attempt has to answer within `timeout_seconds`."""
        self._is_in_time = not clamp.is_late(here, in_seconds=_MARGIN_SECONDS)
        # The time counts like a heartbeat timeout, because the attempt cannot answer while the store is unreachable.
        self._silence = HeartbeatTimeout(timeout_seconds)

    def why_lost(self, here: Situation, beat: Heartbeat | None, *, at: float, is_urgent: bool) -> str | None:
        """Return the reason to declare the attempt lost now, or None while the attempt may end by itself.

        If `is_urgent` is true, the next attempt has to start soon. If `is_urgent` is false, the attempt also has time
        for its last save.
        """
        self._silence.update(0, at=at)
        waited, timeout_seconds = self._silence.unchanged_seconds, self._silence.heartbeat_timeout_seconds
        is_stopping = beat is not None and beat.phase == "stopping"
        if is_urgent and not is_stopping and waited > timeout_seconds:
            return f"no answer to a recall for {timeout_seconds:g} s"
        if is_urgent and self._is_in_time and clamp.is_late(here, in_seconds=_MARGIN_SECONDS):
            return "it was recalled and did not end in time for on-demand to meet the deadline"
        # Declaring the attempt lost costs its uncommitted work. A wait that is longer than the duration of this work
        # would cost more.
        patience = timeout_seconds + here.answer_seconds + here.at_risk_seconds
        return f"it was recalled and did not end within {patience:.0f} s" if waited > patience else None
