"""The tables of a run spec: store, checkpoints, continuity, anomalies, liveness, segments, program."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Self

from pydantic import Field, field_validator
from pydantic_core import PydanticCustomError

from segue.credentials import without_credentials
from segue.parsing import parsed
from segue.records import FiniteValue
from segue.signing import REFERENCE
from segue.spec.section import Section

_REMOTE_LOOK_SECONDS, _REMOTE_LOOK_HEARTBEATS = 10.0, 5
"""The longest time between two looks of a parent into a remote store, in seconds and in heartbeats."""


_PYTHON = re.compile(r"python[0-9.]*")


class StoreSpec(FiniteValue):
    """The store of a run. It never holds credentials; they come from the environment."""

    url: str = Field(
        ".segue/store",
        description="URL of the store: a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix, or "
        "az://container/prefix.",
    )
    endpoint_url: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+",
        description="Endpoint of the bucket, e.g. http://127.0.0.1:9000; None: the cloud's own.",
    )
    region: str | None = Field(None, description="S3 region, only for s3://; None: the one that boto3 finds.")
    signing_key: str | None = Field(
        None,
        # Left out if there is none: older versions refuse a record with a field that they do not know.
        exclude_if=lambda reference: reference is None,
        description="Reference to the key that signs the log and checkpoints: env:NAME or file:/path; None: unsigned.",
    )

    @field_validator("url")
    @classmethod
    def _has_no_credentials(cls, url: str) -> str:
        return without_credentials(url)

    @field_validator("endpoint_url")
    @classmethod
    def _endpoint_has_no_credentials(cls, url: str | None) -> str | None:
        return url if url is None else without_credentials(url)

    @field_validator("signing_key")
    @classmethod
    def _is_reference(cls, reference: str | None) -> str | None:
        if reference is not None and not REFERENCE.fullmatch(reference):
            text = "must be env:NAME or file:/path; the key itself does not belong here, where it would be stored"
            raise PydanticCustomError("secret", text)
        return reference

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over a network, as `Store.is_remote` says."""
        return "://" in self.url and not self.url.startswith("file:")

    @classmethod
    def parse(cls, data: object, *, source: str) -> Self:
        """Validate plain data.

        Raises:
            SpecError: some fields are wrong; it names each by its path, with the remedy.
        """
        return parsed(cls, data, source=source)


class CheckpointSpec(Section):
    """How often to commit, and which checkpoints to keep."""

    every_steps: int | None = Field(None, gt=0, description="Save interval in steps; None: no interval in steps.")
    every_seconds: float | None = Field(
        None,
        gt=0,
        description="Save interval in seconds; None, without every_steps: the interval that minimizes the expected "
        "loss, from measured save times and preemptions.",
    )
    keep: int = Field(3, ge=2, description="Retention: number of newest checkpoints to keep, at least 2.")
    best: typing.Literal["min", "max"] = Field("min", description="Whether a lower or a higher metric is better.")
    staging: typing.Literal["blocking", "overlapped"] = Field(
        "blocking",
        description="Staging of a save: blocking, or overlapped with the next forward and backward pass for state that "
        "only the optimizer changes. An overlapped save is first copied within an accelerator that has room for it.",
    )
    staging_buffers: int = Field(
        1, ge=1, le=2, description="Staging buffers in memory; with 2, a save need not wait for the previous one."
    )
    full_every: int = Field(
        1,
        ge=1,
        description="Saves from one full checkpoint to the next; others store only changed tensors. 1: all full.",
    )
    fast_folder: str | None = Field(
        None, description="Folder on a local disk that gets every checkpoint first and is preferred for resumes."
    )
    max_work_at_risk_seconds: float = Field(
        600.0, gt=0, description="Longest time between two commits in seconds; training stops when it is exceeded."
    )

    @property
    def longest_seconds(self) -> float | None:
        """Longest time between two commits; None when only steps count."""
        if self.every_seconds is None and self.every_steps is None:
            return self.max_work_at_risk_seconds
        return self.every_seconds


MOST_WITNESS_STEPS = 64


class ContinuitySpec(Section):
    """How a resume is verified."""

    witness_steps: int = Field(
        8, ge=0, le=MOST_WITNESS_STEPS, description="Number of steps after a commit that a resume must reproduce."
    )
    rehearsal: typing.Literal["stop", "warn", "off"] = Field(
        "stop", description="Action when the resume rehearsal from the run's first checkpoint fails: stop, warn or off."
    )
    accept: tuple[
        typing.Literal["setup.model", "setup.hyperparameters", "setup.code", "setup.data", "setup.binding"], ...
    ] = Field((), description="Parts of the setup that were changed intentionally since the checkpoint.")
    disturbable: bool = Field(
        False,
        description="Whether segments kill their trainer, or give it a notice, when an object in the store requests "
        "it; set by the flow verify-resume in the run that it disturbs.",
    )


