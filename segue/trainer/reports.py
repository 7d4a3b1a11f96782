"""The report of an attempt, on its way into the log."""

from __future__ import annotations

import logging
import traceback

from segue.errors import RankFailedError, SegueError
from segue.records import CodeFailure, SegmentReport
from segue.runlog.entries import Entry, ReportEntry
from segue.runlog.log import RunLog, Stamp
from segue.stores.base import StoreReadError, StoreWriteError
from segue.stores.retry import patiently
from segue.trainer.claim import Claim

log = logging.getLogger(__name__)


def append_report(runlog: RunLog, claim: Claim, report: SegmentReport) -> None:
    """Put an attempt's report into the log. A store that does not take it is logged: the controller then says `lost`.

    Raises:
        FencedError: a newer claim exists.
    """

    def build(stamp: Stamp) -> Entry:
        return ReportEntry.model_validate(stamp(epoch=claim.epoch) | {"report": report})

    try:
        patiently(lambda: runlog.append(build, epoch=claim.epoch), what="report")
    except (StoreWriteError, StoreReadError) as error:
        log.error("report not written reason=%s", error)


def failure_of(error: BaseException) -> CodeFailure:
    """What to tell a person: the traceback of their code, the sentence of ours."""
    if isinstance(error, RankFailedError):
        name = f"{error.type_name} on rank {error.rank}"
        return CodeFailure(type=name, message=error.message, traceback=error.traceback)
    shown = str(error) if isinstance(error, SegueError) else traceback.format_exc()
    return CodeFailure(type=type(error).__name__, message=str(error), traceback=shown)
