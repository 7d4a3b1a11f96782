"""Runs one attempt on this machine: starts the trainer process, forwards notices, and writes the report."""

from __future__ import annotations

import logging
import signal
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, Self

from segue.clock import Clock
from segue.controller.attempt_ends import declare_as, declare_lost, declare_unfit
from segue.controller.continuation import NextTrainer, await_plan, keeps_machine
from segue.controller.standbys.agent import Left, StandbyAgent
from segue.controller.steps import CANCELLED
from segue.controller.supervision import supervising
from segue.controller.waiting.queue_wait import QueueReporter
from segue.controller.waiting.start_records import note_start
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.early import launch_soonest
from segue.launch.launcher import Ending, Trainer, pid_of
from segue.launch.memory import RecentKills
from segue.launch.output import LastLines, OnLine
from segue.launch.registry import launch_standby
from segue.policy.starts import StartNumbers
from segue.records import CodeFailure, Notice, SegmentPlan, SegmentReport, StopReason
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.runlog.open import open_log
from segue.spec import RunSpec
from segue.stores.retry import OUTAGE_SECONDS, patiently

log = logging.getLogger(__name__)

_POLL_SECONDS, _SOON_SECONDS = 0.2, 0.05
_HUNG = "no thread of the trainer ran any more; the stacks of its threads are in the logs of its flow run"
_CRASHES = (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL)

_patiently = partial(patiently, patience_seconds=OUTAGE_SECONDS)
"""Retry an operation while the store is unreachable.

After the trainer's end, the segment can wait for the store, because it only has to write the report.
"""


class Requests(Protocol):
    """The requests of an orchestrator to a running segment."""

    def look(self) -> None:
        """Forward a requested cancellation. The method is called several times a second and must not block."""
        ...

    def was_cancelled(self) -> bool:
        """Whether a person cancelled this segment. The method is called once, after a notice has ended the trainer."""
        ...


@dataclass(frozen=True)
class TrainerEnd:
    """Describes how a trainer process ended."""

    exit_code: int | None
    """The exit code of the process, or None if it is not known."""
    was_out_of_memory: bool = False
    """Whether the kernel killed one of the trainer's processes because memory ran out."""
    evidence: str | None = None
    """The evidence that the kernel killed a process on this machine because memory ran out."""
    elsewhere: Ending | None = None
    """The trainer's end in the launcher's report, if the trainer was on another machine."""
    notice: Notice | None = None
    """The notice that the segment forwarded to the trainer. A trainer without a report has not answered the notice."""
    printed: str = ""
    """The last lines that the trainer printed about the cause of its end."""

    @classmethod
    def of(cls, exit_code: int, *, kills: RecentKills, elsewhere: Ending | None = None) -> Self:
        """Return the end of a trainer with this exit code.

        `kills` has read the kernel's counters while the trainer ran on this machine.
        """
        if elsewhere is not None:
            return cls(exit_code, elsewhere.was_out_of_memory, elsewhere=elsewhere)
        evidence = kills.evidence(was_killed=exit_code == -signal.SIGKILL)
        return cls(exit_code, evidence is not None, evidence)

    @property
    def had_machine(self) -> bool:
        return self.elsewhere is None or self.elsewhere.had_machine

    @property
    def was_refused(self) -> bool:
        return self.elsewhere is not None and self.elsewhere.was_refused

    @property
    def reason(self) -> StopReason:
        """The stop reason of an attempt whose trainer ended without a report."""
        if self.was_out_of_memory or self.exit_code == ExitCode.OUT_OF_MEMORY:
            return StopReason.OUT_OF_MEMORY
        if self.elsewhere is not None and self.elsewhere.refusal is not None:
            return StopReason.FAILED
        return StopReason.HUNG if self.exit_code == ExitCode.HUNG else StopReason.LOST

    @property
    def failure(self) -> CodeFailure | None:
        """The reason why the trainer can never start as requested, or None if it can start."""
        refusal = self.elsewhere.refusal if self.elsewhere is not None else None
        return None if refusal is None else CodeFailure(type=type(refusal).__name__, message=str(refusal), traceback="")

    @property
    def why(self) -> str:
        """The note for the report of a trainer that wrote no report itself."""
        printed = f"; it printed: {self.printed}" if self.printed and self._crashed else ""
        if self.elsewhere is None:
            return f"the trainer {self.in_words} without a report{printed}"
        if not self.elsewhere.had_machine:
            return self.elsewhere.in_words
        return f"{self.elsewhere.in_words} without a report{printed}"

    @property
    def _crashed(self) -> bool:
        """Whether the code of the trainer ended the process."""
        return self.exit_code is not None and (self.exit_code > 0 or -self.exit_code in _CRASHES)

    @property
    def in_words(self) -> str:
        if self.was_out_of_memory:
            return f"was killed, most likely because memory ran out ({self.evidence}),"
        if self.exit_code is None:
            return "stopped answering"
        if self.exit_code >= 0:
            return f"exited with code {self.exit_code}"
        try:
            return f"was killed by {signal.Signals(-self.exit_code).name}"
        except ValueError:
            return f"was killed by signal {-self.exit_code}"


