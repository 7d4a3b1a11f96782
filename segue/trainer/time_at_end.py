"""The time that is left at the end of an attempt, and what it allows: all ranks decide alike."""

from __future__ import annotations

from segue.checkpoints.saving.committer import Writer
from segue.trainer.process.context import AttemptContext
from segue.trainer.time_left import REPORT_SECONDS, Pace, TimeLeft
from segue.trainer.workloads.components import Progress


class TimeAtEnd:
    """What may still be done once an attempt makes no more steps that count."""

    def __init__(
        self, context: AttemptContext, progress: Progress, *, time_left: TimeLeft, pace: Pace, writer: Writer
    ) -> None:
        self._context, self._progress, self._time_left = context, progress, time_left
        self._pace, self._writer = pace, writer

    @property
    def patience_seconds(self) -> float:
        """How long to wait for a save, by this rank's clock."""
        return self._time_left.patience_seconds

    def has_patience(self) -> bool:
        """Whether to wait for a save any longer."""
        return self._context.ranks.leader_decides(self.patience_seconds > 0)

    def may_step(self) -> bool:
        """Whether a further step leaves enough time, and the run has one."""
        has_time = self._time_left.allows_witness(
            step_seconds=self._pace.step_seconds, save_seconds=self._writer.last_save_seconds
        )
        return self._context.ranks.leader_decides(has_time and not self._progress.is_finished(self._context.spec.steps))

    def may_wait(self) -> bool:
        """Whether the end of the attempt may wait for a rehearsal: not after a notice, and not beyond its bound."""
        left = self._time_left.bound_seconds_left
        self._context.activity.goes_on()
        return self._context.board.first_kind is None and (left is None or left > REPORT_SECONDS)
