"""A real parent that waits for a live attempt, with a measurement of its processor time and its requests to the
store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from benchmarks.waiting.logs import HEARTBEAT_SECONDS, RUN_ID, beat
from benchmarks.waiting.remote_store import RemoteStore
from segue.clock import SystemClock
from segue.controller.recovery import ParentHeartbeat
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.wait import await_report
from segue.policy.queueing import Queues
from segue.records import SegmentPlan, StopReason
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from segue.stores import LocalStore

_WARM_UP_SECONDS = 2.0


@dataclass(frozen=True)
class Cost:
    """The costs of a parent while it waited."""

    cpu_share: float
    """Share of one core: processor seconds in each second."""
    requests_a_minute: float


def wait_for(seconds: float, near: LocalStore, spec: RunSpec, plan: SegmentPlan, *, is_remote: bool) -> Cost:
    """Let a parent wait for this long, with its log, its heartbeat and an attempt that is alive.

    The reading of the log, which a parent does once, is not part of the cost.
    """
    counted = RemoteStore(near)
    counted.is_remote = is_remote  # On this machine the same calls, at the pace of a folder.
    with _living_attempt(near, plan) as attempt:
        clock = _Stopwatch(seconds, attempt, counted)
        runlog = RunLog(counted, RUN_ID).reload()
        parent = ParentHeartbeat(counted, spec, clock=SystemClock())
        parent.take_over()
        with parent.beating(), suppress(_TimeUpError):
            await_report(runlog, spec, Submitted(plan, _Silent(), "attempt"), clock=clock)
        parent.close()
    return Cost(clock.cpu_seconds / clock.wall_seconds, clock.requests * 60 / clock.wall_seconds)


class _Attempt:
    """Writes heartbeats, and measures the processor time for them."""

    def __init__(self, store: LocalStore, plan: SegmentPlan) -> None:
        self._store, self._plan = store, plan
        self._stop = threading.Event()
        self.cpu_seconds = 0.0
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        counter = 0
        while True:
            counter += 1
            beat(self._store, self._plan, counter=counter, now=SystemClock().now())
            self.cpu_seconds = time.thread_time()
            if self._stop.wait(HEARTBEAT_SECONDS):
                return


@contextmanager
def _living_attempt(store: LocalStore, plan: SegmentPlan) -> Iterator[_Attempt]:
    attempt = _Attempt(store, plan)
    try:
        yield attempt
    finally:
        attempt.end()


class _TimeUpError(Exception):
    """Ends a wait that would otherwise go on for as long as the attempt lives."""


class _Stopwatch(SystemClock):
    """The real clock, which also measures this process after the warm-up, and ends the wait."""

    def __init__(self, seconds: float, attempt: _Attempt, store: RemoteStore) -> None:
        self._seconds, self._attempt, self._store = seconds, attempt, store
        self._created_at = self.monotonic()
        self._begun: tuple[float, float, int] | None = None
        self.cpu_seconds = self.wall_seconds = 0.0
        self.requests = 0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        now = (self.monotonic(), time.process_time() - self._attempt.cpu_seconds, sum(self._store.requests.values()))
        if self._begun is None and now[0] - self._created_at > _WARM_UP_SECONDS:
            self._begun = now
        elif self._begun is not None and now[0] - self._begun[0] >= self._seconds:
            self.wall_seconds, self.cpu_seconds = now[0] - self._begun[0], now[1] - self._begun[1]
            self.requests = now[2] - self._begun[2]
            raise _TimeUpError


class _Silent:
    """An orchestrator that shows the attempt as running."""

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        return "attempt"

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        return None

    def state(self, handle: str) -> str | None:
        return None

    def is_running(self, handle: str) -> bool:
        return True

    def starting_seconds(self, handle: str) -> float | None:
        return None

    def flow_run_id(self, handle: str) -> str | None:
        return None

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        return None

    def why_waiting(self, handle: str) -> str | None:
        return None

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        return None

    def refusal(self, handle: str) -> str | None:
        return None

    def was_cancelled(self, handle: str) -> bool:
        return False

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        """Do nothing, because nothing was started."""

    cancel_standby = mark_lost = cancel