class NoticeRelay:
    """Forwards notices to the trainer, including notices that arrived before the trainer started."""

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._given: dict[signal.Signals, bool] = {}

    @property
    def is_given(self) -> bool:
        return bool(self._given)

    def given(self) -> list[signal.Signals]:
        """The notices that have arrived so far."""
        return list(self._given)

    def give(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Record the notice and forward it as the given signal. A signal handler may call this method."""
        self._given[number] = True
        if self._trainer is not None:
            self._trainer.give_notice(number)

    def attach(self, trainer: Trainer) -> None:
        """Forward later notices to the given trainer. Forward earlier notices at once."""
        self._trainer = trainer
        for number in self.given():
            trainer.give_notice(number)


def run_attempt(
    spec: RunSpec,
    plan: SegmentPlan,
    *,
    relay: NoticeRelay,
    requests: Requests,
    clock: Clock,
    on_line: OnLine,
    flow_run_id: str | None = None,
) -> SegmentReport | None:
    """Train the attempt of a plan. After a planned end, also train the next attempt.

    The function returns the last report in the log, or None if another process holds the attempt.
    """
    lines = LastLines(on_line)
    trainer = launch_soonest(Assignment(spec=spec, plan=plan, flow_run_id=flow_run_id), on_line=lines)
    segment = _Segment(spec, relay=relay, requests=requests, clock=clock, lines=lines, flow_run_id=flow_run_id)
    return segment.train(plan, trainer)


def run_standby(
    spec: RunSpec,
    standby: str,
    *,
    relay: NoticeRelay,
    requests: Requests,
    clock: Clock,
    on_line: OnLine,
    flow_run_id: str | None = None,
) -> SegmentReport | Left | None:
    """Wait as a standby, then train the assigned attempt like `run_attempt`.

    If no attempt is assigned, return the reason why the standby left. Return None if another process holds the
    attempt.
    """
    runlog = _patiently(lambda: open_log(spec, clock=clock).reload(), what="log")
    lines = LastLines(on_line)
    boot = partial(launch_standby, spec, on_line=lines)
    agent = StandbyAgent(runlog, spec, standby, boot=boot, clock=clock, flow_run_id=flow_run_id)

    def why_to_leave() -> str | None:
        requests.look()
        return "the standby was preempted" if relay.is_given else None

    outcome = agent.serve(why_to_leave)
    if isinstance(outcome, Left):
        return outcome
    segment = _Segment(spec, relay=relay, requests=requests, clock=clock, lines=lines, flow_run_id=flow_run_id)
    return segment.train(outcome.plan, outcome.trainer)


def conclude(
    runlog: RunLog, plan: SegmentPlan, end: TrainerEnd, *, flow_run_id: str | None = None
) -> SegmentReport | None:
    """Return the report of an attempt whose trainer has ended.

    If the trainer wrote no report, the function writes a report from `end`. The function returns None if another
    process, which may be alive, holds the attempt. Either the trainer ended because of the other process, or a start
    with another `flow_run_id` has claimed the attempt or may still claim it.

    Raises:
        StoreWriteError, StoreReadError: the outcome is not known. It is safe to call the function again.
    """
    history = read_history(runlog)
    if not _is_anothers(history, plan, end, flow_run_id):
        return report_or_lost(runlog, plan, end)
    is_open = history.attempt_of(plan.segment, plan.attempt) is None
    if is_open and plan.pools and history.report_of(plan.segment, plan.attempt) is None:
        # Another pool may still provide a machine. If no pool does, the parent quotes this reason.
        number = StartNumbers.of(plan).first_on(plan.deployment)
        note_start(runlog, plan, number, "start_failed", seconds=0.0, why=end.why)
    return None


def _is_anothers(history: History, plan: SegmentPlan, end: TrainerEnd, flow_run_id: str | None) -> bool:
    attempt, report = history.attempt_of(plan.segment, plan.attempt), history.report_of(plan.segment, plan.attempt)
    if attempt is None:
        is_slow_start = end.reason is StopReason.LOST and bool(history.starts_of(plan.segment, plan.attempt))
        return report is None and (bool(plan.pools) or is_slow_start)
    claimed_by = attempt.claim.flow_run_id
    is_by_another = None not in (flow_run_id, claimed_by) and claimed_by != flow_run_id
    return is_by_another or (report is None and end.exit_code == ExitCode.FENCED)


def report_or_lost(runlog: RunLog, plan: SegmentPlan, end: TrainerEnd) -> SegmentReport:
    """Return the report of an attempt whose trainer has ended.

    If the trainer wrote no report, the function writes a report from `end`.

    Raises:
        StoreWriteError, StoreReadError: the outcome is not known. It is safe to call the function again.
    """
    history = read_history(runlog)
    report = history.report_of(plan.segment, plan.attempt) or declare_unfit(runlog, plan, history)
    if report is not None:
        return report
    # The launcher may not have observed that the trainer ran.
    had_machine = history.attempt_of(plan.segment, plan.attempt) is not None or end.had_machine
    if not had_machine and end.was_refused:
        return declare_lost(runlog, plan, why=end.why, reason=StopReason.NO_CAPACITY, was_refused=True)
    return declare_lost(
        runlog,
        plan,
        why=end.why,
        reason=end.reason,
        got_capacity=had_machine,
        failure=end.failure,
        notice=end.notice,
    )


class _Segment:
    """The attempts that this machine trains one after the other, each after the planned end of the previous attempt."""

    def __init__(
        self,
        spec: RunSpec,
        *,
        relay: NoticeRelay,
        requests: Requests,
        clock: Clock,
        lines: LastLines,
        flow_run_id: str | None,
    ) -> None:
        self._spec, self._relay, self._requests, self._clock = spec, relay, requests, clock
        self._lines, self._flow_run_id = lines, flow_run_id

    def train(self, plan: SegmentPlan, trainer: Trainer) -> SegmentReport | None:
        """Train attempts until an attempt ends before its planned end or no further plan comes.

        Return the last report.
        """
        while True:
            with closing(NextTrainer(partial(launch_standby, self._spec, on_line=self._lines))) as next_trainer:
                report = self._to_its_end(plan, trainer, next_trainer)
                following = self._plan_after(plan, report, next_trainer)
                if following is None:
                    return report
                log.info("the machine is kept for the next segment segment=%d", following.segment)
                made = Assignment(spec=self._spec, plan=following, flow_run_id=self._flow_run_id)
                plan, trainer = following, next_trainer.start(made)

    def _plan_after(
        self, plan: SegmentPlan, report: SegmentReport | None, next_trainer: NextTrainer
    ) -> SegmentPlan | None:
        if report is None or not keeps_machine(plan, report) or self._relay.is_given:
            return None
        next_trainer.prepare()
        runlog = _patiently(lambda: open_log(self._spec, clock=self._clock).reload(), what="log")
        return await_plan(runlog, self._spec, plan, is_called_off=self._is_called_off, clock=self._clock)

    def _is_called_off(self) -> bool:
        self._requests.look()
        return self._relay.is_given

    def _to_its_end(self, plan: SegmentPlan, trainer: Trainer, next_trainer: NextTrainer) -> SegmentReport | None:
        spec, clock = self._spec, self._clock
        self._relay.attach(trainer)
        kills, queue = RecentKills(pid_of(trainer)), QueueReporter(spec, plan, clock=clock)
        with supervising(
            spec, plan, trainer, notices=self._relay.given, give_notice=self._relay.give, clock=clock
        ) as supervision:
            while (code := trainer.poll()) is None:
                clock.sleep(_POLL_SECONDS if not supervision.is_end_near else _SOON_SECONDS)
                kills.look(clock.monotonic())
                queue.look(trainer.why_waiting())
                self._requests.look()
                if supervision.is_end_near and not self._relay.is_given:
                    next_trainer.prepare()
        end = replace(TrainerEnd.of(code, kills=kills, elsewhere=trainer.ending), notice=supervision.notice)
        trainer.wait()
        end = replace(end, printed=self._lines.why())
        runlog = _patiently(lambda: open_log(spec, clock=clock).reload(), what="log")
        report = _patiently(lambda: conclude(runlog, plan, end, flow_run_id=self._flow_run_id), what="report")
        if report is None:
            return None
        if report.stop_reason is StopReason.NOTICE and self._requests.was_cancelled():
            return _patiently(lambda: declare_as(runlog, plan, StopReason.CANCELLED, why=CANCELLED), what="report")
        if report.stop_reason is StopReason.LOST and supervision.was_hung:
            return _patiently(lambda: declare_as(runlog, plan, StopReason.HUNG, why=_HUNG), what="report")
        return report
