"""Parses Slurm's answers about a job, and interprets them for a trainer. All functions are pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

_WAITS = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD"})
# REVOKED means that another cluster of the federation has started the job, and that the job runs on the other cluster.
_RUNS = frozenset({"RUNNING", "COMPLETING", "REVOKED", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING"})
ENDS = frozenset(
    {
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "LAUNCH_FAILED",
        "NODE_FAIL",
        "OUT_OF_MEMORY",
        "PREEMPTED",
        "TIMEOUT",
    }
)
"""States of an ended job. Source: squeue's documentation of job state codes."""
_BY_A_SIGNAL = 128
"""If a signal ends a shell's command, the exit code of the shell is this number plus the number of the signal."""
_NO_OUTPUT = 53
"""The signal that Slurm 22.05 reports for a job whose output file could not be opened, as measured."""
_TAKEN_AWAY = frozenset({"CANCELLED", "DEADLINE"})


@dataclass(frozen=True)
class SlurmJob:
    """The state of one job, as reported by Slurm."""

    state: str
    """Slurm's state of the job, for example `RUNNING` or `NODE_FAIL`."""
    reason: str = ""
    """Slurm's reason why the job waits, for example `Resources` or `Priority`."""
    exit_code: int = 0
    signal: int = 0
    has_started: bool = True
    """Whether Slurm has given nodes to the job. The nodes may still have to boot."""

    @property
    def is_waiting(self) -> bool:
        """Whether the job waits for nodes."""
        return self.state in _WAITS

    @property
    def has_ended(self) -> bool:
        return self.state in ENDS

    @property
    def was_out_of_memory(self) -> bool:
        return self.state == "OUT_OF_MEMORY"

    def had_nodes(self, before: SlurmJob | None) -> bool:
        """Whether an ended job ever ran on its nodes. `before` is the previous known state of the job, or None."""
        # If a node of a cloud does not come up, it fails while it boots.
        failed_to_boot = self.state == "NODE_FAIL" and before is not None and before.is_waiting
        return self.has_started and self.state != "BOOT_FAIL" and not failed_to_boot

    @property
    def was_taken_away(self) -> bool:
        """Whether a person or a rule of the cluster removed the job from the queue."""
        return not self.has_started and self.state in _TAKEN_AWAY

    @property
    def trainer_code(self) -> int:
        """Exit code of the trainer of an ended job. A negative number is the signal that killed the trainer.

        A job that ended by itself has the trainer's exit code. If the job did not end by itself, Slurm has taken the
        machine away.
        """
        if self.state == "COMPLETED":
            return 0
        if self.state != "FAILED" or not (self.exit_code or self.signal):
            return -signal.SIGKILL
        if not self.exit_code:
            return -self.signal
        return self.exit_code if self.exit_code <= _BY_A_SIGNAL else _BY_A_SIGNAL - self.exit_code

    @property
    def in_words(self) -> str:
        """Description of the end, for example `ended as FAILED with exit code 1`."""
        if self.state not in ("FAILED", "COMPLETED"):
            return f"ended as {self.state}"
        if self.signal == _NO_OUTPUT and not self.exit_code:
            return "ended as FAILED: a node could not write its output; do all nodes share the folder slurm.folder?"
        code = self.trainer_code
        return f"ended as {self.state} " + (f"with exit code {code}" if code >= 0 else f"by signal {-code}")


def job_shown(text: str, *, name: str) -> SlurmJob | None:
    """Parse the output of `scontrol show job`. Return None if the output shows another job or cannot be parsed.

    If a controller is killed before it has saved a job, the controller forgets the job and gives its id to another job.
    """
    found = re.search(r"^\s*JobState=([A-Z_]+)(?: Reason=(\S*))?", text, re.MULTILINE)
    named = re.search(r"^JobId=\d+.*? JobName=(\S+)", text, re.MULTILINE)
    if found is None or named is None or named[1] != name:
        return None
    reason = found[2] or ""
    code = re.search(r"\bExitCode=(\d+):(\d+)", text)
    nodes = re.search(r"^\s*NodeList=(\S*)", text, re.MULTILINE)
    return SlurmJob(
        state=found[1],
        reason="" if reason == "None" else reason,
        exit_code=int(code[1]) if code else 0,
        signal=int(code[2]) if code else 0,
        has_started=nodes is not None and nodes[1] not in ("", "(null)"),
    )


def job_accounted(text: str, *, name: str) -> SlurmJob | None:
    """Parse the output of `sacct --parsable2 --noheader --format=JobName,State,ExitCode,NodeList`.

    Return None if the output does not have the job.
    """
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4 and fields[0] == name and fields[1].strip():
            code, _, number = fields[2].partition(":")
            started = fields[3] not in ("", "None assigned")
            # The state of a cancelled job also names the user.
            return _job(fields[1].split()[0].rstrip("+"), code, number, has_started=started)
    return None


def job_completed(text: str, *, name: str) -> SlurmJob | None:
    """Return the newest state of the job in a job completion file (`jobcomp/filetxt`), or None if it is not in the
    file.
    """
    for line in reversed(text.splitlines()):
        words = dict(word.split("=", 1) for word in line.split() if "=" in word)
        if words.get("Name") == name and words.get("JobState"):
            code, _, number = words.get("ExitCode", "").partition(":")
            started = words.get("NodeList", "(null)") not in ("", "(null)")
            return _job(words["JobState"], code, number, has_started=started)
    return None


def _job(state: str, code: str, number: str, *, has_started: bool) -> SlurmJob | None:
    if state not in _WAITS | _RUNS | ENDS:
        return None
    exit_code, by = (int(part) if part.isdigit() else 0 for part in (code, number))
    return SlurmJob(state, exit_code=exit_code, signal=by, has_started=has_started)
