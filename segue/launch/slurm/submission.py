"""Checks and submits an attempt's job. If sbatch gives no answer, the module searches for the job."""

from __future__ import annotations

import logging
import signal
from functools import partial
from pathlib import Path
from typing import NamedTuple

from segue.clock import Clock
from segue.errors import SlurmSetupError
from segue.launch.assignment import Assignment, ExitCode
from segue.launch.launcher import Ending
from segue.launch.slurm.commands import CommandResult, ask, find_jobs, submitted_id, waiting_jobs
from segue.launch.slurm.script import batch_script, older_jobs, partition_of, sbatch_command
from segue.launch.slurm.slurm_partition import partition_shown
from segue.launch.slurm.slurm_problems import require_slurm

log = logging.getLogger(__name__)

_SUBMIT_AGAIN_SECONDS = 30.0
_SILENT_SECONDS = 10.0
"""Seconds between two tries while the controller does not answer. Some connection failures return immediately."""
_LOOK_SECONDS = 2.0
_UNSURE_SECONDS = 60.0
"""Seconds in which a submission without an answer may still become a job."""


class End(NamedTuple):
    """The exit code and the end of a trainer."""

    code: int
    ending: Ending


class Silence:
    """Records whether the controller answers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: float | None = None
        self.because = ""
        """Reason why the last request got no answer. The text is empty if the request got an answer."""

    def note(self, is_silent: bool, *, job: str | None, why: str = "") -> bool:
        """Record whether an answer came, and return `is_silent`. At the first missing answer, log a warning."""
        at = self._clock.monotonic()
        self.because = (why or "no answer") if is_silent else ""
        if is_silent and self._since is None:
            self._since = at
            log.warning("the Slurm controller does not answer job=%s; the job continues without it", job)
        elif not is_silent and self._since is not None:
            log.info("the Slurm controller answers again job=%s after=%.0fs", job, at - self._since)
            self._since = None
        return is_silent


class Submission:
    """The submission of one attempt's job. Only one thread may use this object."""

    def __init__(self, assignment: Assignment, *, name: str, output: Path, silence: Silence, clock: Clock) -> None:
        self._assignment, self._silence, self._clock = assignment, silence, clock
        self._name, self._output = name, output
        self.job_id: str | None = None
        """Id of the job. The value is None before the job is submitted."""
        self._refused_because: str | None = None
        self._unsure_since: float | None = None
        """Monotonic time of the submission whose result is unknown. The value is None if no result is unknown."""
        self._is_checked = False
        self._again_at = float("-inf")

    @property
    def in_words(self) -> str:
        """Description of the state of the submission."""
        refused = f", which sbatch refuses ({self._refused_because})" if self._refused_because else ""
        silent = f", but Slurm does not answer ({self._silence.because})" if self._silence.because else ""
        return f"its Slurm job is being submitted{silent or refused}"

    def turn(self, *, is_told: bool, is_given_up: bool) -> End | None:
        """Submit the job if a submission is due. If the attempt ends without a submission, return the end of the
        attempt.

        `is_told` tells if the attempt has to end. `is_given_up` tells if the order to end is so old that segue no
        longer waits for Slurm.
        """
        at = self._clock.monotonic()
        if is_told and self._unsure_since is None:
            return End(ExitCode.NOTICE, Ending("it was ended before its Slurm job was submitted", had_machine=False))
        if at < self._again_at:
            return None
        if self._unsure_since is not None:
            return self._look(at, self._unsure_since, is_told=is_told, is_given_up=is_given_up)
        try:
            answer = self._ask_to_run()
        except SlurmSetupError as error:
            words = f"it was not submitted to Slurm: {error}"
            return End(ExitCode.USAGE, Ending(words, had_machine=False, refusal=error))
        job_id = submitted_id(answer.output) if answer.code == 0 else None
        if self._silence.note(answer.is_silence, job=None, why=answer.why):
            self._again_at = at + _SILENT_SECONDS
        elif answer.code:
            self._note_refusal(answer)
        elif job_id is None:
            self._unsure_since = at
            log.warning("sbatch did not return a job id, searching for the job name=%s", self._name)
        else:
            self._accept(job_id)
        return None

    def _look(self, at: float, unsure_since: float, *, is_told: bool, is_given_up: bool) -> End | None:
        """Check whether the controller has accepted the job although it gave no answer. The controller may also accept
        the job later.
        """
        answer, found = find_jobs(self._name)
        self._again_at = at + _LOOK_SECONDS
        if self._silence.note(answer.is_silence, job=None, why=answer.why):
            self._again_at = at + _SILENT_SECONDS
            if is_given_up:
                words = f"it is unknown whether its Slurm job {self._name} was submitted: Slurm does not answer"
                return End(-signal.SIGKILL, Ending(words))
        elif found:
            if found[1:]:
                ask(["scancel", f"--name={self._name}", *found[1:]])
            self._accept(found[0])
        elif is_told:
            ask(["scancel", f"--name={self._name}"])
            words = "it was ended before it was known whether its Slurm job was submitted"
            return End(ExitCode.NOTICE, Ending(words, had_machine=False))
        elif at - unsure_since >= _UNSURE_SECONDS:
            self._unsure_since, self._again_at = None, at
        return None

    def _ask_to_run(self) -> CommandResult:
        """Check for problems that would make the job wait for ever. Then submit the job."""
        assignment, plan = self._assignment, self._assignment.plan
        if not self._is_checked and (plan.segment, plan.attempt) == (0, 1):
            require_slurm(assignment.spec)  # Later refusals may be temporary.
        partition = partition_of(assignment.spec, assignment.plan.capacity)
        shown = ask(["scontrol", "--all", "show", "partition", partition])
        found = partition_shown(shown.output)
        if shown.code or found is None:
            return shown if shown.code else CommandResult(1, "", "unable to contact slurm controller: no partition")
        try:
            self._output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            return CommandResult(1, "", f"{self._output.parent}: {error.strerror}")
        if not self._is_checked:
            self._cancel_older()
        self._is_checked = True
        script = batch_script(assignment)
        command = partial(sbatch_command, assignment, name=self._name, output=self._output, partition=found)
        answer = ask(command(), given=script)
        if answer.is_refusal and command(wants_time_limit=True) != command():
            # A cluster may refuse jobs without a time limit, and may use its own message.
            with_limit = ask(command(wants_time_limit=True), given=script)
            answer = answer if with_limit.is_refusal else with_limit
        self._unsure_since = self._clock.monotonic() if answer.is_silence else None
        return answer

    def _cancel_older(self) -> None:
        """Remove waiting jobs of ended segments from the queue, because newer attempts have replaced them."""
        older = older_jobs(waiting_jobs(), self._assignment)
        if older:
            log.warning("cancelling waiting jobs of earlier attempts jobs=%s", ",".join(older))
            ask(["scancel", "--state=PENDING", *older])

    def _note_refusal(self, answer: CommandResult) -> None:
        """Plan another submission later. Earlier checks detect permanent problems, so this refusal may be temporary."""
        if self._refused_because != answer.why:
            self._refused_because = answer.why
            log.warning("sbatch refuses the job, retrying later reason=%s", answer.why)
        # The cluster may no longer have these nodes, and sbatch refuses the names of unknown nodes.
        plan = self._assignment.plan.model_copy(update={"avoided_nodes": ()})
        self._assignment = self._assignment.model_copy(update={"plan": plan})
        self._again_at = self._clock.monotonic() + _SUBMIT_AGAIN_SECONDS

    def _accept(self, job_id: str) -> None:
        self.job_id = job_id
        log.info("submitted to Slurm job=%s name=%s output=%s", job_id, self._name, self._output)
