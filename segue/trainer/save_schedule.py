"""The schedule of saves, and the saves that are submitted but not committed yet. A save is due after the interval of
the spec, after the interval with the lowest cost, or on request."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from segue.checkpoints.saving.committer import Writer
from segue.clock import Clock
from segue.errors import WorkAtRiskError
from segue.policy.save_interval import (
    Cadence,
    CostMeter,
    LastSave,
    Life,
    SaveCost,
    as_asked,
    interval_seconds,
    should_save_on_notice,
)
from segue.records import Capacity, CheckpointRef
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
        """Let a save become due now, unless a save of this step was already submitted."""
        self._is_owed = self._is_owed or step != self.saved_step

    def delay(self) -> None:
        """Record that no staging buffer was free for a due save."""
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


@dataclass(frozen=True)
class _Submitted:
    """A save that the writer has not committed yet."""

    at_seconds: float
    stall_seconds: float
    evaluate_seconds: float = 0.0


class SavesInFlight:
    """The submitted saves of one attempt. Only the thread of the training loop uses this object, at safe points."""

    def __init__(self, writer: Writer, *, allowed_seconds: float, clock: Clock) -> None:
        """`allowed_seconds` is the longest permitted time between two commits."""
        self._writer, self._allowed_seconds, self._clock = writer, allowed_seconds, clock
        self._safe_at = clock.monotonic()
        self._submitted: dict[int, _Submitted] = {}
        self._seen: CheckpointRef | None = None
        self._meter = CostMeter()

    def submitted(self, step: int, *, stall_seconds: float) -> None:
        """Record that the writer has the state after this step, and that training paused for `stall_seconds`."""
        self._submitted[step] = _Submitted(self._clock.monotonic(), stall_seconds)

    def evaluated(self, step: int, seconds: float) -> None:
        """Record that the metric for the save of this step took `seconds`."""
        submitted = self._submitted.get(step)
        if submitted is not None:
            self._submitted[step] = replace(submitted, evaluate_seconds=seconds)

    def torn(self) -> None:
        """Record that the newest save will not be committed, because its state changed during the copy."""
        self._submitted.pop(max(self._submitted, default=0), None)

    def step_done(self, seconds: float, *, is_beside_save: bool) -> None:
        """Record the duration of a step. `is_beside_save` states whether a save was being written during the step."""
        self._meter.step_done(seconds, writer_busy=is_beside_save)

    @property
    def usual(self) -> SaveCost | None:
        """Usual cost of a save; None before the first commit, and on ranks that do not commit."""
        self.look()
        return self._meter.estimate

    def look(self) -> bool:
        """Record the newest commit. Return False if this commit is already known."""
        last = self._writer.last
        if last is None or last.ref == self._seen:
            return False
        self._seen = last.ref
        submitted = self._submitted[last.ref.step]
        self._submitted = {step: kept for step, kept in self._submitted.items() if step > last.ref.step}
        self._safe_at = submitted.at_seconds
        self._meter.save_done(
            submitted.stall_seconds,
            last.save_seconds,
            last.size_bytes,
            evaluate_seconds=submitted.evaluate_seconds,
        )
        return True

    def refuse_risk(self) -> None:
        """Raise WorkAtRiskError if more work is uncommitted than allowed, and further waiting is unlikely to help.

        If the store has refused the save so far, waiting ends after half the allowed time, because the interval before
        the save may have used the other half. If the store has not answered, waiting ends after twice the allowed time
        or four times the duration of a save, whichever is longer: the save may be large, or the network may be slow.
        """
        now, allowed = self._clock.monotonic(), self._allowed_seconds
        if not self._submitted or now - self._safe_at <= allowed:
            return
        waiting = now - min(each.at_seconds for each in self._submitted.values())
        trouble = self._writer.trouble
        if waiting > (allowed / 2 if trouble else max(2 * allowed, 4 * (self._meter.save_seconds or 0.0))):
            why = trouble or f"the store has neither accepted nor refused the save for {waiting:.0f} s."
            raise WorkAtRiskError(at_risk_seconds=now - self._safe_at, allowed_seconds=allowed, why=why)

    def on_notice(self, *, seconds_left: float) -> LastSave:
        """Decide whether one last save fits into the time until the preemption."""
        self.look()
        in_flight = None
        if self._submitted and self._meter.save_seconds is not None:
            passed = self._clock.monotonic() - max(each.at_seconds for each in self._submitted.values())
            in_flight = max(self._meter.save_seconds - passed, 0.0)
        return should_save_on_notice(
            size_bytes=self._writer.last_size_bytes,
            bytes_per_second=self._meter.bytes_per_second,
            save_seconds=self._meter.save_seconds,
            seconds_left=seconds_left,
            in_flight_seconds_left=in_flight,
        )
