"""What a test does to a trainer while it watches its log."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from segue.records import SegmentPlan
from segue.runlog.history import read_history
from segue.runlog.log import RunLog


def stop_when_proven(number: int, rows: int = 1) -> Callable[[int, RunLog, SegmentPlan], bool]:
    """Send this signal to the trainer once its newest checkpoint can be verified by this many rows.

    The trainer is stopped while its log is read: otherwise it commits another checkpoint before the signal comes. Of
    one that is killed the writer process ends first, as with its machine: otherwise it may commit another one, too.
    """

    def observer(pid: int, runlog: RunLog, plan: SegmentPlan) -> bool:
        if not _can_be_verified(runlog, rows):
            return False
        try:
            trainer = psutil.Process(pid)
            _stop(trainer)
            helpers = trainer.children(recursive=True) if number == signal.SIGKILL else []
            for each in helpers:
                with suppress(psutil.NoSuchProcess):
                    _stop(each)
            is_proven = _can_be_verified(runlog, rows)
            for each in helpers:
                with suppress(psutil.NoSuchProcess):
                    each.kill() if is_proven else each.resume()
            if is_proven:
                os.kill(pid, number)
            os.kill(pid, signal.SIGCONT)
        except (psutil.NoSuchProcess, ProcessLookupError):
            return False  # It ended by itself.
        return is_proven

    return observer


def _stop(process: psutil.Process) -> None:
    """Stop all threads: one that is within a system call, such as the link of a commit, stops only after the call."""
    process.suspend()
    threads = Path(f"/proc/{process.pid}/task")
    while any(_state(thread) not in "TtZX" for thread in threads.glob("*/stat")):
        time.sleep(0.001)


def _state(stat: Path) -> str:
    try:
        return stat.read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _can_be_verified(runlog: RunLog, rows: int) -> bool:
    newest = read_history(runlog).newest
    return newest is not None and len(newest.rows) >= rows
