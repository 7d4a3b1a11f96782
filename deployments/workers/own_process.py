"""Which flow runs may share a process: parents whose process would be the same as this one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

PARENT_ENTRYPOINT = "segue.flows.train.train"
_USUAL_COMMANDS = (None, "python -m prefect.engine")
"""None, as in a pool's own template, and the command of segue's templates."""


class ProcessJob(NamedTuple):
    """The job that a process pool was asked to start for a flow run."""

    entrypoint: str | None
    """The deployment's; None for a flow run without a deployment."""
    has_pull_steps: bool
    command: str | None
    env: Mapping[str, str | None]
    """The job's own variables; None removes one."""
    working_dir: Path | None

    @property
    def is_parent(self) -> bool:
        """Whether it is the flow `train` of the installed segue."""
        return self.entrypoint == PARENT_ENTRYPOINT and not self.has_pull_steps


def why_own_process(job: ProcessJob, *, here: Path, environment: Mapping[str, str]) -> str | None:
    """Why this job cannot run in a process that works in `here` with these variables; None if it can.

    A thread has no working folder and no variables of its own. A relative store path would be another folder.
    """
    if not job.is_parent:
        return "it is another flow than the installed segue.flows.train"
    if job.command not in _USUAL_COMMANDS:
        return f"its job has a command of its own ({job.command})"
    changed = sorted(name for name, value in job.env.items() if environment.get(name) != value)
    if changed:
        return f"its job sets variables that `segue serve` does not have ({', '.join(changed)})"
    if job.working_dir is None:
        return f"its job has no working_dir; `segue serve` was started in {here}"
    if job.working_dir.resolve() != here.resolve():
        return f"its working_dir is {job.working_dir}; `segue serve` was started in {here}"
    return None
