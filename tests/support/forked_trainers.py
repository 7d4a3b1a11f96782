"""Real trainer processes without the seconds of importing torch: forked from a server that has it loaded."""

from __future__ import annotations

import io
import multiprocessing as mp
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from segue.clock import SystemClock
from segue.controller.segment import account_for
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
    """Starts trainers by `multiprocessing`'s fork server; each one is a process of its own that can be killed."""

    def __init__(self) -> None:
        self._context = mp.get_context("forkserver")
        self._context.set_forkserver_preload(list(PRELOADED))

    def start(self, spec: RunSpec, plan: SegmentPlan) -> mp.process.BaseProcess:
        process = self._context.Process(
            target=_be_the_trainer, args=(Assignment(spec=spec, plan=plan).model_dump_json(),), daemon=True
        )
        process.start()
        return process

    def run_attempt(
        self,
        runlog: RunLog,
        spec: RunSpec,
        *,
        observer: Callable[[int, RunLog, SegmentPlan], bool] | None = None,
        limit_seconds: float = 60.0,
    ) -> SegmentReport:
        """Decide and make one attempt; `observer(pid, log, plan)` is called until it says that it has done its work."""
        decision = decide_next(runlog, spec, clock=SystemClock())
        assert decision.plan is not None, decision.reason
        process = self.start(spec, decision.plan)
        give_up_at = time.monotonic() + limit_seconds
        while process.is_alive():
            if observer is not None and observer(process.pid or 0, runlog, decision.plan):
                observer = None
            assert time.monotonic() < give_up_at, "the trainer did not end"
            time.sleep(0.005)
        process.join()
        return account_for(runlog, decision.plan, exit_code=process.exitcode)

    def run_to_the_end(self, runlog: RunLog, spec: RunSpec) -> list[SegmentReport]:
        """Attempt after attempt until the goal is committed."""
        while read_history(runlog).committed_step < spec.steps:
            self.run_attempt(runlog, spec)
        return list(read_history(runlog).last_reports())


def _be_the_trainer(assignment: str) -> None:
    # What `python -m segue.trainer.main` does, with the assignment where that would read it.
    sys.argv = ["segue.trainer.main"]  # Else it would be the test runner's.
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Data workers that are forked from here close it.
    sys.stdin = SimpleNamespace(buffer=io.BytesIO(assignment.encode()), close=lambda: None)  # type: ignore[assignment]
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115 - lives as long as the process
    from segue.trainer import main

    os._exit(main.main())
