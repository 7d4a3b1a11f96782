"""Runs the work on a candidate that needs torch in a separate process, so that the waiting flow needs little memory.

A crash of the user's code or of a library ends only the separate process, not the flow.
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
    """The job to publish the model that a slot's run has trained, and to compare it with the version in service."""

    kind: Literal["evaluate"] = "evaluate"
    spec: RetrainSpec
    start: SlotStart


class BeginJob(Record):
    """The job to make a version's weights the first checkpoint of a slot's run."""

    kind: Literal["begin"] = "begin"
    spec: RetrainSpec
    start: SlotStart


class CheckJob(Record):
    """The job to check the functions that publish and evaluate candidates, and the objects that a program tracks."""

    kind: Literal["check"] = "check"
    spec: RetrainSpec


class MirrorJob(Record):
    """The job to bring the model registry up to date."""

    kind: Literal["mirror"] = "mirror"
    spec: RetrainSpec


AnyJob = EvaluateJob | BeginJob | CheckJob | MirrorJob
JOB: TypeAdapter[AnyJob] = TypeAdapter(Annotated[AnyJob, Field(discriminator="kind")])


class JobResult(Record):
    """The outcome of a job's process."""

    candidate: Candidate | None = None
    notes: tuple[str, ...] = Field((), description="Remarks for people, in sentences.")
    error: str | None = Field(None, description="Reason of a failure, in one sentence; None after a success.")
    traceback: str = ""
    is_of_the_store: bool = Field(False, description="Whether the store failed, so that a retry is useful.")


def run_job(job: AnyJob, *, what: str, on_line: Callable[[str], None]) -> JobResult:
    """Run a job and wait for its end. `on_line` gets each line that the job's process prints.

    Raises:
        RetrainJobError: the job failed. Nothing was promoted.
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
    """Run the process. Return the last lines that the process printed."""
    lines: list[str] = []
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, text=True, errors="replace", **pipes) as process:  # type: ignore[call-overload]
        try:
            for line in map(redacted, process.stdout):
                on_line(line.rstrip("\n"))
                lines = [*lines, line.strip()][-_LINES_KEPT:]
        except BaseException:
            process.terminate()  # If the flow is cancelled, its process ends too.
            raise
    return lines