OnAnomaly = typing.Literal["off", "rollback", "skip"]


class AnomalySpec(FiniteValue):
    """Actions on steps with anomalous numbers. Such a step is never committed, unless its action is `off`."""

    non_finite: OnAnomaly = Field(
        "rollback", description="Action on a loss, gradient or parameter norm of nan or inf: off, rollback or skip."
    )
    spikes: OnAnomaly = Field("off", description="Action on a loss far above its recent level: off, rollback or skip.")
    spike_factor: float = Field(
        10.0, gt=0, description="Limit of a loss: robust standard deviations above the median of the recent level."
    )
    spike_window_steps: int = Field(64, ge=8, le=1024, description="Number of steps of the recent level.")
    max_rollbacks: int = Field(
        4, ge=0, description="Rollbacks before the run stops; each skipped batch takes two rollbacks."
    )

    def action(self, kind: typing.Literal["non_finite", "spike"]) -> OnAnomaly:
        return self.non_finite if kind == "non_finite" else self.spikes


class LivenessSpec(Section):
    """Timeouts by which attempts, ranks and waits are judged."""

    heartbeat_seconds: float = Field(2.0, gt=0, description="Heartbeat interval in seconds.")
    heartbeat_timeout_seconds: float = Field(
        30.0, gt=0, description="Heartbeat timeout: an attempt without a new heartbeat for this long is declared lost."
    )
    notice_file: str | None = Field(
        None, description="File whose appearance on the machine is a notice; None: no file."
    )
    usr1_seconds: float | None = Field(
        None,
        gt=0,
        description="Seconds from SIGUSR1 to the kill, as in Slurm's --signal=USR1@120; None: grace_seconds.",
    )
    rank_seconds: float = Field(
        300.0, gt=0, description="Rank timeout: how long ranks wait for another rank, in a step or while restoring."
    )
    first_step_seconds: float = Field(
        1800.0,
        gt=0,
        description="Hang timeout until the first step, and of the first evaluation, in seconds; also the rank timeout "
        "of the first two steps.",
    )
    hang_seconds: float = Field(
        120.0,
        gt=0,
        description="Hang timeout: an attempt without a step for this long in seconds is ended; with several ranks, "
        "rank_seconds is added.",
    )
    hang_factor: float = Field(
        30.0, ge=1, description="Hang timeout as a multiple of the usual step time; the longer of the two counts."
    )
    slow_start_seconds: float = Field(
        120.0,
        gt=0,
        description="Slow-start timeout: seconds from a worker taking an attempt to its claim of the run; after that, "
        "another start is requested beside it. If earlier starts on the pool took longer, the timeout is longer, "
        "first_step_seconds at most.",
    )
    start_seconds: float = Field(
        900.0, gt=0, description="Capacity timeout: longest wait for capacity in seconds when there is no deadline."
    )

    @property
    def remote_look_seconds(self) -> float:
        """How often a waiting parent looks into a remote store, where each request takes time and is paid for."""
        timeout_seconds = self.heartbeat_timeout_seconds
        return min(_REMOTE_LOOK_SECONDS, _REMOTE_LOOK_HEARTBEATS * self.heartbeat_seconds, timeout_seconds / 3)


class SegmentSpec(FiniteValue):
    """Planned ends of segments: each ends at a committed checkpoint, and the next one resumes and is verified.

    The next one goes on on the same machine, in a process that booted beside the one before.
    """

    steps: int | None = Field(None, gt=0, description="Segments end at multiples of this step; None: no such end.")
    epochs: int | None = Field(None, gt=0, description="Segments end after this many passes over the data; None: none.")
    hours: float | None = Field(None, gt=0, description="Longest time of a segment in hours; None: no limit.")
    count: int = Field(
        20,
        ge=1,
        description="Number of segments of an undisturbed run if no other end is set; none is shorter than half an "
        "hour or 20 changeovers; 1: no planned ends. No effect on Slurm and Ray.",
    )


class ProgramSpec(FiniteValue):
    """A program with a training loop of its own, which uses `segue.session()`."""

    command: tuple[str, ...] = Field(
        min_length=2, description='Command that runs the program, e.g. ["python", "train.py", "--lr", "0.1"].'
    )

    @field_validator("command")
    @classmethod
    def _is_python(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not _PYTHON.fullmatch(Path(command[0]).name):
            text = "must begin with python, because segue runs the program in its trainer process"
            raise PydanticCustomError("not_python", text)
        if command[1].startswith("-") and (command[1] != "-m" or len(command) < 3):
            raise PydanticCustomError("no_script", "must name a script or -m module after python")
        return command
