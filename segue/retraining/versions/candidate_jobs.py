"""Work on a candidate that needs torch, in a process of its own: the flow that waits for it stays small.

A crash of the user's code, or of a library, ends that process and not the flow.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from segue.credentials import redacted
from segue.errors import RetrainJobError, RetrainStoreError
from segue.records import Record
from segue.retraining.model_record import Candidate, SlotStart
from segue.retraining.spec import RetrainSpec

log = logging.getLogger(__name__)

_LINES_KEPT = 15
MODULE = "segue.retraining.versions.job_main"


class EvaluateJob(Record):
    """Publish what a slot's run has trained, and compare it with the version in service."""

    kind: Literal["evaluate"] = "evaluate"
    spec: RetrainSpec
    start: SlotStart


class BeginJob(Record):
    """Make a version's weights the first checkpoint of a slot's run."""

    kind: Literal["begin"] = "begin"
    spec: RetrainSpec
    start: SlotStart


class CheckJob(Record):
    """Check what publishes and evaluates candidates, before there is one: the functions, and what a program tracks."""

    kind: Literal["check"] = "check"
    spec: RetrainSpec


class MirrorJob(Record):
    """Bring the model registry up to date."""

    kind: Literal["mirror"] = "mirror"
    spec: RetrainSpec


AnyJob = EvaluateJob | BeginJob | CheckJob | MirrorJob
JOB: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


class JobResult(Record):
    """The outcome of the process."""

    candidate: Candidate | None = None
    notes: tuple[str, ...] = Field((), description="What is worth saying, in sentences.")
    error: str | None = Field(None, description="Why it failed, in one sentence; None: it succeeded.")
    traceback: str = ""
    is_of_the_store: bool = Field(False, description="Whether the store failed: the job can then be repeated.")


def run_job(job: AnyJob, *, what: str, on_line: Callable[[str], None]) -> JobResult:
    """Run a job and wait for it; `on_line` gets each line that its process prints.

    Raises:
        RetrainJobError: it failed; nothing was promoted.
        RetrainStoreError: the store failed.
    """
    with tempfile.TemporaryDirectory(prefix="segue-job-") as folder:
        request, result = Path(folder, "job.json"), Path(folder, "result.json")
        request.write_text(job.model_dump_json())
        last = _run([sys.executable, "-m", MODULE, str(request), str(result)], on_line)
        try:
            found = JobResult.model_validate_json(result.read_bytes())
        except (OSError, ValidationError):
            why = f"its process ended without a result; it printed: {' | '.join(last) or 'nothing'}"
            raise RetrainJobError(what=what, why=why) from None
    if found.error is not None and found.is_of_the_store:
        raise RetrainStoreError(what=what, why=found.error)
    if found.error is not None:
        raise RetrainJobError(what=what, why=found.error, traceback=found.traceback)
    return found


def _run(command: list[str], on_line: Callable[[str], None]) -> list[str]:
    """The last lines that the process printed."""
    lines: list[str] = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:  # type: ignore[call-overload]
        try:
            for line in map(redacted, process.stdout):
                on_line(line.rstrip("\n"))
                lines = [*lines, line.strip()][-_LINES_KEPT:]
        except BaseException:
            process.terminate()  # A cancelled flow leaves no process behind.
            raise
    return lines
