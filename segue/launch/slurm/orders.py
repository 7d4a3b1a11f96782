"""Sends the orders to a job: a notice, another signal, or the kill. Each order is repeated until Slurm accepts it."""

from __future__ import annotations

import logging
import signal

from segue.clock import Clock
from segue.launch.slurm.commands import ask
from segue.launch.slurm.submission import Silence

log = logging.getLogger(__name__)

_AGAIN_SECONDS = 2.0
"""Seconds until segue repeats an order that the controller did not accept."""
_REPEAT_SECONDS = 5.0
"""Seconds between two sends of the same notice. While the nodes of a job boot, no step can receive the notice."""
_GIVE_UP_SECONDS = 300.0
"""Seconds for which segue watches a killed job whose state is unknown."""


class Orders:
    """Orders for one job. Signal handlers and other threads add orders. One thread sends the orders to the
    controller.
    """

    def __init__(self, *, name: str, silence: Silence, clock: Clock) -> None:
        self._name, self._silence, self._clock = name, silence, clock
        # Signal handlers and other threads write to these without a lock.
        self._notices: dict[signal.Signals, bool] = {}
        self._signals: list[signal.Signals] = []
        self._is_killed = self._was_cancelled = False
        self._sent: dict[signal.Signals, float] = {}
        """Monotonic time at which each notice was last sent."""
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
        """Whether the job has to end, even if Slurm does not know this yet."""
        return bool(self._notices) or self._is_killed

    @property
    def were_heard(self) -> bool:
        """Whether Slurm has received the order to end the job."""
        return bool(self._sent) or self._was_cancelled

    def is_given_up(self) -> bool:
        """Whether the kill was requested so long ago that segue no longer waits for Slurm."""
        at = self._clock.monotonic()
        if self._is_killed and self._killed_at is None:
            self._killed_at = at
        return self._killed_at is not None and at - self._killed_at > _GIVE_UP_SECONDS

    def tell(self, job_id: str) -> None:
        """Send all orders that the controller has not accepted yet, if it is time to send orders."""
        at = self._clock.monotonic()
        if at < self._tell_at:
            return
        # The order names the job by id and name, because the id of a forgotten job may now belong to another job.
        scancel = ["scancel", f"--name={self._name}"]
        if self._is_killed and not self._was_cancelled:
            if self._sent or not self._notices:
                # The step is killed at once, as if its machine had vanished. The end of the job begins with a notice.
                # This is correct if no notice has reached the trainer yet because the controller did not answer.
                ask([*scancel, "--signal=KILL", f"{job_id}.0"])
            self._was_cancelled = self._is_heard([*scancel, job_id], job_id)
            return
        for number in list(self._notices):
            if number in self._sent and at - self._sent[number] < _REPEAT_SECONDS:
                continue
            # A waiting job cannot receive a signal.
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
        """Send an order to the controller. Return whether the controller accepted it. A refused order is repeated
        later.
        """
        answer = ask(command)
        if not self._silence.note(answer.is_silence, job=job_id) and not answer.was_heard:
            log.warning("scancel failed, retrying later job=%s reason=%s", job_id, answer.why)
        if not answer.was_heard:
            self._tell_at = self._clock.monotonic() + _AGAIN_SECONDS
        return answer.was_heard
