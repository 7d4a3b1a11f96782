"""Orders to a job: notices, other signals, and its kill. Each is repeated until Slurm has taken it."""

from __future__ import annotations

import logging
import signal

from segue.clock import Clock
from segue.launch.slurm.commands import ask
from segue.launch.slurm.submission import Silence

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 2.0
"""Time until an order is sent again if the controller did not take it."""
_REPEAT_SECONDS = 5.0
"""A notice is sent again until the job ends: a job that boots its nodes has no step yet that could get it."""
_GIVE_UP_SECONDS = 300.0
"""How long a job is watched after its kill if nothing is known of it."""


class Orders:
    """The orders for one job. Signal handlers and other threads give them; one thread tells the controller."""

    def __init__(self, *, name: str, silence: Silence, clock: Clock) -> None:
        self._name, self._silence, self._clock = name, silence, clock
        # Signal handlers and other threads write to these, and never take a lock.
        self._notices: dict[signal.Signals, bool] = {}
        self._signals: list[signal.Signals] = []
        self._is_killed = self._was_cancelled = False
        self._sent: dict[signal.Signals, float] = {}
        """When each notice was sent last."""
        self._killed_at: float | None = None
        self._tell_at = float("-inf")

    def give_notice(self, number: signal.Signals) -> None:
        self._notices[number] = True

    def send(self, number: signal.Signals) -> None:
        self._signals.append(number)

    def kill(self) -> None:
        self._is_killed = True

    @property
    def to_end(self) -> bool:
        """Whether the job is to end, even if Slurm has not heard of this yet."""
        return bool(self._notices) or self._is_killed

    @property
    def were_heard(self) -> bool:
        """Whether Slurm has heard that the job is to end."""
        return bool(self._sent) or self._was_cancelled

    def is_given_up(self) -> bool:
        """Whether the kill is so long ago that the wait for Slurm is over."""
        at = self._clock.monotonic()
        if self._is_killed and self._killed_at is None:
            self._killed_at = at
        return self._killed_at is not None and at - self._killed_at > _GIVE_UP_SECONDS

    def tell(self, job_id: str) -> None:
        """Send the controller the orders that it has not taken yet, if it is time."""
        at = self._clock.monotonic()
        if at < self._tell_at:
            return
        # By id and name: an id that the controller forgot may be another job's by now.
        scancel = ["scancel", f"--name={self._name}"]
        if self._is_killed and not self._was_cancelled:
            if self._sent or not self._notices:
                # The step is killed at once, as by a machine that vanishes. The end of the job begins with a notice,
                # which is right if no notice has reached the trainer yet, because the controller was away.
                ask([*scancel, "--signal=KILL", f"{job_id}.0"])
            self._was_cancelled = self._is_heard([*scancel, job_id], job_id)
            return
        for number in list(self._notices):
            if number in self._sent and at - self._sent[number] < _REPEAT_SECONDS:
                continue
            # A job that waits gets no signal.
            is_new = number not in self._sent
            if is_new and not self._is_heard([*scancel, "--state=PENDING", job_id], job_id):
                return
            if not self._is_heard([*scancel, f"--signal={number.name}", job_id], job_id):
                return
            self._sent[number] = at
        while self._signals:
            answer = ask([*scancel, f"--signal={self._signals[0].name}", job_id])
            if self._silence.note(answer.is_silence, job=job_id):
                return
            self._signals.pop(0)  # A waiting or suspended job does not take the signal, and needs none.

    def _is_heard(self, command: list[str], job_id: str) -> bool:
        """Send the controller an order; returns whether it took the order. If not, the order is sent again later."""
        answer = ask(command)
        if not self._silence.note(answer.is_silence, job=job_id) and not answer.was_heard:
            log.warning("scancel failed and is run again job=%s reason=%s", job_id, answer.why)
        if not answer.was_heard:
            self._tell_at = self._clock.monotonic() + _AGAIN_SECONDS
        return answer.was_heard
