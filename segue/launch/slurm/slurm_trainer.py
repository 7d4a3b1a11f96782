"""Runs a trainer as a Slurm job. A thread submits, watches and signals the job, so no call waits for the controller.

The job does not need this process for training. If this process ends, the job continues, and the store has the
heartbeat, the commits and the report. The job also continues while the controller does not answer. Orders to the job
are then sent later.

A controller that is killed immediately after it has accepted a job forgets the job. A job that Slurm does not know may
therefore still run. An unknown job counts as running, and the run's parent decides by the heartbeat of the attempt.
When the attempt has a report or no longer has a heartbeat, the attempt is over, and the trainer gets a notice. After
the notice, an unknown job counts as ended.
"""

from __future__ import annotations

import logging
import signal
import threading
import uuid
from pathlib import Path

from segue.clock import SystemClock
from segue.launch.assignment import Assignment
from segue.launch.launcher import Ending
from segue.launch.local import DUMP_SIGNAL
from segue.launch.output import OnLine
from segue.launch.slurm.commands import look_at
from segue.launch.slurm.job import SlurmJob
from segue.launch.slurm.job_output import Complaints, OutputTail, complaints_in
from segue.launch.slurm.orders import Orders
from segue.launch.slurm.script import job_name
from segue.launch.slurm.submission import End, Silence, Submission

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.2
_LOOK_SECONDS = 2.0
"""Shortest time between two checks of a job, in seconds, because many users share the controller."""

_COMPLETING_SECONDS = 120.0
"""Seconds after the grace period for which a completing job is watched. Its trainer saves in the grace period."""
_UNKNOWN_SECONDS = 15.0
"""Seconds after which an unknown job that has to end counts as ended."""
_FORGOTTEN_SECONDS = 60.0
"""Seconds after which an unknown job counts as no longer waiting in the queue.

If the job was seen in the queue, the job is gone. If the job was never seen, it may be training.
"""


class SlurmTrainer:
    """A trainer that runs as a Slurm job. The class implements `segue.launch.launcher.Trainer`."""

    def __init__(self, assignment: Assignment, *, on_line: OnLine | None = None) -> None:
        """Begin to submit the job. The call returns immediately."""
        assert assignment.spec.slurm is not None
        self._clock = SystemClock()
        self.name = job_name(assignment, key=uuid.uuid4().hex[:8])
        self.output = Path(assignment.spec.slurm.folder).absolute() / f"{self.name}.out"
        self._silence = Silence(self._clock)
        self._submission = Submission(
            assignment, name=self.name, output=self.output, silence=self._silence, clock=self._clock
        )
        self._orders = Orders(name=self.name, silence=self._silence, clock=self._clock)
        self._watch = JobWatch(self._orders, output=self.output, grace_seconds=assignment.spec.grace_seconds)
        self._tail = OutputTail(self.output, on_line) if on_line is not None else None
        self._end: End | None = None
        self._looked_at = float("-inf")
        self._thread = threading.Thread(target=self._work, name="segue-slurm", daemon=True)
        self._thread.start()

    @property
    def job_id(self) -> str | None:
        """Id of the job. The value is None before the job is submitted."""
        return self._submission.job_id

    @property
    def ending(self) -> Ending | None:
        return self._end.ending if self._end is not None else None

    def poll(self) -> int | None:
        return self._end.code if self._end is not None else None

    def why_waiting(self) -> str | None:
        if self._end is not None:
            return None
        if self.job_id is None:
            return self._submission.in_words
        if self._watch.is_forgotten(self._clock.monotonic()):
            return None  # If the job does not train, it has not begun in time.
        job = self._watch.job
        if job is None or job.is_waiting:
            reason = job.reason if job is not None else ""
            fix = ". Fix: set segment.hours, so that segments end at a checkpoint" if "MaxWall" in reason else ""
            return f"its Slurm job {self.job_id} waits in the queue" + (f" ({reason})" if reason else "") + fix
        return None

    def is_known_to_run(self) -> bool:
        # A controller may report RUNNING for minutes after a node is gone. A trainer reports its own hangs.
        return False

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._orders.give_notice(number)

    def dump_stacks(self) -> None:
        self._orders.send(DUMP_SIGNAL)

    def freeze(self) -> None:
        self._orders.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self._orders.send(signal.SIGCONT)

    def kill(self) -> None:
        self._orders.kill()

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        self._thread.join(timeout_seconds)
        return None if self._thread.is_alive() else self.poll()

    def _work(self) -> None:
        try:
            while self._end is None:
                end = self._turn()
                if end is not None and self.job_id is not None:
                    log.info("%s", end.ending.in_words)
                self._end = end
                self._clock.sleep(_TURN_SECONDS)
        except Exception as error:
            # Catch any exception, because without this thread the wait for the job would never end.
            log.exception("cannot watch the Slurm job any longer job=%s", self.job_id)
            words = f"its Slurm job {self.job_id} cannot be watched ({error})"
            self._end = End(-signal.SIGKILL, Ending(words))
        finally:
            if self._tail is not None:
                self._tail.close()

    def _turn(self) -> End | None:
        job_id, orders = self.job_id, self._orders
        if job_id is None:
            return self._submission.turn(is_told=orders.to_end, is_given_up=orders.is_given_up())
        if self._clock.monotonic() - self._looked_at >= _LOOK_SECONDS:
            end = self._look(job_id)
            self._looked_at = self._clock.monotonic()
            if end is not None:
                return end
        orders.tell(job_id)
        return None

    def _look(self, job_id: str) -> End | None:
        seen, watch = look_at(job_id, name=self.name), self._watch
        at = self._clock.monotonic()
        if seen.job is not None and seen.job.has_ended:
            return watch.ended(job_id, seen.job)
        if self._orders.is_given_up():
            how = "Slurm does not answer" if seen.is_silence else "the job still exists"
            return End(-signal.SIGKILL, Ending(f"its Slurm job {job_id} was cancelled, and {how}"))
        if self._silence.note(seen.is_silence, job=job_id):
            return None
        return watch.seen(job_id, seen.job, at=at) if seen.job is not None else watch.unknown(job_id, at=at)


class JobWatch:
    """The states of one job over time. A job is unknown, waiting, running, completing, or ended."""

    def __init__(self, orders: Orders, *, output: Path, grace_seconds: float) -> None:
        self._orders, self._output = orders, output
        self._completing_seconds = grace_seconds + _COMPLETING_SECONDS
        self.job: SlurmJob | None = None
        """The newest known state of the job. The value is None if the job was never seen."""
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
        """Record a job that has not ended. If the job has been completing for too long, return the end of its
        trainer.
        """
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
        """Record that Slurm does not know the job. Return None if the job may still train, or the end of its
        trainer.
        """
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
