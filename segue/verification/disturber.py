"""Disturbs a run through its store.

While the parent trains the run, the segments find the requests in the store and carry them out. The run is divided into
equal parts, and each part has one disturbance at a random moment.
"""

from __future__ import annotations

import logging
import math
import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Self

from segue.clock import Clock
from segue.notices.disturbance import Disturbance, DisturbanceKind, request_disturbance, requested_disturbance
from segue.records import Capacity, StopReason
from segue.runlog.history import History, read_history
from segue.runlog.last_heartbeat import last_heartbeat
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.25
_SEGMENT_LOOKS_SECONDS = 0.5
"""Seconds between two checks of a segment for a request, if the store is on the segment's machine."""
_END_SECONDS = 1.5
"""Seconds from the arrival of a request at the segment until the trainer is killed or gets the notice."""

_ENDS_AS = {DisturbanceKind.KILL: StopReason.LOST, DisturbanceKind.NOTICE: StopReason.NOTICE}


def latency_seconds(spec: RunSpec) -> float:
    """Return the longest usual time in seconds from the planned moment of a disturbance to the end of the attempt."""
    beat = spec.liveness.heartbeat_seconds
    return beat + 2 * max(beat if spec.store.is_remote else 0.0, _SEGMENT_LOOKS_SECONDS) + _END_SECONDS


class Disturber:
    """Requests each disturbance at its planned moment, and takes requests of earlier processes into account."""

    def __init__(self, runlog: RunLog, spec: RunSpec, moments: Sequence[Moment], *, clock: Clock) -> None:
        self._runlog, self._spec, self._clock = runlog, spec, clock
        self._moments = list(moments)
        self._requests: dict[str, DisturbanceKind | None] = {}
        self._seen: tuple[str, float] | None = None

    def hits(self, history: History) -> dict[str, DisturbanceKind]:
        """Return the disturbances that ended an attempt on spot, in order. The key is the id of the attempt.

        Raises:
            StoreReadError: the store could not be read.
        """
        found = {}
        for attempt in history.attempts:
            kind, report = (
                self._request_of(attempt.claim.attempt_id, is_over=attempt.report is not None),
                attempt.report,
            )
            if kind is None or report is None or report.capacity is not Capacity.SPOT:
                continue
            if report.stop_reason is _ENDS_AS[kind]:
                found[attempt.claim.attempt_id] = kind
        return found

    def look(self) -> None:
        """If the next disturbance is due, request it.

        Raises:
            StoreReadError, StoreWriteError: the store failed. It is safe to call the method again.
        """
        history = read_history(self._runlog)
        plan = history.open_plan
        attempt = history.attempt_of(plan.segment, plan.attempt) if plan is not None else None
        # Before the first commit, there is no checkpoint to resume from.
        if attempt is None or history.newest is None or attempt.claim.capacity is not Capacity.SPOT:
            return
        attempt_id = attempt.claim.attempt_id
        done = len(self.hits(history))
        if done >= len(self._moments) or self._request_of(attempt_id, is_over=False) is not None:
            return
        moment, beat = self._moments[done], last_heartbeat(self._runlog, attempt)
        if max(beat.step if beat is not None else 0, history.committed_step) < moment.step:
            return
        at = self._clock.monotonic()
        if self._seen is None or self._seen[0] != attempt_id:
            self._seen = attempt_id, at
        if at - self._seen[1] < moment.delay_seconds:
            return
        log.info("disturbing the run kind=%s attempt=%s from_step=%d", moment.kind, attempt_id, moment.step)
        request = Disturbance(kind=moment.kind, requested_at=self._clock.now())
        request_disturbance(self._runlog.store, request, run_id=self._spec.run_id, attempt_id=attempt_id)

    def _request_of(self, attempt_id: str, *, is_over: bool) -> DisturbanceKind | None:
        known = self._requests.get(attempt_id)
        if known is None and attempt_id not in self._requests:
            found = requested_disturbance(self._runlog.store, run_id=self._spec.run_id, attempt_id=attempt_id)
            known = found.kind if found is not None else None
            if known is not None or is_over:
                self._requests[attempt_id] = known
        return known


@contextmanager
def disturbing(disturber: Disturber, spec: RunSpec) -> Iterator[None]:
    """Disturb a run from a separate thread until the block ends."""
    stop = threading.Event()
    pause = max(spec.liveness.heartbeat_seconds if spec.store.is_remote else 0.0, _LOOK_SECONDS)

    def work() -> None:
        while not stop.wait(pause):
            try:
                disturber.look()
            except Exception as error:
                # Any exception, because without this thread the verification would prove nothing.
                log.warning("the run could not be disturbed reason=%s", error)

    thread = threading.Thread(target=work, name="segue-disturber", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(pause + 1)


class Moment(NamedTuple):
    """The moment of a disturbance. The disturber waits until the run has made this step, and then for a delay."""

    kind: DisturbanceKind
    step: int
    delay_seconds: float


@dataclass(frozen=True)
class Pace:
    """The steps, the step time and the save interval of the undisturbed run."""

    first_commit_step: int
    last_step: int
    step_seconds: float
    save_interval_seconds: float

    @classmethod
    def of(cls, history: History) -> Self:
        """Return the pace of a run that has ended."""
        reports = history.last_reports()
        seconds, steps = sum(r.train_seconds for r in reports), sum(r.train_steps for r in reports)
        saves = [checkpoint.manifest.step for checkpoint in history.checkpoints]
        return cls(
            first_commit_step=min(saves, default=0),
            last_step=history.committed_step,
            step_seconds=seconds / steps if steps else 0.0,
            save_interval_seconds=seconds / max(len(saves), 1),
        )


def moments(
    kinds: Sequence[DisturbanceKind], pace: Pace, *, latency_seconds: float, chance: random.Random
) -> tuple[Moment, ...]:
    """Return one moment for each disturbance, in random order, between the first commit and the end of the run.

    Heartbeats show the step of a run only at intervals. A random delay spreads the moments over the time between two
    heartbeats, in which saves, seals and evaluations happen. A segment carries out a request after `latency_seconds`.
    """
    order = chance.sample(list(kinds), len(kinds))
    count = max(len(order), 1)
    between = (pace.last_step - pace.first_commit_step) * pace.step_seconds
    longest_delay = min(pace.save_interval_seconds, between / (4 * count))
    reserved = math.ceil((latency_seconds + longest_delay) / pace.step_seconds) if pace.step_seconds else 1
    last = max(pace.last_step - reserved, pace.first_commit_step)
    part = (last - pace.first_commit_step) / count
    return tuple(
        Moment(
            kind,
            pace.first_commit_step + int(part * (number + chance.random())),
            chance.uniform(0.0, longest_delay),
        )
        for number, kind in enumerate(order)
    )
