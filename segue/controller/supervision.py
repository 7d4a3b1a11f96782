"""Supervises a trainer from its segment.

The segment ends a trainer whose attempt is over, or that ignores a notice. Usually a trainer ends by itself after a
notice or the end of its attempt. The segment has to end a trainer only if it hangs, is suspended, or has no running
thread.
"""

from __future__ import annotations

import logging
import math
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from segue.clock import Clock
from segue.errors import SegueError
from segue.launch.launcher import Trainer
from segue.notices.disturbance import DisturbanceKind, requested_disturbance
from segue.notices.signals import KINDS
from segue.records import Heartbeat, Notice, SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec

log = logging.getLogger(__name__)


def look_seconds(spec: RunSpec) -> float:
    """Return the shortest time in seconds between two checks for a request."""
    # On a remote store, each check is a request that costs money.
    return spec.liveness.heartbeat_seconds if spec.store.is_remote else 0.0


class DisturbedTrainer:
    """Carries out a drill's request to disturb one attempt, once."""

    def __init__(
        self, spec: RunSpec, plan: SegmentPlan, trainer: Trainer, *, give_notice: Callable[[], None], clock: Clock
    ) -> None:
        self._spec, self._plan, self._trainer = spec, plan, trainer
        self._give_notice, self._clock = give_notice, clock
        self._runlog: RunLog | None = None
        self._attempt_id: str | None = None
        self._look_at = -math.inf

    def look(self) -> None:
        """Send SIGKILL or a notice if a drill has requested a disturbance.

        Raises:
            SegueError: the store could not be read. It is safe to call the method again.
        """
        at = self._clock.monotonic()
        if at < self._look_at:
            return
        self._look_at = at + look_seconds(self._spec)
        if self._runlog is None:
            self._runlog = open_log(self._spec, clock=self._clock)
        if self._attempt_id is None:
            attempt = read_history(self._runlog).attempt_of(self._plan.segment, self._plan.attempt)
            if attempt is None:
                return
            self._attempt_id = attempt.claim.attempt_id
        found = requested_disturbance(self._runlog.store, run_id=self._spec.run_id, attempt_id=self._attempt_id)
        if found is None:
            return
        self._look_at = math.inf
        log.warning("the drill disturbs the trainer kind=%s attempt=%s", found.kind, self._attempt_id)
        if found.kind is DisturbanceKind.KILL:
            self._trainer.kill()
        else:
            self._give_notice()


_POLL_SECONDS = 0.5
_LOG_SECONDS = 5.0
"""Shortest time in seconds between two reads of the run's log."""
_MARGIN_SECONDS = 8.0
"""Seconds after the grace period at which the segment kills a trainer. The trainer's own watchdog acts earlier."""
_DUMP_SECONDS = 2.0
"""Seconds that a trainer has to write its stack traces."""
_END_NEAR_SECONDS = 30.0
"""Seconds before the planned end of a segment at which the trainer of the next segment boots."""


@dataclass
class Supervision:
    """The outcome of the supervision of a trainer."""

    was_hung: bool = False
    """Whether the segment killed the trainer because it ran without a heartbeat and did not answer a notice."""
    is_end_near: bool = False
    """Whether the planned end of the segment is at most 30 s away."""
    notice: Notice | None = None
    """The first notice that the segment forwarded to the trainer."""


@contextmanager
def supervising(
    spec: RunSpec,
    plan: SegmentPlan,
    trainer: Trainer,
    *,
    notices: Callable[[], Iterable[signal.Signals]],
    clock: Clock,
    give_notice: Callable[[], None] | None = None,
) -> Iterator[Supervision]:
    """Supervise a trainer from a thread until the `with` block ends.

    `notices` returns the forwarded notices. If a drill's disturbance is a notice, the thread sends the notice with
    `give_notice`, or directly to the trainer if `give_notice` is None.
    """
    supervisor = _Supervisor(spec, plan, trainer, notices, clock)
    looks = {"supervisor": supervisor.look, "supervisor-log": supervisor.look_at_log}
    if spec.continuity.disturbable:
        disturbed = DisturbedTrainer(spec, plan, trainer, give_notice=give_notice or trainer.give_notice, clock=clock)
        looks["supervisor-drill"] = disturbed.look
    stop = threading.Event()
    threads = [
        threading.Thread(target=_repeat, args=(look, stop), name=f"segue-{name}", daemon=True)
        # Several threads are used, so that a hanging store cannot delay the end of a trainer that ignores a notice.
        for name, look in looks.items()
    ]
    for thread in threads:
        thread.start()
    try:
        yield supervisor.outcome
    finally:
        stop.set()
        for thread in threads:
            thread.join(_POLL_SECONDS)  # A store that hangs must not delay the report.


def _repeat(look: Callable[[], None], stop: threading.Event) -> None:
    while not stop.wait(_POLL_SECONDS):
        try:
            look()
        except Exception as error:
            # Any exception is caught, because nothing would end a hanging trainer without this thread.
            log.warning("the supervisor could not check the trainer reason=%s", error)


