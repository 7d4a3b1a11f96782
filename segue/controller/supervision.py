"""Supervision of a trainer by its segment: it is ended when its attempt is over, or when it ignores a notice.

A trainer ends by itself in both cases, unless it hangs, is suspended, or no thread of it runs any more.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from segue.clock import Clock
from segue.launch.launcher import Trainer
from segue.process import ProcessRef
from segue.records import SegmentPlan
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.base import StoreReadError

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_LOG_SECONDS = 5.0
"""Shortest period of reads of the run's log."""
_MARGIN_SECONDS = 8.0
"""How much later than its grace period a trainer is killed: its own watchdog comes first."""
_DUMP_SECONDS = 2.0
"""How long a trainer has to write its stacks."""


@dataclass
class Supervision:
    """What the supervision of a trainer came to."""

    was_hung: bool = False
    """Whether the trainer was killed because it ran, but had neither a heartbeat nor an answer to a notice."""


@contextmanager
def supervising(
    spec: RunSpec,
    plan: SegmentPlan,
    trainer: Trainer,
    *,
    notices: Callable[[], Iterable[signal.Signals]],
    clock: Clock,
) -> Iterator[Supervision]:
    """Supervise a trainer, from a thread of its own, until the block ends. `notices` were passed on to it."""
    supervisor = _Supervisor(spec, plan, trainer, notices, clock)
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(_POLL_SECONDS):
            supervisor.look()

    thread = threading.Thread(target=work, name="segue-supervisor", daemon=True)
    thread.start()
    try:
        yield supervisor.outcome
    finally:
        stop.set()
        thread.join(_POLL_SECONDS)  # A store that hangs must not hold up the report.


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
        self._is_reported = self._is_dumped = False

    def look(self) -> None:
        """Check once; end the trainer if its time is over."""
        at = self._clock.monotonic()
        if self._due is None:
            self._due = self._why_it_is_over(at)
        due = [found for found in (self._due, self._end_of_notice(at)) if found is not None]
        if due and self._trainer.poll() is None:
            self._end(*min(due, key=lambda found: found[1]), at=at)

    def _end_of_notice(self, at: float) -> tuple[str, float] | None:
        """Why a noticed trainer is killed, and when; None without a notice."""
        for number in self._notices():
            self._noticed_at.setdefault(number, at)
        if not self._noticed_at:
            return None
        ends = (since + self._seconds_after(number) for number, since in self._noticed_at.items())
        return "it did not end within the grace period of a notice", min(ends) + _MARGIN_SECONDS

    def _seconds_after(self, number: signal.Signals) -> float:
        ahead = self._spec.liveness.usr1_seconds if number is signal.SIGUSR1 else None
        return self._spec.grace_seconds if ahead is None else ahead

    def _why_it_is_over(self, at: float) -> tuple[str, float] | None:
        """Why the trainer must end, and when it is killed; None while it may go on."""
        if at - self._read_at < self._period_seconds:
            return None
        self._read_at = at
        why = self._why_its_attempt_is_over()
        if why is None:
            return None
        # It may still commit what it has, unless a newer attempt has begun; it refuses that by itself.
        log.warning("ending the trainer reason=%s", why)
        self._is_reported = True
        self._trainer.give_notice()
        return why, at + self._spec.grace_seconds + _MARGIN_SECONDS

    def _why_its_attempt_is_over(self) -> str | None:
        try:
            if self._runlog is None:
                self._runlog = open_log(self._spec, clock=self._clock).reload()
            return _why_over(read_history(self._runlog), self._plan)
        except StoreReadError as error:
            log.debug("the supervisor cannot read the log reason=%s", error)
            return None

    def _end(self, why: str, kill_at: float, *, at: float) -> None:
        if at >= kill_at - _DUMP_SECONDS and not self._is_dumped:
            self._is_dumped = True
            log.error("the trainer does not end; its stacks follow reason=%s", why)
            self._trainer.dump_stacks()
        if at >= kill_at:
            log.error("killing the trainer reason=%s", why)
            # A suspended one could not answer; the machine may have frozen it.
            self.outcome.was_hung = self._is_reported and not ProcessRef.of(self._trainer.pid).is_stopped()
            self._trainer.kill()


def _why_over(history: History, plan: SegmentPlan) -> str | None:
    """Why an attempt is over although its trainer runs; None while it is in force."""
    report = history.report_of(plan.segment, plan.attempt)
    if report is not None:
        return f"its attempt was reported as {report.stop_reason.in_words}"
    attempt = history.attempt_of(plan.segment, plan.attempt)
    newest = max((other.claim.epoch for other in history.attempts), default=0)
    if attempt is not None and attempt.claim.epoch < newest:
        return "a newer attempt has claimed the run"
    return None
