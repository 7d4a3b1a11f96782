"""Defines the tables of a run spec: store, checkpoints, continuity, anomalies, liveness, segments, program."""

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
"""Longest time between two reads of a remote store by a parent: a number of seconds, and a number of heartbeat periods.

The shorter time applies.
"""


_PYTHON = re.compile(r"python[0-9.]*")


class StoreSpec(FiniteValue):
    """The store of a run. The table never contains credentials, because credentials come from the environment."""

    url: str = Field(
        ".segue/store",
        description="URL of the store: a folder, file:///folder, s3://bucket/prefix, gs://bucket/prefix, or "
        "az://container/prefix.",
    )
    endpoint_url: str | None = Field(
        None,
        pattern=r"^https?://[^/\s]+",
        description="Endpoint of the bucket, e.g. http://127.0.0.1:9000; None: the default endpoint of the cloud.",
    )
    region: str | None = Field(None, description="S3 region, only for s3://; None: the region that boto3 finds.")
    signing_key: str | None = Field(
        None,
        # Left out if it is not set: older versions refuse a record with a field that they do not know.
        exclude_if=lambda reference: reference is None,
        description="Reference to the key that signs the log and checkpoints: env:NAME or file:/path; None: no "
        "signing.",
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
            text = "must be env:NAME or file:/path; do not give the key itself, because the run spec is stored"
            raise PydanticCustomError("secret", text)
        return reference

    @property
    def is_remote(self) -> bool:
        """Whether the store is accessed over a network, as in `Store.is_remote`."""
        return "://" in self.url and not self.url.startswith("file:")

    @classmethod
    def parse(cls, data: object, *, source: str) -> Self:
        """Validate plain data.

        Raises:
            SpecError: some fields are wrong. The error names each wrong field by its path, with the fix.
        """
        return parsed(cls, data, source=source)


class CheckpointSpec(Section):
    """The settings for how often to commit, and for which checkpoints to keep."""

    every_steps: int | None = Field(None, gt=0, description="Save interval in steps; None: no interval in steps.")
    every_seconds: float | None = Field(
        None,
        gt=0,
        description="Save interval in seconds; None: no interval in seconds. If every_steps is not set either, segue "
        "chooses the interval with the least expected lost time, from measured save times and preemptions.",
    )
    every_epochs: int | None = Field(
        None,
        gt=0,
        exclude_if=lambda epochs: epochs is None,
        description="Save also at the end of each epoch whose number is a multiple of this number; None: no saves by "
        "epochs. The other save intervals still apply. Only for recipes.",
    )
    keep: int = Field(3, ge=2, description="Retention: number of newest checkpoints that are kept, at least 2.")
    best: typing.Literal["min", "max"] = Field(
        "min", description="Which metric is the best: min (the lowest) or max (the highest)."
    )
    staging: typing.Literal["blocking", "overlapped"] = Field(
        "blocking",
        description="Staging of a save. blocking: training waits for the copy. overlapped: training continues while "
        "state that only the optimizer changes is copied. If the accelerator has enough free memory, this state is "
        "first copied within the accelerator.",
    )
    staging_buffers: int = Field(
        1,
        ge=1,
        le=2,
        description="Number of staging buffers in memory; with 2, a save does not wait for the previous save.",
    )
    full_every: int = Field(
        1,
        ge=1,
        description="Number of saves from one full checkpoint to the next. Saves between two full checkpoints "
        "store only changed tensors. 1: every save is full.",
    )
    fast_folder: str | None = Field(
        None,
        description="Folder on a local disk to which every checkpoint is written first. A resume reads this folder "
        "first. None: no folder.",
    )
    max_work_at_risk_seconds: float = Field(
        600.0,
        gt=0,
        description="Longest time in seconds between two commits; training stops if no commit succeeds in this time.",
    )

    @property
    def longest_seconds(self) -> float | None:
        """Longest time in seconds between two commits. The value is None if the save interval is only in steps."""
        if self.every_seconds is None and self.every_steps is None:
            return self.max_work_at_risk_seconds
        return self.every_seconds


MOST_WITNESS_STEPS = 64


class ContinuitySpec(Section):
    """Settings for the verification of resumes."""

    witness_steps: int = Field(
        8, ge=0, le=MOST_WITNESS_STEPS, description="Number of steps after a commit that a resume must reproduce."
    )
    rehearsal: typing.Literal["stop", "warn", "off"] = Field(
        "stop",
        description="Action if the resume rehearsal from the first checkpoint fails: stop or warn; off: no rehearsal.",
    )
    accept: tuple[
        typing.Literal["setup.model", "setup.hyperparameters", "setup.code", "setup.data", "setup.binding"], ...
    ] = Field((), description="Parts of the setup that the user changed on purpose since the checkpoint.")
    disturbable: bool = Field(
        False,
        description="Whether an object in the store may make a segment kill its trainer or give the trainer a notice. "
        "The flow `verify-resume` sets this value for the run in which it causes disturbances.",
    )


OnAnomaly = typing.Literal["off", "rollback", "skip"]


class AnomalySpec(FiniteValue):
    """Actions on steps with anomalous numbers. A run commits such steps only if the action is `off`."""

    non_finite: OnAnomaly = Field(
        "rollback", description="Action on a loss, gradient or parameter norm of nan or inf: off, rollback or skip."
    )
    spikes: OnAnomaly = Field("off", description="Action on a loss far above the recent losses: off, rollback or skip.")
    spike_factor: float = Field(
        10.0,
        gt=0,
        description="Limit of a loss: number of robust standard deviations above the median of the recent losses.",
    )
    spike_window_steps: int = Field(
        64, ge=8, le=1024, description="Number of recent steps from which the limit of a loss is computed."
    )
    max_rollbacks: int = Field(
        4, ge=0, description="Number of rollbacks after which the run stops; each skipped batch takes two rollbacks."
    )

    def action(self, kind: typing.Literal["non_finite", "spike"]) -> OnAnomaly:
        return self.non_finite if kind == "non_finite" else self.spikes


class LivenessSpec(Section):
    """Timeouts of attempts, ranks and waits."""

    heartbeat_seconds: float = Field(2.0, gt=0, description="Heartbeat interval in seconds.")
    heartbeat_timeout_seconds: float = Field(
        30.0, gt=0, description="Heartbeat timeout in seconds: an attempt without a new heartbeat in this time is lost."
    )
    notice_file: str | None = Field(
        None, description="Path of a file on the machine. The appearance of the file is a notice. None: no file."
    )
    usr1_seconds: float | None = Field(
        None,
        gt=0,
        description="Seconds from SIGUSR1 to the kill, e.g. 120 for Slurm's --signal=USR1@120; None: grace_seconds.",
    )
    rank_seconds: float = Field(
        300.0,
        gt=0,
        description="Rank timeout: longest wait in seconds for another rank, in a step or during a restore.",
    )
    first_step_seconds: float = Field(
        1800.0,
        gt=0,
        description="Hang timeout in seconds for the start with the first step, and for the first evaluation. The "
        "first two steps also use this value as rank timeout.",
    )
    hang_seconds: float = Field(
        120.0,
        gt=0,
        description="Hang timeout in seconds: an attempt that completes no step in this time is ended. With several "
        "ranks, rank_seconds is added.",
    )
    hang_factor: float = Field(
        30.0,
        ge=1,
        description="Hang timeout as a multiple of the usual step time. The longer of this and hang_seconds applies.",
    )
    slow_start_seconds: float = Field(
        120.0,
        gt=0,
        description="Slow-start timeout: seconds from the time at which a worker takes an attempt to the attempt's "
        "claim. After this timeout, another start of the attempt is requested. If earlier starts on the pool took "
        "longer, the timeout is longer, but at most first_step_seconds.",
    )
    start_seconds: float = Field(
        900.0, gt=0, description="Capacity timeout: longest wait in seconds for capacity if the run has no deadline."
    )

    @property
    def remote_look_seconds(self) -> float:
        """Seconds between two reads of a remote store by a waiting parent. Each read takes time and costs money."""
        timeout_seconds = self.heartbeat_timeout_seconds
        return min(_REMOTE_LOOK_SECONDS, _REMOTE_LOOK_HEARTBEATS * self.heartbeat_seconds, timeout_seconds / 3)


class SegmentSpec(FiniteValue):
    """Planned ends of segments. Each segment ends at a committed checkpoint, and the next resume is verified.

    The next segment runs on the same machine, in a process that booted during the previous segment.
    """

    steps: int | None = Field(
        None, gt=0, description="Segments end at each multiple of this number of steps; None: no limit in steps."
    )
    epochs: int | None = Field(
        None, gt=0, description="Segments end after this number of epochs; None: no end by epochs."
    )
    hours: float | None = Field(None, gt=0, description="Longest time of a segment in hours; None: no limit.")
    count: int = Field(
        20,
        ge=1,
        description="Number of segments of an undisturbed run if steps, epochs and hours are not set; a segment "
        "lasts at "
        "least half an hour and at least 20 changeover delays; 1: no planned ends. No effect on Slurm and Ray.",
    )


class ProgramSpec(FiniteValue):
    """A program that has its own training loop and uses `segue.session()`."""

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
