"""The results of job checks. The module decides when these results mean the end of the trainer."""

from __future__ import annotations

import logging
import signal
from pathlib import Path

from segue.launch.launcher import Ending
from segue.launch.slurm.job import SlurmJob
from segue.launch.slurm.job_output import Complaints, complaints_in
from segue.launch.slurm.orders import Orders
from segue.launch.slurm.submission import End

log = logging.getLogger(__name__)

_COMPLETING_SECONDS = 120.0
"""Seconds for which a completing job is still watched. The grace period, in which the trainer of the job saves, is
added to this time."""
_UNKNOWN_SECONDS = 15.0
"""If a job was asked to end and is unknown for this many seconds, it counts as ended."""
_FORGOTTEN_SECONDS = 60.0
"""Seconds after which an unknown job no longer waits in a queue. If the job was seen in the queue, the job is gone. If
the job was never seen, it may be training."""


class JobWatch:
    """The states of one job over time. A job is unknown, waiting, running, completing, or ended."""

    def __init__(self, orders: Orders, *, output: Path, grace_seconds: float) -> None:
        self._orders, self._output = orders, output
        self._completing_seconds = grace_seconds + _COMPLETING_SECONDS
        self.job: SlurmJob | None = None
        """The newest known state of the job; None if the job was never seen."""
        self._unknown_since: float | None = None
        self._completing_since: float | None = None

    def is_forgotten(self, at: float) -> bool:
        """Whether the job has been unknown for so long that it no longer waits in a queue."""
        return self._unknown_since is not None and at - self._unknown_since >= _FORGOTTEN_SECONDS

    def ended(self, job_id: str, job: SlurmJob) -> End:
        """Return the end of the trainer of an ended job."""
        found = complaints_in(self._output) if job.state == "FAILED" else Complaints()
        words = f"its Slurm job {job_id} {job.in_words}" + (f" ({found.last})" if found.last else "")
        ending = Ending(
            words,
            job.was_out_of_memory or found.is_memory,
            had_machine=job.had_nodes(self.job),
            was_refused=job.was_taken_away and not self._orders.to_end,
        )
        return End(job.trainer_code, ending)

    def seen(self, job_id: str, job: SlurmJob, *, at: float) -> End | None:
        """Record a job that has not ended. If the job has been completing for too long, return the end of the
        trainer."""
        self._unknown_since = None
        if self.job is None or self.job.state != job.state:
            log.info("Slurm job %s: %s %s", job_id, job.state, job.reason)
        self.job = job
        self._completing_since = (self._completing_since or at) if job.state == "COMPLETING" else None
        if self._completing_since is None or at - self._completing_since < self._completing_seconds:
            return None
        words = f"its Slurm job {job_id} has ended, and its nodes are being cleaned up"
        return End(-signal.SIGKILL, Ending(words, complaints_in(self._output).is_memory))

    def unknown(self, job_id: str, *, at: float) -> End | None:
        """Record that Slurm does not know the job. Return the end of the trainer, unless the controller may have
        forgotten a job that trains."""
        if self._unknown_since is None:
            self._unknown_since = at
            log.warning("Slurm does not know the job job=%s; the heartbeat of its trainer decides", job_id)
        was_waiting = self.job is not None and self.job.is_waiting
        if self.is_forgotten(at) and was_waiting:
            words = f"Slurm has forgotten its job {job_id}, which waited in the queue"
            return End(-signal.SIGKILL, Ending(words, had_machine=False, was_refused=not self._orders.to_end))
        if self._orders.were_heard and at - self._unknown_since >= _UNKNOWN_SECONDS:
            has_run = self.job is not None and not was_waiting
            words = f"its Slurm job {job_id} is no longer known to Slurm"
            return End(-signal.SIGKILL, Ending(words, had_machine=has_run))
        return None
