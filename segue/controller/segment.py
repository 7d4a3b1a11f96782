"""One attempt on this machine: its trainer process, the notices that are forwarded to it, and its report."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from functools import partial

from segue.clock import Clock
from segue.controller.standby_agent import Left, StandbyAgent
from segue.controller.steps import declare_lost
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.launcher import Trainer, launch, launch_standby
from segue.records import SegmentPlan, SegmentReport
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.retry import patiently

log = logging.getLogger(__name__)

_POLL_SECONDS = 0.2

OnLine = Callable[[str], None]
"""Called with each line that a trainer writes."""


class NoticeRelay:
    """Forwards termination notices to the trainer, also those that arrived before there was a trainer."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._given: dict[signal.Signals, bool] = {}

    @property
    def is_given(self) -> bool:
        return bool(self._given)

    def give(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Record the notice and forward it, as this signal. Safe from a signal handler."""
        self._given[number] = True
        if self._trainer is not None:
            self._trainer.give_notice(number)

    def attach(self, trainer: Trainer) -> None:
        """Forward notices to this trainer from now on; earlier ones are forwarded at once."""
        self._trainer = trainer
        for number in list(self._given):
            trainer.give_notice(number)


def run_attempt(
    spec: RunSpec,
    plan: SegmentPlan,
    *,
    relay: NoticeRelay,
    look: Callable[[], None],
    clock: Clock,
    on_line: OnLine,
    flow_run_id: str | None = None,
) -> SegmentReport | None:
    """Train the attempt of a plan to its end; return its report, which is in the log.

    None when another process holds the attempt. `look` is called several times a second while it trains.
    """
    trainer = launch(Assignment(spec=spec, plan=plan, flow_run_id=flow_run_id), on_line=on_line)
    return _to_its_end(spec, plan, trainer, relay=relay, look=look, clock=clock)


def run_standby(
    spec: RunSpec,
    standby: str,
    *,
    relay: NoticeRelay,
    look: Callable[[], None],
    clock: Clock,
    on_line: OnLine,
    flow_run_id: str | None = None,
) -> SegmentReport | Left | None:
    """Wait as a standby, then train the attempt that it is assigned; without one, return why it left.

    None when another process holds the attempt.
    """
    runlog = patiently(open_log(spec, clock=clock).reload, what="log")
    boot = partial(launch_standby, spec, on_line=on_line)
    agent = StandbyAgent(runlog, spec, standby, boot=boot, clock=clock, flow_run_id=flow_run_id)

    def why_to_leave() -> str | None:
        look()
        return "the standby was preempted" if relay.is_given else None

    outcome = agent.serve(why_to_leave)
    if isinstance(outcome, Left):
        return outcome
    return _to_its_end(spec, outcome.plan, outcome.trainer, relay=relay, look=look, clock=clock)


def conclude(runlog: RunLog, plan: SegmentPlan, *, exit_code: int | None) -> SegmentReport | None:
    """The report of an attempt whose trainer has ended: its own, or `lost` when it wrote none.

    None when the trainer ended because another process, which may be alive, holds the same attempt.

    Raises:
        StoreWriteError, StoreReadError: the outcome is not known; a retry is safe.
    """
    history = read_history(runlog)
    is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
    if exit_code == ExitCode.FENCED and is_claimed and history.report_of(plan.segment, plan.attempt) is None:
        return None
    return report_or_lost(runlog, plan, exit_code=exit_code)


def report_or_lost(runlog: RunLog, plan: SegmentPlan, *, exit_code: int | None) -> SegmentReport:
    """The report of an attempt whose trainer is gone: its own, or `lost` when it wrote none.

    Raises:
        StoreWriteError, StoreReadError: the outcome is not known; a retry is safe.
    """
    report = read_history(runlog).report_of(plan.segment, plan.attempt)
    return report or declare_lost(runlog, plan, why=f"the trainer {_ended(exit_code)} without a report")


def _to_its_end(
    spec: RunSpec,
    plan: SegmentPlan,
    trainer: Trainer,
    *,
    relay: NoticeRelay,
    look: Callable[[], None],
    clock: Clock,
) -> SegmentReport | None:
    relay.attach(trainer)
    while (code := trainer.poll()) is None:
        clock.sleep(_POLL_SECONDS)
        look()
    trainer.wait()
    runlog = patiently(open_log(spec, clock=clock).reload, what="log")
    return patiently(lambda: conclude(runlog, plan, exit_code=code), what="report")


def _ended(exit_code: int | None) -> str:
    if exit_code is None:
        return "stopped answering"
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