class _Supervisor:
    def __init__(
        self,
        spec: RunSpec,
        plan: SegmentPlan,
        trainer: Trainer,
        notices: Callable[[], Iterable[signal.Signals]],
        clock: Clock,
    ) -> None:
        self._spec, self._plan, self._trainer = spec, plan, trainer
        self._notices, self._clock = notices, clock
        self._noticed_at: dict[signal.Signals, float] = {}
        self._runlog: RunLog | None = None
        self._read_at = clock.monotonic()
        self._period_seconds = max(_LOG_SECONDS, spec.liveness.heartbeat_seconds)
        self.outcome = Supervision()
        self._due: tuple[str, float] | None = None
        self._counter_when_over: int | None = None
        self._is_dumped = False
        self._beat_at = clock.monotonic() if plan.keeps_machine else math.inf

    def look(self) -> None:
        """Check the trainer once, and end it if its time is over."""
        at = self._clock.monotonic()
        due = [found for found in (self._due, self._end_of_notice(at)) if found is not None]
        if due and self._trainer.poll() is None:
            self._end(*min(due, key=lambda found: found[1]), at=at)

    def _end_of_notice(self, at: float) -> tuple[str, float] | None:
        """Return the reason and the time to kill a trainer that got a notice, or None without a notice."""
        for number in self._notices():
            self._noticed_at.setdefault(number, at)
            if self.outcome.notice is None:
                kind, seconds = KINDS.get(number, number.name.lower()), self._seconds_after(number)
                self.outcome.notice = Notice(kind=kind, received_at=self._clock.now(), grace_seconds=seconds)
        if not self._noticed_at:
            return None
        ends = (since + self._seconds_after(number) for number, since in self._noticed_at.items())
        return "it did not end within the grace period of a notice", min(ends) + _MARGIN_SECONDS

    def _seconds_after(self, number: signal.Signals) -> float:
        ahead = self._spec.liveness.usr1_seconds if number is signal.SIGUSR1 else None
        return self._spec.grace_seconds if ahead is None else ahead

    def look_at_log(self) -> None:
        """Read the log if a read is due, and request the end of the trainer if its attempt is over.

        Raises:
            SegueError: the log could not be read. It is safe to call the method again.
        """
        at = self._clock.monotonic()
        if self._due is not None or at - self._read_at < self._period_seconds:
            return
        self._read_at = at
        if self._runlog is None:
            self._runlog = open_log(self._spec, clock=self._clock).reload()
        why = _why_over(read_history(self._runlog), self._plan)
        if why is None:
            self._look_for_planned_end(at)
            return
        # The trainer may still commit its last steps. If a newer attempt has begun, the trainer itself refuses the
        # commit.
        log.warning("ending the trainer reason=%s", why)
        self._counter_when_over = self._heartbeat_counter()
        self._due = why, at + self._spec.grace_seconds + _MARGIN_SECONDS
        self._trainer.give_notice()

    def _look_for_planned_end(self, at: float) -> None:
        if at < self._beat_at:
            return
        beat = self._last_heartbeat()
        left = beat.ends_in_seconds if beat is not None else None
        if left is None:
            return
        self.outcome.is_end_near = left <= _END_NEAR_SECONDS
        # The next check comes after half of the remaining time, because the pace may change.
        self._beat_at = math.inf if self.outcome.is_end_near else at + (left - _END_NEAR_SECONDS) / 2

    def _heartbeat_counter(self) -> int | None:
        """Return the counter of the attempt's newest heartbeat, or None if the heartbeat cannot be read."""
        try:
            beat = self._last_heartbeat()
        except SegueError:
            return None
        return beat.counter if beat is not None else None

    def _last_heartbeat(self) -> Heartbeat | None:
        if self._runlog is None:
            return None
        attempt = read_history(self._runlog).attempt_of(self._plan.segment, self._plan.attempt)
        return last_heartbeat(self._runlog, attempt)

    def _end(self, why: str, kill_at: float, *, at: float) -> None:
        if at >= kill_at - _DUMP_SECONDS and not self._is_dumped:
            self._is_dumped = True
            log.error("the trainer does not end, so its threads print their stacks now reason=%s", why)
            self._trainer.dump_stacks()
        if at >= kill_at:
            log.error("killing the trainer reason=%s", why)
            self.outcome.was_hung = self._is_hung()
            self._trainer.kill()

    def _is_hung(self) -> bool:
        """Whether the trainer runs without a heartbeat. A trainer with heartbeats may just be in a long step."""
        if self._counter_when_over is None or not self._trainer.is_known_to_run():
            return False
        return self._heartbeat_counter() == self._counter_when_over


def _why_over(history: History, plan: SegmentPlan) -> str | None:
    """Return the reason why the attempt of a running trainer is over, or None if the attempt is not over."""
    report = history.report_of(plan.segment, plan.attempt)
    if report is not None:
        return f"its attempt was reported as {report.stop_reason.in_words}"
    attempt = history.attempt_of(plan.segment, plan.attempt)
    newest = max((other.claim.epoch for other in history.attempts), default=0)
    if attempt is not None and attempt.claim.epoch < newest:
        return "a newer attempt has claimed the run"
    return None
