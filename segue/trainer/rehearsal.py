"""Resume rehearsal: at the first sealed commit a fresh process restores it and replays, while training goes on."""

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
"""The share of the free memory that a second copy of the state may take."""


def is_due(assignment: Assignment, history: History, *, ranks: int) -> bool:
    """Whether this attempt should hold one: no resume of the run was replayed yet, by a drill or in earnest.

    Several ranks would need as many processes more; their first resume is judged when it comes.
    """
    continuity = assignment.spec.continuity
    if continuity.rehearsal == "off" or not continuity.witness_steps or ranks > 1:
        return False
    return not history.drills and not any(entry.verdict.rows_compared for entry in history.resumes)


class ResumeRehearsal:
    """One rehearsal at most. A trainer that ends takes it along."""

    def __init__(self, assignment: Assignment, runlog: RunLog, *, is_due: bool) -> None:
        self._assignment, self._runlog, self._is_due = assignment, runlog, is_due
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_end = -1

    def begin(self, *, state_bytes: int) -> None:
        """Rehearse the resume from the newest sealed checkpoint; the first may still be on its way."""
        if not self._is_due:
            return
        self._is_due = False
        if not _has_room(state_bytes):
            log.warning("no resume rehearsal: no memory for a second copy of the state bytes=%d", state_bytes)
            return
        command = [sys.executable, "-m", "segue.trainer.rehearsal_main"]
        env = os.environ | {"SEGUE_REHEARSAL": "1"}
        ours, self._owner_end = os.pipe()  # Its other end closes when this process ends, however it ends.
        try:
            with tempfile.TemporaryFile() as file:
                file.write(self._assignment.model_dump_json().encode())
                file.seek(0)
                self._process = subprocess.Popen([*command, str(ours)], stdin=file, pass_fds=[ours], env=env)
        except OSError as error:
            os.close(self._owner_end)
            log.warning("no resume rehearsal: its process could not be started reason=%s", error)
        finally:
            os.close(ours)

    def look(self) -> None:
        """Take note of how it ended, if it did.

        Raises:
            RehearsalError: a fresh process did not continue the run, and the spec says to stop then.
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
        """End it."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
        os.close(self._owner_end)


def _has_room(state_bytes: int) -> bool:
    if torch.cuda.is_available() and torch.cuda.memory_allocated():
        free, _ = torch.cuda.mem_get_info()
        if torch.cuda.max_memory_allocated() > _OF_FREE_MEMORY * free:
            return False
    return max(state_bytes, _own_bytes()) <= _OF_FREE_MEMORY * min(_free_bytes(), _left_to_container())


def _own_bytes() -> int:
    """What this process has in memory: the data set that it has loaded, the other one will load too."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _free_bytes() -> float:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return math.inf  # A system that does not say.
    kilobytes = (int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    return next((1024.0 * found for found in kilobytes), math.inf)


def _left_to_container() -> float:
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = ((folder / name).read_text(encoding="ascii").strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return math.inf
    return math.inf if limit == "max" else float(int(limit) - int(used))
