"""The saves that are submitted but not committed yet. The module measures the cost of the saves and the work at
risk."""

from __future__ import annotations

from dataclasses import dataclass, replace

from segue.checkpoints.saving.committer import Writer
from segue.clock import Clock
from segue.errors import WorkAtRiskError
from segue.policy.save_interval import CostMeter, LastSave, SaveCost, should_save_on_notice
from segue.records import CheckpointRef


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

    def step_done(self, seconds: float) -> None:
        """Record the duration of a step."""
        self._meter.step_done(seconds, writer_busy=self._writer.is_busy)

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
        or after four times the duration of a save, whichever is longer, because the save may be large or the network
        may be slow.
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
