"""A trainer that is a Slurm job: submitted, watched and signalled by a thread, so that no call waits for a controller.

The job needs none of this to train. When the process that submitted it ends, it goes on; heartbeat, commits and report
are in the store. While the controller is away, it goes on too, and what it is to be told is told later.

A job that Slurm does not know is not one that has ended: a controller that is killed right after it accepted a job
forgets it. Such a job counts as running, and its heartbeat decides, which the run's parent reads. Once the attempt is
over, by its own report or without a heartbeat, the trainer gets a notice; a job that is unknown then counts as ended.
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
from segue.launch.slurm.commands import ask, look_at
from segue.launch.slurm.job import SlurmJob
from segue.launch.slurm.output import Complaints, OutputTail, complaints_in
from segue.launch.slurm.script import job_name
from segue.launch.slurm.submission import Silence, Submission

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.2
_LOOK_SECONDS = 2.0
"""Shortest time between two looks at a job: every look is a request to a controller that many share."""
_REPEAT_SECONDS = 5.0
"""A notice is sent again until the job ends: a job that boots its nodes has no step yet that could get it."""
_COMPLETING_SECONDS = 120.0
"""How long a job is watched that has ended and is cleaned up, beyond the grace period in which its trainer saves."""
_UNKNOWN_SECONDS = 15.0
"""How long a job must be unknown until it counts as ended, once it was told to end."""
_FORGOTTEN_SECONDS = 60.0
"""After that an unknown job does not wait in a queue any more. One that was seen there is gone; one that was never seen
may train."""
_GIVE_UP_SECONDS = 300.0
"""How long after its kill a job is watched of which nothing is known."""


class SlurmTrainer:
    """The trainer of an assignment, as a job. Implements `segue.launch.launcher.Trainer`."""

    def __init__(self, assignment: Assignment, *, on_line: OnLine | None = None) -> None:
        """Start to submit it; returns at once."""
        assert assignment.spec.slurm is not None
        self._clock = SystemClock()
        self.name = job_name(assignment, key=uuid.uuid4().hex[:8])
        self.output = Path(assignment.spec.slurm.folder).absolute() / f"{self.name}.out"
        self._silence = Silence(self._clock)
        self._submission = Submission(
            assignment, name=self.name, output=self.output, silence=self._silence, clock=self._clock
        )
        self._tail = OutputTail(self.output, on_line) if on_line is not None else None
        self._job: SlurmJob | None = None
        self._code: int | None = None
        self._ending: Ending | None = None
        # Signal handlers and other threads write to these, and never take a lock.
        self._notices: dict[signal.Signals, bool] = {}
        self._signals: list[signal.Signals] = []
        self._is_killed = False
        self._sent: dict[signal.Signals, float] = {}
        """When each notice was sent last."""
        self._looked_at = self._tell_at = float("-inf")
        self._unknown_since: float | None = None
        self._killed_at: float | None = None
        self._completing_since: float | None = None
        self._completing_seconds = assignment.spec.grace_seconds + _COMPLETING_SECONDS
        self._was_cancelled = False
        self._thread = threading.Thread(target=self._work, name="segue-slurm", daemon=True)
        self._thread.start()

    @property
    def job_id(self) -> str | None:
        """The id of its job; None until it is submitted."""
        return self._submission.job_id

    @property
    def ending(self) -> Ending | None:
        return self._ending

    def poll(self) -> int | None:
        return self._code

    def why_waiting(self) -> str | None:
        if self._code is not None:
            return None
        if self.job_id is None:
            return self._submission.in_words
        if self._is_forgotten():
            return None  # If it does not train, it has not begun in time.
        if self._job is None or self._job.is_waiting:
            reason = self._job.reason if self._job is not None else ""
            fix = ". Fix: set segment.hours, so that segments end at a checkpoint" if "MaxWall" in reason else ""
            return f"its Slurm job {self.job_id} waits in the queue" + (f" ({reason})" if reason else "") + fix
        return None

    def is_known_to_run(self) -> bool:
        # A controller says RUNNING for minutes about a node that is gone. A trainer reports its own hangs.
        return False

    def give_notice(self, number: signal.Signals = signal.SIGTERM) -> None:
        self._notices[number] = True

    def dump_stacks(self) -> None:
        self._signals.append(DUMP_SIGNAL)

    def freeze(self) -> None:
        self._signals.append(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signals.append(signal.SIGCONT)

    def kill(self) -> None:
        self._is_killed = True

    def wait(self, timeout_seconds: float | None = None) -> int | None:
        self._thread.join(timeout_seconds)
        return None if self._thread.is_alive() else self._code

    def _work(self) -> None:
        try:
            while self._code is None:
                self._turn()
                self._clock.sleep(_TURN_SECONDS)
        except Exception as error:
            # Any exception: without this thread nothing would ever end the wait for the job.
            log.exception("the Slurm job is watched no longer job=%s", self.job_id)
            self._end(-signal.SIGKILL, Ending(f"its Slurm job {self.job_id} cannot be watched ({error})"))
        finally:
            if self._tail is not None:
                self._tail.close()

    def _turn(self) -> None:
        job_id = self.job_id
        if job_id is None:
            end = self._submission.turn(is_told=self._is_told, is_given_up=self._is_given_up())
            if end is not None:
                self._end(*end)
            return
        at = self._clock.monotonic()
        if at - self._looked_at >= _LOOK_SECONDS:
            self._look(job_id)
            self._looked_at = self._clock.monotonic()
        if self._code is None and at >= self._tell_at:
            self._tell(job_id)

    def _look(self, job_id: str) -> None:
        seen = look_at(job_id, name=self.name)
        at = self._clock.monotonic()
        if seen.job is not None and seen.job.has_ended:
            self._conclude(job_id, seen.job)
            return
        if self._is_given_up():
            how = "Slurm does not answer" if seen.is_silence else "it is still there"
            self._end(-signal.SIGKILL, Ending(f"its Slurm job {job_id} was cancelled, and {how}"))
            return
        if self._note_silence(seen.is_silence):
            return
        if seen.job is None:
            self._note_unknown(job_id, at)
            return
        self._unknown_since = None
        if self._job is None or self._job.state != seen.job.state:
            log.info("Slurm job %s: %s %s", job_id, seen.job.state, seen.job.reason)
        self._job = seen.job
        self._completing_since = (self._completing_since or at) if seen.job.state == "COMPLETING" else None
        if self._completing_since is not None and at - self._completing_since >= self._completing_seconds:
            words = f"its Slurm job {job_id} has ended, and its nodes are being cleaned up"
            self._end(-signal.SIGKILL, Ending(words, complaints_in(self.output).is_memory))

    def _conclude(self, job_id: str, job: SlurmJob) -> None:
        found = complaints_in(self.output) if job.state == "FAILED" else Complaints()
        words = f"its Slurm job {job_id} {job.in_words}" + (f" ({found.last})" if found.last else "")
        self._end(
            job.trainer_code,
            Ending(
                words,
                job.was_out_of_memory or found.is_memory,
                had_machine=job.had_nodes(self._job),
                was_refused=job.was_taken_away and not self._is_told,
            ),
        )

    @property
    def _is_told(self) -> bool:
        """Whether it was told to end, also where Slurm has not heard of that yet."""
        return bool(self._notices) or self._is_killed

    def _is_given_up(self) -> bool:
        """Whether its kill is so long ago that Slurm is waited for no longer."""
        at = self._clock.monotonic()
        if self._is_killed and self._killed_at is None:
            self._killed_at = at
        return self._killed_at is not None and at - self._killed_at > _GIVE_UP_SECONDS

    def _note_silence(self, is_silent: bool) -> bool:
        return self._silence.note(is_silent, job=self.job_id)

    def _note_unknown(self, job_id: str, at: float) -> None:
        if self._unknown_since is None:
            self._unknown_since = at
            log.warning("Slurm does not know the job job=%s; its trainer's heartbeat decides", job_id)
        if self._is_forgotten() and self._job is not None and self._job.is_waiting:
            words = f"Slurm has forgotten its job {job_id}, which waited in the queue"
            self._end(-signal.SIGKILL, Ending(words, had_machine=False, was_refused=not self._is_told))
            return
        was_sent = bool(self._sent) or self._was_cancelled
        if was_sent and at - self._unknown_since >= _UNKNOWN_SECONDS:
            has_run = self._job is not None and not self._job.is_waiting
            words = f"its Slurm job {job_id} is not known to Slurm any more"
            self._end(-signal.SIGKILL, Ending(words, had_machine=has_run))

    def _is_forgotten(self) -> bool:
        since = self._unknown_since
        return since is not None and self._clock.monotonic() - since >= _FORGOTTEN_SECONDS

    def _tell(self, job_id: str) -> None:
        """Send what was asked for. What the controller does not take is sent again."""
        # By id and name: an id that the controller forgot may be another job's by now.
        scancel = ["scancel", f"--name={self.name}"]
        if self._is_killed and not self._was_cancelled:
            if self._sent or not self._notices:
                # The step at once, as a machine that vanishes would end it. The job's own end is a notice first, which
                # is right where no notice has reached the trainer yet, because the controller was away.
                ask([*scancel, "--signal=KILL", f"{job_id}.0"])
            self._was_cancelled = self._is_heard([*scancel, job_id])
            return
        at = self._clock.monotonic()
        for number in list(self._notices):
            if number in self._sent and at - self._sent[number] < _REPEAT_SECONDS:
                continue
            # A job that waits gets no signal.
            is_new = number not in self._sent
            if is_new and not self._is_heard([*scancel, "--state=PENDING", job_id]):
                return
            if not self._is_heard([*scancel, f"--signal={number.name}", job_id]):
                return
            self._sent[number] = at
        while self._signals:
            answer = ask([*scancel, f"--signal={self._signals[0].name}", job_id])
            if self._note_silence(answer.is_silence):
                return
            self._signals.pop(0)  # A job that does not take it now, because it waits or is suspended, needs none.

    def _is_heard(self, command: list[str]) -> bool:
        """Tell the controller; whether it took that. Otherwise it is told again, after a while."""
        answer = ask(command)
        if not self._note_silence(answer.is_silence) and not answer.was_heard:
            log.warning("scancel failed and is run again job=%s reason=%s", self.job_id, answer.why)
        if not answer.was_heard:
            self._tell_at = self._clock.monotonic() + _LOOK_SECONDS
        return answer.was_heard

    def _end(self, code: int, ending: Ending) -> None:
        if self.job_id is not None:
            log.info("%s", ending.in_words)
        self._ending, self._code = ending, code
