"""The time left at the end of an attempt, and the work that still fits into it. All ranks make the same decision."""

from __future__ import annotations

from segue.checkpoints.saving.committer import Writer
from segue.trainer.process.context import AttemptContext
from segue.trainer.time_left import REPORT_SECONDS, Pace, TimeLeft
from segue.trainer.workloads.components import Progress


class TimeAtEnd:
    """The decision which work still fits after the last counted step of an attempt."""

    def __init__(
        self, context: AttemptContext, progress: Progress, *, time_left: TimeLeft, pace: Pace, writer: Writer
    ) -> None:
        self._context, self._progress, self._time_left = context, progress, time_left
        self._pace, self._writer = pace, writer

    @property
    def patience_seconds(self) -> float:
        """Seconds to wait for a save, by the clock of this rank."""
        return self._time_left.patience_seconds

    def has_patience(self) -> bool:
        """Whether to continue to wait for a save."""
        return self._context.ranks.leader_decides(self.patience_seconds > 0)

    def may_step(self) -> bool:
        """Whether one more step may be made. There must be time for the step, and the run must not be finished."""
        has_time = self._time_left.allows_witness(
            step_seconds=self._pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return self._context.ranks.leader_decides(has_time and not self._progress.is_finished(self._context.spec.steps))

    def may_wait(self) -> bool:
        """Whether the end of the attempt may wait for a rehearsal. It may not wait after a notice or beyond the
        bound."""
        left = self._time_left.bound_seconds_left
        self._context.activity.goes_on()
        return self._context.board.first_kind is None and (left is None or left > REPORT_SECONDS)
