"""A run on this machine alone: the same log, decisions and trainer process, without Prefect."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable

from segue.clock import Clock, SystemClock
from segue.controller.steps import decide_next, declare_lost
from segue.controller.wait import await_report
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.launcher import Trainer, launch
from segue.policy.decide import Decision
from segue.records import SegmentPlan, SegmentReport
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

Watch = Callable[[Trainer, RunLog, SegmentPlan], None]
"""Called again and again while an attempt runs; may send it signals."""

_POLL_SECONDS = 0.02


def run_here(
    spec: RunSpec,
    runlog: RunLog,
    *,
    watch: Watch | None = None,
    on_line: Callable[[str], None] | None = None,
    clock: Clock | None = None,
) -> Decision:
    """Decide and train, attempt after attempt, until a decision ends the run; returns that one.

    A trainer still running when this is left by an exception is killed: it belongs to this call.

    Raises:
        StoreWriteError, StoreReadError: the log cannot be kept.
    """
    clock = clock or SystemClock()
    while True:
        decision = decide_next(runlog, spec, clock=clock)
        if decision.plan is None:
            return decision
        trainer = launch(Assignment(spec=spec, plan=decision.plan), on_line=on_line)
        try:
            while trainer.poll() is None:
                if watch is not None:
                    watch(trainer, runlog, decision.plan)
                clock.sleep(_POLL_SECONDS)
        finally:
            if trainer.poll() is None:
                trainer.kill()
            code = trainer.wait()
        if is_held_by_another(runlog, decision.plan, exit_code=code):
            report = await_report(runlog, spec, decision.plan, child=_NobodyToAsk(), clock=clock)
        else:
            report = account_for(runlog, decision.plan, exit_code=code)
        log.info("attempt ended segment=%d reason=%s", report.segment, report.stop_reason)


class _NobodyToAsk:
    """There is no orchestrator here; the heartbeat alone tells."""

    def ended_as(self) -> str | None:
        return None

    def cancel(self, why: str) -> None:
        return

    def mark_lost(self, why: str) -> None:
        return


def is_held_by_another(runlog: RunLog, plan: SegmentPlan, *, exit_code: int | None) -> bool:
    """Whether our trainer left because another process has this very attempt, which may well be alive."""
    history = read_history(runlog)
    is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
    return exit_code == ExitCode.FENCED and is_claimed and history.report_of(plan.segment, plan.attempt) is None


def account_for(runlog: RunLog, plan: SegmentPlan, *, exit_code: int | None) -> SegmentReport:
    """The report of an attempt whose trainer has ended: its own, or `lost` when it left none.

    Raises:
        StoreWriteError, StoreReadError: not known; trying again is safe.
    """
    report = read_history(runlog).report_of(plan.segment, plan.attempt)
    return report or declare_lost(runlog, plan, why=f"the trainer {end_in_words(exit_code)} without a report")


def end_in_words(exit_code: int | None) -> str:
    """How a process ended, for people."""
    if exit_code is None:
        return "went silent"
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
