"""Real trainer processes that start at once: forked from a server that has torch loaded."""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace

from segue.clock import SystemClock
from segue.controller.segment import TrainerEnd, report_or_lost
from segue.controller.steps import decide_next
from segue.launch.assignment import Assignment
from segue.records import SegmentPlan, SegmentReport
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec

PRELOADED = (
    "segue.trainer.attempt",
    "segue.testing.recipes",
    "torch._dynamo",
    "torch.distributed.fsdp",  # For tests of several ranks: there is one fork server for all tests of a process.
)


class ForkServer:
    """Starts trainers with `multiprocessing`'s fork server; each is a separate process that can be killed."""

    def __init__(self) -> None:
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))

    def start(
        self, spec: RunSpec, plan: SegmentPlan, *, environment: Mapping[str, str] | None = None
    ) -> mp.process.BaseProcess:
        """`environment` is added to that of the server, which is the one from when the tests began."""
        assignment = Assignment(spec=spec, plan=plan).model_dump_json()
        process = self._context.Process(target=_be_the_trainer, args=(assignment, dict(environment or {})), daemon=True)
        process.start()
        return process

    def run_attempt(
        self,
        runlog: RunLog,
        spec: RunSpec,
        *,
        observer: Callable[[int, RunLog, SegmentPlan], bool] | None = None,
        limit_seconds: float = 240.0,
        environment: Mapping[str, str] | None = None,
    ) -> SegmentReport:
        """Decide and make one attempt; `observer(pid, log, plan)` is called until it returns True."""
        plan = next_plan(runlog, spec)
        process = self.start(spec, plan, environment=environment)
        observe = None if observer is None else partial(observer, process.pid or 0, runlog, plan)
        watch(process.is_alive, observe, limit_seconds=limit_seconds)
        process.join()
        return report_or_lost(runlog, plan, TrainerEnd(process.exitcode))

    def run_to_the_end(self, runlog: RunLog, spec: RunSpec) -> list[SegmentReport]:
        """Attempt after attempt until the goal is committed."""
        return attempts_to_the_end(runlog, spec, lambda: self.run_attempt(runlog, spec))


def next_plan(runlog: RunLog, spec: RunSpec) -> SegmentPlan:
    """The plan of the run's next attempt; there must be one."""
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.plan is not None, decision.reason
    return decision.plan


def watch(
    is_alive: Callable[[], bool],
    observe: Callable[[], bool] | None,
    *,
    limit_seconds: float,
    describe: Callable[[], str] = lambda: "",
) -> None:
    """Block until an attempt's processes have ended; call `observe` meanwhile until it returns True."""
    give_up_at = time.monotonic() + limit_seconds
    while is_alive():
        if observe is not None and observe():
            observe = None
        assert time.monotonic() < give_up_at, f"the attempt did not end\n{describe()}"
        time.sleep(0.005)


def attempts_to_the_end(runlog: RunLog, spec: RunSpec, attempt: Callable[[], SegmentReport]) -> list[SegmentReport]:
    """Attempt after attempt until the goal is committed; the reports of all."""
    while read_history(runlog).committed_step < spec.steps:
        attempt()
    return list(read_history(runlog).last_reports())


def _be_the_trainer(assignment: str, environment: dict[str, str]) -> None:
    # What `python -m segue.trainer.main` does, with the assignment where that would read it.
    sys.argv = ["segue.trainer.main"]  # Else it would be the test runner's.
    os.setsid()
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Data workers that are forked from here close standard input.
    sys.stdin = SimpleNamespace(buffer=io.BytesIO(assignment.encode()), close=lambda: None)  # type: ignore[assignment]
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as the process
    from segue.trainer import main

    os._exit(main.main())
