"""While an attempt runs, it writes heartbeats. When it ends, the attempt reports its return value or exception."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from segue.checkpoints.saving.committer import Writer
from segue.errors import (
    BrokenResumeError,
    FencedError,
    HungRankError,
    PoisonedStepError,
    RankLostError,
    RehearsalError,
    UnreadRecordError,
    WorkAtRiskError,
)
from segue.launch.memory import in_words, limit_bytes, peak_bytes, unreclaimable_bytes
from segue.records import CheckpointRef, CodeFailure, Heartbeat, SegmentReport, StopReason
from segue.runlog.entries import Entry, ReportEntry
from segue.runlog.history import read_history
from segue.runlog.log import Stamp
from segue.spec import RunSpec
from segue.stores.base import StoreReadError, StoreWriteError
from segue.stores.retry import patiently
from segue.trainer.health.failures import failure_of, stop_reason, without_traceback
from segue.trainer.health.watchdog import Captured
from segue.trainer.process.context import AttemptContext
from segue.trainer.safe_points import StopRule
from segue.trainer.saving import Saving
from segue.trainer.step_records import StepRecords
from segue.trainer.time_left import REPORT_SECONDS, Pace, TimeLeft
from segue.trainer.workloads.components import Progress
from segue.user_objects import text_of

log = logging.getLogger(__name__)

_ON_NOTICE = (StopReason.NOTICE, StopReason.BOUND)


@dataclass(kw_only=True)
class AttemptReporter:
    """An object that makes the heartbeats and the final report of an attempt. The object changes no training state."""

    context: AttemptContext
    progress: Progress
    pace: Pace
    time_left: TimeLeft
    stop_rule: StopRule
    saving: Saving
    writer: Writer
    records: StepRecords
    is_ending: bool = False
    from_step: int = field(init=False)

    def __post_init__(self) -> None:
        self.from_step = self.progress.step

    def heartbeat(self, counter: int) -> Heartbeat:
        """Make the heartbeat with this counter. The heartbeat thread calls this method."""
        self.context.kills.look(self.context.clock.monotonic())
        last_commit, has_trained = self.writer.last_commit, self.progress.step > self.from_step + 1
        return Heartbeat(
            attempt_id=self.context.claim.attempt_id,
            counter=counter,
            phase="stopping" if self.is_ending else "training" if has_trained else "restoring",
            step=self.progress.step,
            loss=self.records.loss,
            step_seconds=self.pace.step_seconds,
            last_commit_step=last_commit.step if last_commit else None,
            ends_in_seconds=self.stop_rule.seconds_to_planned_end(),
            phase_seconds=self.context.activity.phase_seconds(),
            trainer_pid=os.getpid(),
            cadence=self.saving.schedule.cadence.reason,
            saves_delayed=self.saving.schedule.delayed,
            trouble=self.writer.trouble,
            peak_memory_bytes=peak_bytes(),
            memory_bytes=unreclaimable_bytes(),
            memory_limit_bytes=self.context.memory_limit_bytes,
            zone=self.context.board.zone or "",
            slowness=self.pace.times.slowness,
            slow_ranks=self.pace.rank_times.slow,
            rows=self.records.witness.unsealed_rows(),
            beat_at=self.context.clock.now(),
        )

    def report(
        self, reason: StopReason, *, failure: CodeFailure | None = None, note: str | None = None
    ) -> SegmentReport:
        """Make the attempt's report from the current state. This method writes nothing.

        Raises:
            StoreReadError: this rank is not the leader and could not read the log.
        """
        checkpoint = self._last_commit()
        kept = checkpoint.step if checkpoint else self.from_step
        save = self.saving.in_flight.usual
        return SegmentReport(
            segment=self.context.plan.segment,
            attempt=self.context.plan.attempt,
            attempt_id=self.context.claim.attempt_id,
            capacity=self.context.plan.capacity,
            stop_reason=reason,
            from_step=self.from_step,
            to_step=self.progress.step,
            checkpoint=checkpoint,
            samples_seen=self.progress.samples_seen,
            lost_steps=self.progress.step - kept,
            seconds=self.time_left.seconds,
            phase_seconds=self.context.activity.phase_seconds(),
            train_seconds=self.pace.train_seconds,
            train_steps=self.pace.train_steps,
            startup_seconds=(self.pace.first_step_at or self.context.clock.monotonic()) - self.context.started_at,
            save_seconds=save.save_seconds if save else None,
            save_cost_seconds=save.cost_seconds if save else None,
            zone=self.context.board.zone or "",
            median_step_seconds=self.pace.times.median_seconds,
            slowness=self.pace.times.slowness,
            slow_ranks=self.pace.rank_times.slow,
            leaves_machine=self.pace.leaves_machine,
            notice=self.context.board.read(),
            failure=failure,
            peak_memory_bytes=peak_bytes(),
            note=_with_memory(note, reason),
            finish_reason=self.progress.finish_reason if reason is StopReason.FINISHED else None,
        )

    def append(self, report: SegmentReport) -> SegmentReport:
        """If this rank is the reporting rank, write the report to the run's log. Return the report.

        Raises:
            FencedError: a newer claim exists.
        """
        append_report(self.context, report)
        return report

    def _last_commit(self) -> CheckpointRef | None:
        if self.context.group.ranks.is_leader:
            return self.writer.last_commit
        # Only the leader commits. If another rank reports in place of the leader, it reads the commits from the log.
        history = read_history(patiently(self.context.runlog.reload, what="log"))
        attempt = history.attempt_of(self.context.plan.segment, self.context.plan.attempt)
        return attempt.commits[-1] if attempt is not None and attempt.commits else None


class CapturedWork(Captured):
    """The captured state of an attempt, for the watchdog. The watchdog may end an attempt while the training thread
    runs the user's code."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        saving: Saving,
        writer: Writer,
        reporter: AttemptReporter,
        call_hook: Callable[[], None],
    ) -> None:
        """`call_hook` calls the recipe's `on_notice`, with a time limit."""
        self._spec, self._saving, self._writer, self._reporter = spec, saving, writer, reporter
        self._call_hook = call_hook

    @property
    def is_all(self) -> bool:
        """Whether all work so far would survive the end of the attempt."""
        return self._saving.is_all_captured

    def commit(self, limit_seconds: float) -> None:
        """Let the writer commit the captured state, and wait for the commit for at most `limit_seconds`.

        Raises:
            FencedError, StoreWriteError: the error with which the writer failed.
        """
        self._saving.commit_captured(limit_seconds)
        self._call_hook()

    def release(self) -> None:
        """Let the writer commit the pending save without its metric. The call returns immediately."""
        self._saving.release_metric()

    def report_ended(self, reason: StopReason, failure: CodeFailure | None, note: str | None) -> None:
        """Write the report of an attempt that the watchdog ends.

        Raises:
            FencedError: a newer claim exists.
        """
        last, progress = self._writer.last_commit, self._reporter.progress
        is_at_goal = progress.is_finished(self._spec.steps) and last is not None and last.step == progress.step
        if reason in _ON_NOTICE and is_at_goal and self._spec.program is None:  # The program has yet to end by itself.
            reason = StopReason.FINISHED
        report = self._reporter.report(reason, failure=failure, note=note)
        # When a rank is gone, torchrun sends a signal to the other ranks. This is not a notice from the provider.
        self._reporter.append(report.model_copy(update={"notice": None}) if reason is StopReason.LOST else report)


