"""The schedule of saves. A save is due after the interval of the spec, after the interval with the lowest cost, or on
request."""

from __future__ import annotations

import logging
import math

from segue.clock import Clock
from segue.policy.save_interval import Cadence, Life, SaveCost, as_asked, interval_seconds
from segue.records import Capacity
from segue.runlog.history import History
from segue.spec import CheckpointSpec

log = logging.getLogger(__name__)


class SaveSchedule:
    """The schedule of one attempt's saves. Only the thread of the training loop uses this object, at safe points."""

    def __init__(self, spec: CheckpointSpec, *, step: int, life: Life | None, clock: Clock) -> None:
        """`step` is the step at which the attempt starts; `life` is the result of `life_on`."""
        self._spec, self._life, self._clock = spec, life, clock
        self._started_at = self._saved_at = clock.monotonic()
        self.saved_step = step
        """Step of the newest state that was submitted to the writer."""
        self.delayed = 0
        """Number of saves that became due while the previous save was still being written."""
        self._is_delaying = self._is_owed = False
        self.cadence = self._cadence(None)

    def is_due(self, step: int) -> bool:
        """Whether a save is due after this number of steps."""
        return step != self.saved_step and (self._is_owed or self._has_interval_passed(step))

    @property
    def next_step(self) -> float:
        """The step at which the next save is due; infinite if saves depend only on time."""
        every = self.cadence.every_steps
        return math.inf if every is None else (self.saved_step // every + 1) * every

    @property
    def seconds_to_next(self) -> float:
        """Seconds until the next save is due; infinite if saves depend only on steps."""
        seconds = self.cadence.interval_seconds
        return math.inf if seconds is None else self._saved_at + seconds - self._clock.monotonic()

    def request(self, step: int) -> None:
        """Make a save due now, unless a save of this step was already submitted."""
        self._is_owed = self._is_owed or step != self.saved_step

    def delay(self) -> None:
        """Record that a due save found no free staging buffer."""
        self.delayed += not self._is_delaying
        self._is_delaying = True

    def submitted(self, step: int) -> None:
        """Record that the state after this step was given to the writer."""
        self._saved_at, self.saved_step = self._clock.monotonic(), step
        self._is_delaying = self._is_owed = False

    def evaluated(self) -> None:
        """Record that the newest save has its metric. The save interval begins now."""
        self._saved_at = self._clock.monotonic()

    def torn(self) -> None:
        """Record that the newest save will not be committed, so that the next step is saved."""
        self._is_owed = True

    def adapt(self, cost: SaveCost | None) -> None:
        """Choose the save interval from the usual cost of a save."""
        before, self.cadence = self.cadence, self._cadence(cost)
        if before.reason != self.cadence.reason:
            log.info("save interval changed interval=%s", self.cadence.reason)

    def _has_interval_passed(self, step: int) -> bool:
        every, seconds = self.cadence.every_steps, self.cadence.interval_seconds
        if every is not None and step // every > self.saved_step // every:
            return True
        return seconds is not None and self._clock.monotonic() - self._saved_at >= seconds

    def _cadence(self, cost: SaveCost | None) -> Cadence:
        spec, life = self._spec, self._life
        if spec.every_steps is not None or spec.every_seconds is not None:
            return as_asked(every_steps=spec.every_steps, every_seconds=spec.every_seconds)
        if life is not None:
            up_seconds = life.up_seconds + self._clock.monotonic() - self._started_at
            life = Life(up_seconds, life.preemptions)
        return interval_seconds(cost, life=life, max_work_at_risk_seconds=spec.max_work_at_risk_seconds)


def life_on(capacity: Capacity, history: History) -> Life | None:
    """The observed lifetime of this capacity; None if the capacity cannot be preempted."""
    if capacity is not Capacity.SPOT:
        return None
    reports = [report for report in history.last_reports() if report.capacity is capacity and report.got_capacity]
    return Life(
        up_seconds=sum(report.seconds for report in reports),
        preemptions=sum(report.stop_reason.is_preemption for report in reports),
    )
