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
from segue.errors import SlurmSetupError
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.launcher import Ending
from segue.launch.local import DUMP_SIGNAL
from segue.launch.output import OnLine
from segue.launch.slurm.checks import require_slurm
from segue.launch.slurm.commands import Answer, ask, find_jobs, look_at, submitted_id, waiting_jobs
from segue.launch.slurm.job import Job
from segue.launch.slurm.output import Complaints, OutputTail, complaints_in
from segue.launch.slurm.partition import partition_shown
from segue.launch.slurm.script import batch_script, job_name, older_jobs, partition_of, sbatch_command

log = logging.getLogger(__name__)

_TURN_SECONDS = 0.2
_LOOK_SECONDS = 2.0
"""Shortest time between two looks at a job: every look is a request to a controller that many share."""
_REPEAT_SECONDS = 5.0
"""A notice is sent again until the job ends: a job that boots its nodes has no step yet that could get it."""
_SUBMIT_AGAIN_SECONDS = 30.0
_SILENT_SECONDS = 10.0
"""Time between two tries to submit while the controller does not answer. Some failures to reach it take no time."""
_UNSURE_SECONDS = 60.0
"""How long a submission without an answer may still become a job."""
_COMPLETING_SECONDS = 120.0
"""A job that has ended may be cleaned up for many minutes, longer than its processes can still run."""
_UNKNOWN_SECONDS = 15.0
"""How long a job must be unknown until it counts as ended, once it was told to end."""
_FORGOTTEN_SECONDS = 60.0
"""After that an unknown job does not wait in a queue any more: it trains, or it will never start."""
_GIVE_UP_SECONDS = 300.0
"""How long after its kill a job is watched of which nothing is known."""