def append_report(context: AttemptContext, report: SegmentReport) -> None:
    """If this rank is the reporting rank, write an attempt's report to the run's log.

    If the write fails, the failure is logged, and the controller later declares the attempt lost.

    Raises:
        FencedError: a newer claim exists.
    """
    context.activity.keep_out()  # Only the thread that ends the attempt reports.
    if not context.group.reports:
        return
    runlog, claim = context.runlog, context.claim

    def build(stamp: Stamp) -> Entry:
        return ReportEntry.model_validate(stamp(epoch=claim.epoch) | {"report": report})

    try:
        patiently(lambda: runlog.append(build, epoch=claim.epoch), what="report")
        context.activity.is_reported = True
    except (StoreWriteError, StoreReadError) as error:
        log.error("report not written reason=%s", error)


def starting(context: AttemptContext, counter: int) -> Heartbeat:
    """Make a heartbeat while the attempt still builds and restores."""
    return Heartbeat(
        attempt_id=context.claim.attempt_id,
        counter=counter,
        phase="starting",
        step=0,
        phase_seconds=context.activity.phase_seconds(),
        trainer_pid=os.getpid(),
        beat_at=context.clock.now(),
    )


def report_without_training(context: AttemptContext, reason: StopReason, error: BaseException) -> SegmentReport:
    """Report an attempt that an error ended before its first step. Only the reporting rank writes to the run's log.

    Raises:
        FencedError: a newer claim exists, and `reason` is not `fenced`.
    """
    failure = None if reason in (StopReason.FENCED, StopReason.LOST) else failure_of(error)
    return report_ended(context, reason, failure, text_of(error))


