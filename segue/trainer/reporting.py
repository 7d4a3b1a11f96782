"""What an attempt says of itself: signs of life while it works, and a report at its end."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from segue.checkpoints.saving.committer import Writer
from segue.clock import Clock
from segue.continuity.witness import Witness
from segue.notices.board import NoticeBoard
from segue.records import CheckpointRef, CodeFailure, Heartbeat, SegmentPlan, SegmentReport, StopReason
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores.retry import patiently
from segue.trainer.claim import Claim
from segue.trainer.ranks.group import RankGroup
from segue.trainer.reports import append_report
from segue.trainer.saving import Saving
from segue.trainer.state import Progress
from segue.trainer.time_left import Pace, TimeLeft


@dataclass(kw_only=True)
class Account:
    """Of one attempt. It looks on, and changes nothing."""

    plan: SegmentPlan
    claim: Claim
    runlog: RunLog
    group: RankGroup
    progress: Progress
    pace: Pace
    time_left: TimeLeft
    saving: Saving
    writer: Writer
    witness: Witness
    board: NoticeBoard
    clock: Clock
    started_at: float
    loss: float | None = None
    """Of the newest step."""
    is_ending: bool = False
    from_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.from_step = self.progress.step

    def heartbeat(self, counter: int) -> Heartbeat:
        """A sign of life; called from the heartbeat's thread."""
        last_commit = self.writer.last_commit
        return Heartbeat(
            attempt_id=self.claim.attempt_id,
            counter=counter,
            phase="stopping" if self.is_ending else "training" if self.pace.train_steps else "restoring",
            step=self.progress.step,
            loss=self.loss,
            step_seconds=self.pace.step_seconds,
            last_commit_step=last_commit.step if last_commit else None,
            trainer_pid=os.getpid(),
            cadence=self.saving.cadence.reason,
            saves_delayed=self.saving.delayed,
            trouble=self.writer.trouble,
            rows=self.witness.rows_after(last_commit.step) if last_commit else (),
            beat_at=self.clock.now(),
        )

    def report(
        self, reason: StopReason, *, failure: CodeFailure | None = None, note: str | None = None
    ) -> SegmentReport:
        """What happened, as of now; nothing is written.

        Raises:
            StoreReadError: on a rank that does not lead, the log stayed out of reach.
        """
        checkpoint = self._last_commit()
        kept = checkpoint.step if checkpoint else self.from_step
        save = self.saving.usual
        return SegmentReport(
            segment=self.plan.segment,
            attempt=self.plan.attempt,
            attempt_id=self.claim.attempt_id,
            capacity=self.plan.capacity,
            stop_reason=reason,
            from_step=self.from_step,
            to_step=self.progress.step,
            checkpoint=checkpoint,
            samples_seen=self.progress.samples_seen,
            lost_steps=self.progress.step - kept,
            seconds=self.time_left.seconds,
            train_seconds=self.pace.train_seconds,
            train_steps=self.pace.train_steps,
            startup_seconds=(self.pace.first_step_at or self.clock.monotonic()) - self.started_at,
            save_seconds=save.save_seconds if save else None,
            save_cost_seconds=save.cost_seconds if save else None,
            notice=self.board.read(),
            failure=failure,
            note=note,
        )

    def append(self, report: SegmentReport) -> SegmentReport:
        """Put the report into the log, if it is this rank that reports; returns it.

        Raises:
            FencedError: a newer claim exists.
        """
        if self.group.reports:
            append_report(self.runlog, self.claim, report)
        return report

    def _last_commit(self) -> CheckpointRef | None:
        if self.group.ranks.is_leader:
            return self.writer.last_commit
        # Only the leader commits; another rank reports in its place, and the log knows.
        history = read_history(patiently(self.runlog.reload, what="log"))
        attempt = history.attempt_of(self.plan.segment, self.plan.attempt)
        return attempt.commits[-1] if attempt is not None and attempt.commits else None
