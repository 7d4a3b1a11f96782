"""The end of an attempt. The return value or the exception of the training becomes the report."""

from __future__ import annotations

import logging
from collections.abc import Callable

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
from segue.records import SegmentReport, StopReason
from segue.stores.base import StoreReadError, StoreWriteError
from segue.trainer.health.failures import failure_of, stop_reason, without_traceback
from segue.trainer.process.context import AttemptContext
from segue.trainer.reporting import AttemptReporter
from segue.trainer.time_left import REPORT_SECONDS

log = logging.getLogger(__name__)


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
