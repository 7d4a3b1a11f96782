"""Resume rehearsal: a fresh process restores the first sealed checkpoint and replays its witness during training."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from segue.errors import RehearsalError
from segue.launch.assignment import Assignment, ExitCode
from segue.records import VerdictKind
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog
from segue.stores.retry import patiently

log = logging.getLogger(__name__)

_OF_FREE_MEMORY = 0.5
"""Share of the free memory that a second copy of the state may take."""


def is_due(assignment: Assignment, history: History, *, ranks: int) -> bool:
    """Whether this attempt should rehearse: no resume of the run was replayed yet, by a rehearsal or by an attempt.

    Runs with several ranks do not rehearse, because it would need as many processes again; nor do programs, because a
    second process would do again all that the program does besides training.
    """
    continuity = assignment.spec.continuity
    if continuity.rehearsal == "off" or not continuity.witness_steps or ranks > 1 or assignment.spec.recipe is None:
        return False
    return not history.drills and not any(entry.verdict.rows_compared for entry in history.resumes)


class ResumeRehearsal:
    """At most one rehearsal per attempt. Its process ends with the trainer."""

    def __init__(self, assignment: Assignment, runlog: RunLog, *, is_due: bool) -> None:
        self._assignment, self._runlog, self._is_due = assignment, runlog, is_due
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, *, state_bytes: int) -> None:
        """Rehearse the resume from the newest sealed checkpoint; the first one may still be being written."""
        if not self._is_due:
            return
        self._is_due = False
        if not _has_room(state_bytes):
            log.warning(
                "resume rehearsal skipped: too little memory for a second copy of the state bytes=%d", state_bytes
            )
            return
        command = [sys.executable, "-m", "segue.trainer.rehearsal_main"]
        env = os.environ | {"SEGUE_REHEARSAL": "1"}
        command.append(str(os.getpid()))
        try:
            with tempfile.TemporaryFile() as file:
                file.write(self._assignment.model_dump_json().encode())
                file.seek(0)
                self._process = subprocess.Popen(command, stdin=file, env=env)
        except OSError as error:
            log.warning("resume rehearsal skipped: its process could not be started reason=%s", error)

    def check(self) -> None:
        """Read the outcome of the rehearsal, if it has ended.

        Raises:
            RehearsalError: a fresh process did not continue the run, and `continuity.rehearsal` is `stop`.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return
        self.close()
        if code != ExitCode.BROKEN:
            return
        drills = patiently(lambda: read_history(self._runlog), what="log").drills
        broken = next((entry.verdict for entry in drills if entry.verdict.kind is VerdictKind.BROKEN), None)
        if broken is not None and self._assignment.spec.continuity.rehearsal == "stop":
            raise RehearsalError(sentence=broken.findings[0].sentence)

    def close(self) -> None:
        """End the rehearsal's process."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()


def _has_room(state_bytes: int) -> bool:
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        free, _ = torch.cuda.mem_get_info()
        if torch.cuda.max_memory_allocated() > _OF_FREE_MEMORY * free:
            return False
    return max(state_bytes, _own_bytes()) <= _OF_FREE_MEMORY * min(_free_bytes(), _left_to_container())


def _own_bytes() -> int:
    """Resident memory of this process: the rehearsal's process loads the same data set."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _free_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf  # This system does not report its free memory.
    kilobytes = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next((1024.0 * found for found in kilobytes), math.inf)


def _left_to_container() -> float:
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return math.inf
    return math.inf if limit == "max" else float(int(limit) - int(used))
