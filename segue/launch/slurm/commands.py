"""Runs Slurm's commands, and interprets their answers. If the controller is silent, a command blocks for about 10 s."""

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
"""Longest time of a command in seconds. After this time, segue assumes that the controller does not answer."""
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
"""Prefixes of environment variables that change a command: variables of the surrounding job, and defaults of a site."""
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION")
"""Environment variables that commands keep: names of the cluster, and a user's account, QOS and reservation."""


@dataclass(frozen=True)
class CommandResult:
    """Output and exit code of a command."""

    code: int
    output: str
    trouble: str

    @property
    def is_silence(self) -> bool:
        """Whether the controller did not answer, so that the result is unknown."""
        return self.code != 0 and _SILENCE.search(self.trouble) is not None

    @property
    def is_refusal(self) -> bool:
        """Whether the controller answered and refused the request."""
        return self.code != 0 and not self.is_silence

    @property
    def names_time_limit(self) -> bool:
        """Whether the controller refused the request because of a time limit. A site's own plugin may use any words."""
        return self.is_refusal and _TIME_LIMIT.search(self.trouble) is not None

    @property
    def was_heard(self) -> bool:
        """Whether the controller has accepted the order of scancel, or no longer has the job."""
        return self.code == 0 or self.is_unknown_job or _ENDED_JOB.search(self.trouble) is not None

    @property
    def is_unknown_job(self) -> bool:
        return _UNKNOWN_JOB.search(self.trouble) is not None

    @property
    def why(self) -> str:
        """The cause of a failure, as one line."""
        lines = [line.strip() for line in self.trouble.splitlines() if line.strip()]
        # sbatch first says that it failed, and then gives the reason.
        text = "; ".join(re.sub(r"^\w+: (error: )?|^allocation failure: ", "", line) for line in lines)
        return text or f"exit code {self.code}"


def ask(command: Sequence[str], *, given: str = "", longest_seconds: float = _LONGEST_SECONDS) -> CommandResult:
    """Run a Slurm command. If the controller does not answer, the call blocks for about ten seconds."""
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
    """The result of one check of a job."""

    job: SlurmJob | None = None
    """The job. The value is None if the job was not found."""
    is_silence: bool = False
    """Whether the controller did not answer.

    If the controller answered and `job` is None, the controller does not know the job, but the job may still run.
    """


def look_at(job_id: str, *, name: str) -> Sighting:
    """Find the job with this id and name: ask the controller, then accounting, and then read the completion file."""
    answer = ask(["scontrol", "--all", "show", "job", job_id])
    if answer.code and not answer.is_unknown_job:
        return Sighting(is_silence=True)
    job = job_shown(answer.output, name=name)
    return Sighting(job or _accounted(job_id, name) or _completed(name))


def find_jobs(name: str) -> tuple[CommandResult, list[str]]:
    """Return the ids of the jobs with this name that the controller knows."""
    answer = ask(["squeue", "--all", "--noheader", "--states=all", "--format=%i", f"--name={name}"])
    return answer, answer.output.split() if answer.code == 0 else []


def submitted_id(output: str) -> str | None:
    """Return the job's id from the output of `sbatch --parsable`. Return None if the output has no id.

    A site may print other lines before the id.
    """
    found = re.search(r"^(\d+)(?:;\S+)?\s*$", output, re.MULTILINE)
    return found[1] if found is not None else None


def waiting_jobs() -> str:
    """Return the ids and names of this user's waiting jobs, one job per line. Return nothing without an answer."""
    return ask(["squeue", "--all", "--noheader", "--states=PENDING", f"--user={os.getuid()}", "--format=%i %j"]).output


def _accounted(job_id: str, name: str) -> SlurmJob | None:
    fields = "--format=JobName%200,State,ExitCode,NodeList"
    answer = ask(["sacct", f"--jobs={job_id}", "--allocations", "--noheader", "--parsable2", fields])
    return job_accounted(answer.output, name=name) if answer.code == 0 else None


def _completed(name: str) -> SlurmJob | None:
    """Find the job in the controller's file of ended jobs. Return None if this machine cannot read the file of ended
    jobs.
    """
    settings = ask(["scontrol", "show", "config"])
    is_file = re.search(r"^JobCompType\s*=\s*jobcomp/filetxt", settings.output, re.MULTILINE)
    place = re.search(r"^JobCompLoc\s*=\s*(/\S+)", settings.output, re.MULTILINE)
    if is_file is None or place is None:
        return None
    try:
        return job_completed(Path(place[1]).read_text(errors="replace"), name=name)
    except OSError:
        return None  # Only the controller's machine may have it.
