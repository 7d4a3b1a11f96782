"""One attempt on the machine this is on: its trainer process, the notices passed on to it, and what became of it."""

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
"""Takes each line that a trainer writes."""


class NoticeRelay:
    """Passes a termination notice on to the trainer, also one that came before there was a trainer."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._given = False

    @property
    def is_given(self) -> bool:
        return self._given

    def give(self) -> None:
        """Note the notice and pass it on. Safe from a signal handler."""
        self._given = True
        if self._trainer is not None:
            self._trainer.give_notice()

    def attach(self, trainer: Trainer) -> None:
        """From now on notices go to this trainer; one that came before goes at once."""
        self._trainer = trainer
        if self._given:
            trainer.give_notice()


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
    """Train the attempt of a plan to its end; its report, which is in the log, or None when another process has it.

    `look` is called several times a second while it trains.
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
    """Wait as a standby, then train the attempt that it is given; why it left when it was given none."""
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
    """The report of an attempt whose trainer has ended: its own, or `lost` when it left none.

    None when the trainer left because another process, which may well be alive, has this very attempt.

    Raises:
        StoreWriteError, StoreReadError: not known; trying again is safe.
    """
    history = read_history(runlog)
    is_claimed = history.attempt_of(plan.segment, plan.attempt) is not None
    if exit_code == ExitCode.FENCED and is_claimed and history.report_of(plan.segment, plan.attempt) is None:
        return None
    return account_for(runlog, plan, exit_code=exit_code)


def account_for(runlog: RunLog, plan: SegmentPlan, *, exit_code: int | None) -> SegmentReport:
    """The report of an attempt whose trainer is gone: its own, or `lost` when it left none.

    Raises:
        StoreWriteError, StoreReadError: not known; trying again is safe.
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
        return "went silent"
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