class SlurmTrainer:
    """The trainer of an assignment, as a job. Implements `segue.launch.launcher.Trainer`."""

    def __init__(self, assignment: Assignment, *, on_line: OnLine | None = None) -> None:
        """Start to submit it; returns at once."""
        assert assignment.spec.slurm is not None
        self._assignment, self._clock = assignment, SystemClock()
        self.name = job_name(assignment, key=uuid.uuid4().hex[:8])
        self.output = Path(assignment.spec.slurm.folder).absolute() / f"{self.name}.out"
        self._tail = OutputTail(self.output, on_line) if on_line is not None else None
        self._id: str | None = None
        self._job: Job | None = None
        self._code: int | None = None
        self._ending: Ending | None = None
        # Signal handlers and other threads write to these, and never take a lock.
        self._notices: dict[signal.Signals, bool] = {}
        self._signals: list[signal.Signals] = []
        self._is_killed = False
        self._sent: dict[signal.Signals, float] = {}
        """When each notice was sent last."""
        self._looked_at = self._tell_at = float("-inf")
        self._silent_since: float | None = None
        self._unknown_since: float | None = None
        self._killed_at: float | None = None
        self._completing_since: float | None = None
        self._unsure_since: float | None = None
        """Since when it is not known whether its job was submitted; None where it is."""
        self._was_cancelled = self._is_checked = False
        self._refused_because: str | None = None
        self._silent_because = ""
        self._submit_at = float("-inf")
        self._thread = threading.Thread(target=self._work, name="segue-slurm", daemon=True)
        self._thread.start()

    @property
    def job_id(self) -> str | None:
        """The id of its job; None until it is submitted."""
        return self._id

    @property
    def ending(self) -> Ending | None:
        return self._ending

    def poll(self) -> int | None:
        return self._code

    def why_waiting(self) -> str | None:
        if self._code is not None:
            return None
        if self._id is None:
            refused, silent = self._refused_because, self._silent_because
            why = f", which sbatch refuses ({refused})" if refused else ""
            return f"its Slurm job is being submitted{f', but Slurm does not answer ({silent})' if silent else why}"
        if self._is_forgotten():
            return None  # If it does not train, it has not begun in time.
        if self._job is None or self._job.is_waiting:
            reason = self._job.reason if self._job is not None else ""
            fix = ". Fix: set segment.hours, so that segments end at a checkpoint" if "MaxWall" in reason else ""
            return f"its Slurm job {self._id} waits in the queue" + (f" ({reason})" if reason else "") + fix
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
            log.exception("the Slurm job is watched no longer job=%s", self._id)
            self._end(-signal.SIGKILL, Ending(f"its Slurm job {self._id} cannot be watched ({error})"))
        finally:
            if self._tail is not None:
                self._tail.close()

    def _turn(self) -> None:
        if self._id is None:
            self._submit()
            return
        at = self._clock.monotonic()
        if at - self._looked_at >= _LOOK_SECONDS:
            self._look(self._id)
            self._looked_at = self._clock.monotonic()
        if self._code is None and at >= self._tell_at:
            self._tell(self._id)

    def _submit(self) -> None:
        at = self._clock.monotonic()
        if self._unsure_since is not None:
            if at >= self._submit_at:
                self._look_for_submitted(at, self._unsure_since)
            return
        if self._notices or self._is_killed:
            self._end(ExitCode.NOTICE, Ending("it was ended before its Slurm job was submitted", had_machine=False))
            return
        if at < self._submit_at:
            return
        try:
            answer = self._ask_to_run()
        except SlurmSetupError as error:
            self._end(
                ExitCode.USAGE, Ending(f"it was not submitted to Slurm: {error}", had_machine=False, refusal=error)
            )
            return
        job_id = submitted_id(answer.output) if answer.code == 0 else None
        if self._note_silence(answer.is_silence, answer.why):
            self._submit_at = at + _SILENT_SECONDS
        elif answer.code:
            self._note_refusal(answer)
        elif job_id is None:
            self._unsure_since = at
            log.warning("sbatch did not say which job it submitted, it is looked for name=%s", self.name)
        else:
            self._accept(job_id)

    def _look_for_submitted(self, at: float, unsure_since: float) -> None:
        """Look whether the controller has accepted the job although no answer came; it may still be about to."""
        answer, found = find_jobs(self.name)
        self._submit_at = at + _LOOK_SECONDS
        if self._note_silence(answer.is_silence, answer.why):
            self._submit_at = at + _SILENT_SECONDS
            if self._is_given_up():
                words = f"it is not known whether its Slurm job {self.name} was submitted: Slurm does not answer"
                self._end(-signal.SIGKILL, Ending(words))
        elif found:
            if found[1:]:
                ask(["scancel", f"--name={self.name}", *found[1:]])
            self._accept(found[0])
        elif self._notices or self._is_killed:
            ask(["scancel", f"--name={self.name}"])
            words = "it was ended while it was not known whether its Slurm job was submitted"
            self._end(ExitCode.NOTICE, Ending(words, had_machine=False))
        elif at - unsure_since >= _UNSURE_SECONDS:
            self._unsure_since, self._submit_at = None, at

    def _ask_to_run(self) -> Answer:
        """Submit the job, once everything has been checked that would make it wait without end."""
        assignment, plan = self._assignment, self._assignment.plan
        if not self._is_checked and (plan.segment, plan.attempt) == (0, 1):
            require_slurm(assignment.spec)  # Later it was submitted before: what is refused now may pass.
        partition = partition_of(assignment.spec, assignment.plan.capacity)
        shown = ask(["scontrol", "--all", "show", "partition", partition])
        found = partition_shown(shown.output)
        if shown.code or found is None:
            return shown if shown.code else Answer(1, "", "unable to contact slurm controller: no partition")
        try:
            self.output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return Answer(1, "", f"{self.output.parent}: {error.strerror}")
        if not self._is_checked:
            self._cancel_older()
        self._is_checked = True
        command = sbatch_command(assignment, name=self.name, output=self.output, partition=found)
        answer = ask(command, given=batch_script(assignment))
        self._unsure_since = self._clock.monotonic() if answer.is_silence else None
        return answer

    def _cancel_older(self) -> None:
        """Take jobs out of the queue whose segments have died: all they could do is find that they are superseded."""
        older = older_jobs(waiting_jobs(), self._assignment)
        if older:
            log.warning("cancelling jobs of earlier attempts that still wait jobs=%s", ",".join(older))
            ask(["scancel", "--state=PENDING", *older])

    def _note_refusal(self, answer: Answer) -> None:
        """Try again later. What stays refused was found before: this is a limit on jobs, or a cluster that changes."""
        if self._refused_because != answer.why:
            self._refused_because = answer.why
            log.warning("sbatch refuses the job, it is submitted again later reason=%s", answer.why)
        self._submit_at = self._clock.monotonic() + _SUBMIT_AGAIN_SECONDS

    def _accept(self, job_id: str) -> None:
        self._id = job_id
        log.info("submitted to Slurm job=%s name=%s output=%s", job_id, self.name, self.output)

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
        if self._completing_since is not None and at - self._completing_since >= _COMPLETING_SECONDS:
            words = f"its Slurm job {job_id} has ended, and its nodes are being cleaned up"
            self._end(-signal.SIGKILL, Ending(words))

    def _conclude(self, job_id: str, job: Job) -> None:
        found = complaints_in(self.output) if job.state == "FAILED" else Complaints()
        words = f"its Slurm job {job_id} {job.in_words}" + (f" ({found.last})" if found.last else "")
        is_told = bool(self._notices) or self._is_killed
        self._end(
            job.trainer_code,
            Ending(
                words,
                job.was_out_of_memory or found.is_memory,
                had_machine=job.had_nodes(self._job),
                was_refused=job.was_taken_away and not is_told,
            ),
        )

    def _is_given_up(self) -> bool:
        """Whether its kill is so long ago that Slurm is waited for no longer."""
        at = self._clock.monotonic()
        if self._is_killed and self._killed_at is None:
            self._killed_at = at
        return self._killed_at is not None and at - self._killed_at > _GIVE_UP_SECONDS

    def _note_silence(self, is_silent: bool, why: str = "") -> bool:
        """Whether the controller did not answer; a warning the first time."""
        at = self._clock.monotonic()
        self._silent_because = (why or "no answer") if is_silent else ""
        if is_silent:
            if self._silent_since is None:
                self._silent_since = at
                log.warning("the Slurm controller does not answer job=%s; the job goes on without it", self._id)
            return True
        if self._silent_since is not None:
            log.info("the Slurm controller answers again job=%s after=%.0fs", self._id, at - self._silent_since)
            self._silent_since = None
        return False

    def _note_unknown(self, job_id: str, at: float) -> None:
        if self._unknown_since is None:
            self._unknown_since = at
            log.warning("Slurm does not know the job job=%s; its trainer's heartbeat decides", job_id)
        is_told = bool(self._sent) or self._was_cancelled
        if is_told and at - self._unknown_since >= _UNKNOWN_SECONDS:
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
            log.warning("scancel failed and is run again job=%s reason=%s", self._id, answer.why)
        if not answer.was_heard:
            self._tell_at = self._clock.monotonic() + _LOOK_SECONDS
        return answer.was_heard

    def _end(self, code: int, ending: Ending) -> None:
        if self._id is not None:
            log.info("%s", ending.in_words)
        self._ending, self._code = ending, code