def report_ended(
    context: AttemptContext, reason: StopReason, failure: CodeFailure | None, note: str | None
) -> SegmentReport:
    """Report an attempt that ended before its first step. Only the reporting rank writes to the run's log.

    Raises:
        FencedError: a newer claim exists, and `reason` is not `fenced`.
    """
    plan = context.plan
    step = plan.parent.step if plan.parent else 0
    report = SegmentReport(
        segment=plan.segment,
        attempt=plan.attempt,
        attempt_id=context.claim.attempt_id,
        capacity=plan.capacity,
        stop_reason=reason,
        from_step=step,
        to_step=step,
        seconds=context.seconds,
        phase_seconds=context.activity.phase_seconds(),
        startup_seconds=context.seconds,
        zone=context.board.zone or "",
        notice=context.board.read() if reason is not StopReason.LOST else None,
        failure=failure,
        peak_memory_bytes=peak_bytes(),
        note=_with_memory(note, reason),
    )
    if reason is not StopReason.FENCED:
        append_report(context, report)
    return report


def _with_memory(note: str | None, reason: StopReason) -> str | None:
    """Return the note. If memory ran out, add the memory use and the limit to the note."""
    if reason is not StopReason.OUT_OF_MEMORY:
        return note
    return "; ".join(part for part in (note, in_words(peak_bytes(), limit_bytes())) if part)


class AttemptEnd:
    """The object that reports how one attempt ended."""

    def __init__(self, context: AttemptContext, *, reporter: AttemptReporter, writer: Writer) -> None:
        self._context, self._reporter, self._writer = context, reporter, writer

    def reported(self, train: Callable[[], StopReason], *, log_level: int) -> SegmentReport:
        """Call `train`, then make and write the report of its return value or exception.

        `log_level` is the level at which an exception of the user's code is logged.

        Raises:
            BrokenResumeError: the log has the verdict and the report.
            StoreReadError, StoreWriteError, UnreadRecordError, WorkAtRiskError: no report was written.
        """
        try:
            return self._reported(train, log_level=log_level)
        except FencedError as error:  # The report of an attempt that ended for another reason may also raise this.
            log.warning("attempt fenced reason=%s", error)
            return self._reporter.report(StopReason.FENCED, note=str(error))

    def _reported(self, train: Callable[[], StopReason], *, log_level: int) -> SegmentReport:
        try:
            return self._reporter.append(self._reporter.report(train(), note=self._writer.trouble))
        except FencedError:
            raise
        except BrokenResumeError as error:
            self._reporter.append(self._reporter.report(StopReason.FAILED, failure=failure_of(error), note=str(error)))
            raise
        except PoisonedStepError as error:
            report = self._reporter.report(StopReason.FAILED, failure=failure_of(error), note=self._writer.trouble)
            return self._reporter.append(report.model_copy(update={"anomaly": error.anomaly}))
        except RankLostError as error:
            # The ended rank's part of a save will never be durable, so there is nothing to wait for.
            self._context.activity.ending()
            self._writer.give_up()
            report = self._reporter.report(StopReason.LOST, note=str(error))
            # When a rank is gone, torchrun sends a signal to the other ranks. This signal is not a notice from the
            # provider.
            return self._reporter.append(report.model_copy(update={"notice": None}))
        except (StoreReadError, StoreWriteError, UnreadRecordError, WorkAtRiskError):
            raise  # A fault of the storage, not of the recipe: without a report, the attempt is declared lost.
        except (Exception, SystemExit) as error:
            # The user's code raised an exception in a step, a transform or a metric. The state may be half changed, so
            # it is not saved. Saves that the writer already has are complete and may still be committed.
            refusal = without_traceback(error)
            if refusal is not None:
                log.log(log_level, "the attempt ends step=%d reason=%s", self._reporter.progress.step, refusal)
            else:
                log.log(log_level, "the training code raised step=%d", self._reporter.progress.step, exc_info=error)
            return self._failed(refusal or error)

    def _failed(self, error: BaseException) -> SegmentReport:
        self._context.activity.ending()
        if isinstance(error, RehearsalError):
            self._writer.give_up()  # Nothing is committed after that verdict.
        else:
            # A rank that hangs may never write its part of a save.
            seconds = REPORT_SECONDS if isinstance(error, HungRankError) else self._context.spec.grace_seconds
            try:
                self._writer.wait(seconds)
            except RuntimeError as of_writer:
                # If a device fails in a step, the copy for the save before the step fails too. The report must name the
                # step.
                log.warning("the last save could not be completed reason=%s", of_writer)
        reason = stop_reason(error, kills_before=self._context.kills.before)
        return self._reporter.append(self._reporter.report(reason, failure=failure_of(error)))
