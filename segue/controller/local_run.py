"""Drives a run on this machine alone.

The log, the parent loop and the wait are those of a run under Prefect. The only pool is this machine.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import closing

from segue.clock import Clock, SystemClock
from segue.controller.attempt_ends import settle_verdict
from segue.controller.parent import drive
from segue.controller.segment import TrainerEnd, conclude
from segue.controller.steps import decide_next
from segue.controller.waiting.attempt_starts import Submitted
from segue.controller.waiting.back_off import back_off
from segue.controller.waiting.wait import Period, await_report
from segue.launch.assignment import Assignment
from segue.launch.launcher import Trainer, pid_of
from segue.launch.memory import RecentKills
from segue.launch.output import OnLine
from segue.launch.registry import launch
from segue.policy.decide import Decision
from segue.policy.queueing import Queues
from segue.records import SegmentPlan, SegmentReport, StopReason, Verdict
from segue.runlog.log import RunLog
from segue.spec import RunSpec

log = logging.getLogger(__name__)

Watch = Callable[[Trainer, RunLog, SegmentPlan], None]
"""A function that is called repeatedly during an attempt, and that may send signals to the trainer."""

Before = Callable[[], None]
"""A function that is called before each attempt, after the last process of the previous attempt has ended."""

_PERIOD = Period(poll_seconds=0.02, ask_seconds=0.0, patience_seconds=60.0)


def run_here(
    spec: RunSpec,
    runlog: RunLog,
    *,
    watch: Watch | None = None,
    before: Before | None = None,
    on_line: OnLine | None = None,
    clock: Clock | None = None,
) -> Decision:
    """Decide and train, attempt after attempt, until a decision ends the run. Return the last decision.

    If the function raises an exception, it first kills a trainer that still runs.

    Raises:
        StoreWriteError, StoreReadError: the log cannot be read or written.
    """
    clock = clock or SystemClock()
    with closing(_ChildProcesses(runlog, watch=watch, on_line=on_line)) as processes:
        return drive(_Steps(spec, runlog, processes, clock, before=before)).decision


class _Steps:
    """The steps of a parent as plain function calls, without Prefect."""

    def __init__(
        self, spec: RunSpec, runlog: RunLog, processes: _ChildProcesses, clock: Clock, *, before: Before | None
    ) -> None:
        self._spec, self._runlog, self._processes, self._clock = spec, runlog, processes, clock
        self._before = before

    def decide(self) -> Decision:
        return decide_next(self._runlog, self._spec, clock=self._clock)

    def run(self, plan: SegmentPlan) -> SegmentReport:
        plan = plan.model_copy(update={"pools": ()})  # This machine is the only pool.
        back_off(self._runlog, plan, clock=self._clock)
        if self._before is not None:
            self._before()
        handle = self._processes.submit(self._spec, plan)
        submitted = Submitted(plan, self._processes, handle)
        report = await_report(self._runlog, self._spec, submitted, clock=self._clock, period=_PERIOD)
        self._processes.finish(self._spec.grace_seconds if report.stop_reason is not StopReason.LOST else 0.0)
        log.info("attempt ended segment=%d reason=%s", report.segment, report.stop_reason)
        return report

    def judge(self, report: SegmentReport) -> Verdict | None:
        return settle_verdict(self._runlog, report)


class _ChildProcesses:
    """An orchestrator without standbys. Its only pool is this machine."""

    def __init__(self, runlog: RunLog, *, watch: Watch | None, on_line: OnLine | None) -> None:
        self._runlog, self._watch, self._on_line = runlog, watch, on_line
        self._running: tuple[Trainer, SegmentPlan] | None = None
        self._kills = RecentKills()
        self._begun_at = 0.0

    def submit(self, spec: RunSpec, plan: SegmentPlan) -> str:
        trainer = launch(Assignment(spec=spec, plan=plan), on_line=self._on_line)
        self._kills = RecentKills(pid_of(trainer))
        self._running, self._begun_at = (trainer, plan), SystemClock().monotonic()
        return f"{plan.segment}:{plan.attempt}"

    def submit_standby(self, spec: RunSpec, standby: str, *, deployment: str) -> str | None:
        return None

    def state(self, handle: str) -> str | None:
        """Return the final state of a trainer, as in `Orchestrator`.

        The result is also None if the trainer ended because another process holds the attempt. The heartbeat of the
        process that holds the attempt shows whether the attempt is alive.

        Raises:
            StoreWriteError, StoreReadError: the report could not be written. It is safe to call the method again.
        """
        if self._running is None:
            return None
        trainer, plan = self._running
        code = trainer.poll()
        if code is None:
            self._kills.look(SystemClock().monotonic())
            if self._watch is not None:
                self._watch(trainer, self._runlog, plan)
            return None
        trainer.wait()
        end = TrainerEnd.of(code, kills=self._kills, elsewhere=trainer.ending)
        report = conclude(self._runlog, plan, end)
        self._running = None
        return "Completed" if report is not None else None

    def is_running(self, handle: str) -> bool:
        return self._running is not None and self.why_waiting(handle) is None

    def starting_seconds(self, handle: str) -> float | None:
        return SystemClock().monotonic() - self._begun_at if self.is_running(handle) else None

    def flow_run_id(self, handle: str) -> str | None:
        return None

    def submit_again(self, spec: RunSpec, plan: SegmentPlan, number: int) -> str | None:
        return None  # This machine is the only pool.

    def why_waiting(self, handle: str) -> str | None:
        return self._running[0].why_waiting() if self._running is not None else None

    def queues(self, spec: RunSpec, handle: str) -> Queues | None:
        return None

    def refusal(self, handle: str) -> str | None:
        return None

    def was_cancelled(self, handle: str) -> bool:
        return False

    def cancel(self, handle: str, why: str, *, reason: StopReason | None = StopReason.CANCELLED) -> None:
        self.close()

    def cancel_standby(self, handle: str, why: str) -> None:
        return

    def mark_lost(self, handle: str, why: str) -> None:
        self.close()

    def finish(self, patience_seconds: float) -> None:
        """Wait for the end of a trainer that has written its report. Kill the trainer if it does not end in time."""
        if self._running is not None:
            self._running[0].wait(patience_seconds)
        self.close()

    def close(self) -> None:
        """Kill the trainer if it still runs."""
        if self._running is None:
            return
        (trainer, _), self._running = self._running, None
        if trainer.poll() is None:
            trainer.kill()
        trainer.wait()
