"""Slurm's commands, and what their answers mean. A controller that is away answers nothing for about ten seconds."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from segue.credentials import redacted
from segue.launch.slurm.job import SlurmJob, job_accounted, job_completed, job_shown

_LONGEST_SECONDS = 60.0
"""A command is ended after this time, and counts as one that the controller did not answer."""
_SILENCE = re.compile(
    r"unable to contact slurm controller|socket timed out|connection refused|connection timed out|zero bytes were"
    r"|controller in standby mode|slurm temporarily unable|transport endpoint|unexpected message received"
    r"|communication connection failure|unable to establish|authentication|munge",
    re.IGNORECASE,
)
_UNKNOWN_JOB = re.compile(r"invalid job id", re.IGNORECASE)
_TIME_LIMIT = re.compile(r"time[ -]?limit|wall ?time|--time\b", re.IGNORECASE)
_ENDED_JOB = re.compile(r"already completing or completed|job/step already", re.IGNORECASE)
_OF_A_JOB = ("SLURM_", "SBATCH_", "SALLOC_", "SRUN_", "SCANCEL_", "SQUEUE_", "SINFO_", "SACCT_")
"""Variables that change what a command does: those of a job in which this process runs, and the defaults of a site."""
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION")
"""The variables that say where the cluster is, and under which account, QOS and reservation a user's jobs run."""


@dataclass(frozen=True)
class CommandResult:
    """The output and the exit code of a command."""

    code: int
    output: str
    trouble: str

    @property
    def is_silence(self) -> bool:
        """Whether the controller did not answer, so that nothing is known."""
        return self.code != 0 and _SILENCE.search(self.trouble) is not None

    @property
    def is_refusal(self) -> bool:
        """Whether the controller answered, and did not do what was asked."""
        return self.code != 0 and not self.is_silence

    @property
    def names_time_limit(self) -> bool:
        """Whether a refusal speaks of time limits. A site's own plugin may say it in any words."""
        return self.is_refusal and _TIME_LIMIT.search(self.trouble) is not None

    @property
    def was_heard(self) -> bool:
        """Whether the controller took scancel's order to a job, or no longer has such a job."""
        return self.code == 0 or self.is_unknown_job or _ENDED_JOB.search(self.trouble) is not None

    @property
    def is_unknown_job(self) -> bool:
        return _UNKNOWN_JOB.search(self.trouble) is not None

    @property
    def why(self) -> str:
        """The reason of a failure in one line."""
        lines = [line.strip() for line in self.trouble.splitlines() if line.strip()]
        # sbatch says first that it failed, and then why.
        text = "; ".join(re.sub(r"^\w+: (error: )?|^allocation failure: ", "", line) for line in lines)
        return text or f"exit code {self.code}"


def ask(command: Sequence[str], *, given: str = "", longest_seconds: float = _LONGEST_SECONDS) -> CommandResult:
    """Run a command of Slurm. Blocks for ten seconds if the controller is away."""
    try:
        done = subprocess.run(
            command,
            input=given.encode(),
            capture_output=True,
            timeout=longest_seconds,
            check=False,
            env=_environment(),
            start_new_session=True,  # A signal to this process's group is no signal to the command.
        )
    except subprocess.TimeoutExpired:
        return CommandResult(1, "", "unable to contact slurm controller: no answer")
    except OSError as error:
        return CommandResult(127, "", f"{command[0]}: {error.strerror}")
    trouble = redacted(done.stderr.decode(errors="replace"))
    return CommandResult(done.returncode, done.stdout.decode(errors="replace"), trouble)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in _KEPT or not name.startswith(_OF_A_JOB)}


@dataclass(frozen=True)
class Sighting:
    """One look at a job."""

    job: SlurmJob | None = None
    """None: it was not seen."""
    is_silence: bool = False
    """Whether the controller did not answer. Otherwise it does not know the job, which need not have ended."""


def look_at(job_id: str, *, name: str) -> Sighting:
    """The job with this id and name: as the controller has it, then from accounting, then from the completion file."""
    answer = ask(["scontrol", "--all", "show", "job", job_id])
    if answer.code and not answer.is_unknown_job:
        return Sighting(is_silence=True)
    job = job_shown(answer.output, name=name)
    return Sighting(job or _accounted(job_id, name) or _completed(name))


def find_jobs(name: str) -> tuple[CommandResult, list[str]]:
    """The ids of the jobs of this name that the controller has."""
    answer = ask(["squeue", "--all", "--noheader", "--states=all", "--format=%i", f"--name={name}"])
    return answer, answer.output.split() if answer.code == 0 else []


def submitted_id(output: str) -> str | None:
    """The id of the job in the output of `sbatch --parsable`, even if a site prints other lines; None without an id."""
    found = re.search(r"^(\d+)(?:;\S+)?\s*$", output, re.MULTILINE)
    return found[1] if found is not None else None


def waiting_jobs() -> str:
    """The ids and names of this user's waiting jobs, one per line; none if the controller does not answer."""
    return ask(["squeue", "--all", "--noheader", "--states=PENDING", f"--user={os.getuid()}", "--format=%i %j"]).output


def _accounted(job_id: str, name: str) -> SlurmJob | None:
    fields = "--format=JobName%200,State,ExitCode,NodeList"
    answer = ask(["sacct", f"--jobs={job_id}", "--allocations", "--noheader", "--parsable2", fields])
    return job_accounted(answer.output, name=name) if answer.code == 0 else None


def _completed(name: str) -> SlurmJob | None:
    """The job in the file in which the controller records ended jobs, if it has one and this machine can read it."""
    settings = ask(["scontrol", "show", "config"])
    is_file = re.search(r"^JobCompType\s*=\s*jobcomp/filetxt", settings.output, re.MULTILINE)
    place = re.search(r"^JobCompLoc\s*=\s*(/\S+)", settings.output, re.MULTILINE)
    if is_file is None or place is None:
        return None
    try:
        return job_completed(Path(place[1]).read_text(errors="replace"), name=name)
    except OSError:
        return None  # Only the controller's machine may have it.
