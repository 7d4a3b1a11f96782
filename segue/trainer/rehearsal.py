"""Resume rehearsal. During training, a fresh process restores the first sealed checkpoint and replays the witness of
this checkpoint."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable

from segue.clock import Clock
from segue.errors import RehearsalError
from segue.launch.assignment import Assignment, ExitCode
from segue.policy.broken_resumes import is_rehearsal_due, verdict_to_stop
from segue.records import Finding, Verdict, VerdictKind
from segue.runlog.entries import DrillEntry, Entry
from segue.runlog.history import History, read_history
from segue.runlog.log import RunLog, Stamp
from segue.stores.retry import patiently
from segue.trainer.replays.fresh import start
from segue.trainer.replays.replay_process import why_no_room

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05
_NOT_HELD_FIX = "prove a resume with `segue drill` or the verify-resume deployment, on a machine with more memory"
LONGEST_WAIT_SECONDS = 900.0
"""Longest time, in seconds, that a run waits at its goal for an unfinished rehearsal."""


def is_due(assignment: Assignment, history: History, *, ranks: int) -> bool:
    """Whether this attempt should start a resume rehearsal."""
    return is_rehearsal_due(assignment.spec, history, ranks=ranks)


def refuse_after_broken(assignment: Assignment, runlog: RunLog) -> None:
    """Raise an error if the verdict of a rehearsal has ended the run. After such a verdict, nothing is committed.

    Raises:
        RehearsalError: a fresh process could not reproduce the run's steps, and `continuity.rehearsal` is `stop`.
        StoreReadError: the log could not be read.
    """
    broken = verdict_to_stop(assignment.spec, read_history(runlog))
    if broken is not None:
        finding = broken.findings[0]
        raise RehearsalError(sentence=finding.sentence, fix=finding.fix)


class ResumeRehearsal:
    """The rehearsal of one attempt. An attempt has at most one rehearsal. The process of the rehearsal ends when the
    trainer ends."""

    def __init__(self, assignment: Assignment, runlog: RunLog, *, is_due: bool, clock: Clock) -> None:
        self._assignment, self._runlog, self._is_due, self._clock = assignment, runlog, is_due, clock
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self, *, state_bytes: int) -> None:
        """Start a rehearsal of the resume from the newest sealed checkpoint. The writer process may still be writing
        this checkpoint."""
        if not self._is_due:
            return
        self._is_due = False
        if (why := why_no_room(state_bytes)) != "":
            self._note_not_held(why)
            return
        command = [sys.executable, "-m", "segue.trainer.rehearsal_main", str(os.getpid())]
        try:
            self._process = start(command, self._assignment.model_dump_json())
        except OSError as error:
            log.warning("resume rehearsal skipped: its process could not be started reason=%s", error)

    def _note_not_held(self, why: str) -> None:
        """Record in the run's log that the rehearsal did not take place. `segue status` and the run's page show this
        record."""
        log.warning("the resume rehearsal is skipped reason=%s", why)
        newest = patiently(lambda: read_history(self._runlog), what="log").newest
        if newest is None:
            return
        finding = Finding(component="rehearsal", channel="memory", sentence=f"not held: {why}", fix=_NOT_HELD_FIX)
        facts = {"checkpoint": newest.ref, "verdict": Verdict(kind=VerdictKind.UNVERIFIED, findings=(finding,))}

        def build(stamp: Stamp) -> Entry:
            return DrillEntry.model_validate(stamp(epoch=0) | facts | {"seconds": 0.0})

        patiently(lambda: self._runlog.append(build), what="drill")

    def check(self) -> None:
        """Read the outcome of the rehearsal, if it has ended.

        Raises:
            RehearsalError: a fresh process could not reproduce the run's steps, and `continuity.rehearsal` is `stop`.
        """
        if self._process is None or (code := self._process.poll()) is None:
            return
        self.close()
        if code == ExitCode.BROKEN:
            patiently(lambda: refuse_after_broken(self._assignment, self._runlog), what="log")

    def wait(self, *, may_wait: Callable[[], bool]) -> None:
        """Wait until a started rehearsal has ended. The wait has a time limit, and ends if `may_wait` returns False.

        Raises:
            RehearsalError: the conditions are the same as for `check`.
        """
        self.check()
        if self._process is None:
            return
        log.info("waiting for the resume rehearsal, because the run counts as finished only after its verdict")
        give_up_at = self._clock.monotonic() + LONGEST_WAIT_SECONDS
        while self._process is not None and may_wait() and self._clock.monotonic() < give_up_at:
            self._clock.sleep(_LOOK_SECONDS)
            self.check()
        if self._process is not None:
            log.warning("the attempt ended before the resume rehearsal had a verdict")

    def close(self) -> None:
        """Kill the process of the rehearsal."""
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        process.wait()
