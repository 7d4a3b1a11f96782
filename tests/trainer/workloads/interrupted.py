"""A run that is killed or preempted once, and the same run undisturbed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.records import StopReason, VerdictKind
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.spec import RunSpec
from tests.support.final_states import state_at_end
from tests.support.forked_trainers import ForkServer


def killed_once(fork_server: ForkServer, spec: RunSpec, *, at: int, rows: int) -> History:
    """Run the recipe, which hangs once at `hang_at` and is killed there, and end it in a second attempt.

    Its file `once` must not be there yet. The kill waits until so many rows follow the checkpoint of step `at`.
    """
    once = Path(spec.config["once"])

    def kill(pid: int, runlog: RunLog, _: object) -> bool:
        newest = read_history(runlog).newest
        if not once.exists() or newest is None or newest.ref.step != at or len(newest.rows) < rows:
            return False
        os.kill(pid, signal.SIGKILL)
        return True

    runlog = open_run(spec, clock=SystemClock())
    lost = fork_server.run_attempt(runlog, spec, observer=kill)
    assert lost.stop_reason is StopReason.LOST, lost.failure
    report = fork_server.run_attempt(runlog, spec)
    assert report.failure is None, report.failure
    assert (report.stop_reason, report.note, report.from_step) == (StopReason.FINISHED, None, at)
    return read_history(runlog.reload())


def undisturbed(fork_server: ForkServer, spec: RunSpec) -> History:
    """The same run, under another id, without the hang."""
    whole = spec.model_copy(
        update={"run_id": f"{spec.run_id}-whole", "config": {n: v for n, v in spec.config.items() if n != "hang_at"}}
    )
    runlog = open_run(whole, clock=SystemClock())
    report = fork_server.run_attempt(runlog, whole)
    assert (report.stop_reason, report.failure) == (StopReason.FINISHED, None)
    return read_history(runlog.reload())


def assert_exact(history: History, whole: History, *, rows: int) -> None:
    """The second attempt replayed so many rows, all equal, and ended in the state of the undisturbed run."""
    verdict = history.attempts[1].verdict
    assert verdict is not None
    assert (verdict.kind, verdict.findings, verdict.rows_compared) == (VerdictKind.EXACT, (), rows), verdict.sentence
    assert history.finish_reason == whole.finish_reason
    assert history.committed_step == whole.committed_step
    assert state_at_end(history) == state_at_end(whole)
