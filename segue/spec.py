"""RunSpec: the specification of a run, from TOML, from Prefect parameters or from Python."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shlex
import tomllib
import typing
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic import (
    AwareDatetime,
    Field,
    JsonValue,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from segue.errors import DeadlinePassedError, SpecError
from segue.parsing import parsed
from segue.policies import POLICIES, checked_parameters, declaration, declared_policy
from segue.pool_prices import PoolSpec
from segue.records import FiniteValue, Record

log = logging.getLogger(__name__)

RENAMED = {
    "checkpoints.arenas": "staging_buffers",
    "continuity.fire_drill": "rehearsal",
    "liveness.lease_seconds": "heartbeat_timeout_seconds",
}
"""Settings of version 0.1 that were renamed: section and old name, new name. Files with old names cause a warning."""

_PYTHON = re.compile(r"python[0-9.]*")

_REMOTE_LOOK_SECONDS, _REMOTE_LOOK_HEARTBEATS = 10.0, 5
"""The longest time between two looks of a parent into a remote store, in seconds and in heartbeats."""


class _Section(FiniteValue):
    """A table of a run spec that also accepts settings by their old names, as in logs of version 0.1."""

    @model_validator(mode="before")
    @classmethod
    def _takes_old_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        old = {name.partition(".")[2]: new for name, new in RENAMED.items() if new in cls.model_fields}
        return {old.get(name, name) if old.get(name) not in data else name: value for name, value in data.items()}


class StoreSpec(FiniteValue):
    """The store of a run. It never holds credentials; boto3 finds them."""

    url: str = Field(".segue/store", description="URL of the store: a folder, file:///folder, or s3://bucket/prefix.")
    endpoint_url: str | None = Field(
        None, pattern=r"^https?://[^/\s]+", description="S3 endpoint, e.g. http://127.0.0.1:9000; None: AWS."
    )
    region: str | None = Field(None, description="S3 region; None: the one that boto3 finds.")

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


class CheckpointSpec(_Section):
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
        "only the optimizer changes.",
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


class ContinuitySpec(_Section):
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


class PolicySpec(FiniteValue):
    """When to leave spot, and when to come back. Priors are used until the run has measured its own values."""

    name: str = Field(
        "plan",
        json_schema_extra={"enum": list(POLICIES)},
        description="Rule that picks the capacity; docs/deadline.md describes when each is right.",
    )
    parameters: dict[str, float] = Field(default_factory=dict, description="Parameters of that rule: preemptions = 3.")
    max_preemptions: int | None = Field(
        None, ge=0, description="Preemptions after which on-demand does the rest, with any rule; None: no bound."
    )
    handover: bool = Field(
        True,
        description="Keep on-demand running while a replacement spot machine is awaited and boots, then move the run "
        "there; false: on-demand does the rest once it was chosen.",
    )
    changeover_seconds: float = Field(
        120.0, ge=0, description="Prior: seconds from the end of one segment to the first new step of the next."
    )
    detection_seconds: float | None = Field(
        None,
        ge=0,
        description="Longest time until a silent death is noticed; None: the heartbeat timeout plus one heartbeat, "
        "or plus the time between two looks into a remote store.",
    )
    step_seconds: float | None = Field(
        None, gt=0, description="Prior: seconds per step; None: a short probe on spot measures it first."
    )
    probe_share: float = Field(
        0.1, gt=0, le=0.5, description="Share of the time to the deadline that unmeasured probes may use."
    )
    margin_share: float = Field(
        0.05, ge=0, le=1, description="Safety margin: share by which the remaining work is overestimated."
    )
    max_failures: int = Field(
        2, ge=1, description="Attempts in which the user's code may raise at the same place before the run stops."
    )
    max_transient_failures: int = Field(
        5, ge=1, description="The same for errors of disk, network and worker processes, retried after a back-off."
    )
    max_out_of_memory: int = Field(2, ge=1, description="The same for attempts that ran out of memory.")
    max_hung: int = Field(2, ge=1, description="The same for attempts that made no step within the hang timeout.")
    max_lost_in_place: int = Field(
        5, ge=1, description="Attempts in a row that may die without a commit before the run stops as hopeless."
    )

    @field_validator("name")
    @classmethod
    def _is_declared(cls, name: str) -> str:
        try:
            return declaration(name).name
        except ValueError as error:
            raise PydanticCustomError("policy_name", "{problem}", {"problem": str(error)}) from None

    @field_validator("parameters")
    @classmethod
    def _are_of_the_policy(cls, given: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        if "name" in info.data:  # A wrong name is a problem of its own.
            try:
                checked_parameters(info.data["name"], given)
            except ValueError as error:
                raise PydanticCustomError("policy_parameters", "{problem}", {"problem": str(error)}) from None
        return given

    @property
    def preemption_bound(self) -> int | None:
        """Preemptions after which on-demand does the rest; None: no bound."""
        own = declared_policy(self.name, self.parameters).preemption_bound
        given = [bound for bound in (own, self.max_preemptions) if bound is not None]
        return min(given, default=None)


class LivenessSpec(_Section):
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
        300.0, gt=0, description="Rank timeout: longest wait of ranks for another one, in a step or while restoring."
    )
    first_step_seconds: float = Field(
        1800.0, gt=0, description="Hang timeout until the first step, and of the first evaluation, in seconds."
    )
    hang_seconds: float = Field(
        120.0, gt=0, description="Hang timeout: an attempt without a step for this long in seconds is ended."
    )
    hang_factor: float = Field(
        30.0, ge=1, description="Hang timeout as a multiple of the usual step time; the longer of the two counts."
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
        description="Where no other end is set: segments of an undisturbed run, none shorter than half an hour or 20 "
        "changeovers; 1: no planned ends.",
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


class RunSpec(FiniteValue, Record):
    """The specification of a run: recipe or program, goal, deadline, store, capacity."""

    run_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="Name of the run. Starting a run with an existing run_id resumes it.",
    )
    program: ProgramSpec | None = Field(
        None, description="Program with a training loop of its own, instead of a recipe."
    )
    recipe: str | None = Field(
        None,
        validate_default=True,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Function that builds the recipe, as package.module:function; None: [program] is trained.",
    )
    steps: int = Field(gt=0, description="Goal: number of optimizer steps from step 0.")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Configuration passed to the recipe.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of weights, data order and every random stream.")
    threads: int | None = Field(
        None, ge=1, description="Intra-op threads; None: torch's default. Set it to compare runs across machines."
    )
    device: str = Field("auto", description="Device: auto, cpu or cuda; auto: cuda if there is an accelerator.")
    ranks: int | None = Field(
        1, ge=1, le=1024, description="Processes that train together on one machine; None: one per accelerator."
    )
    deadline: AwareDatetime | None = Field(
        None, description="Time at which the run must be finished, with time zone; None: minimize the cost."
    )
    grace_seconds: float = Field(
        25.0, gt=0, description="Grace period: seconds from the platform's SIGTERM to SIGKILL."
    )
    notices: tuple[typing.Literal["aws", "gce", "azure"], ...] | None = Field(
        None,
        description="Metadata services to watch for termination notices: aws, gce, azure; None: that of the platform, "
        "found at the start of an attempt. Signals, recall and notice_file are always watched.",
    )
    store: StoreSpec = StoreSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    continuity: ContinuitySpec = ContinuitySpec()
    anomalies: AnomalySpec = AnomalySpec()
    policy: PolicySpec = PolicySpec()
    liveness: LivenessSpec = LivenessSpec()
    pools: PoolSpec = PoolSpec()
    segment: SegmentSpec = SegmentSpec()

    @field_validator("recipe")
    @classmethod
    def _trains_one_thing(cls, recipe: str | None, info: ValidationInfo) -> str | None:
        if "program" in info.data and (recipe is None) == (info.data["program"] is None):
            text = "give either a recipe, as package.module:function, or a program: -- python SCRIPT, or [program]"
            raise PydanticCustomError("recipe_or_program", text)
        return recipe

    @field_validator("config", "ranks", "anomalies", "segment")
    @classmethod
    def _fits_a_program(cls, value: Any, info: ValidationInfo) -> Any:
        why = _unfit_for_a_program(value) if info.data.get("program") is not None else None
        if why is not None:
            raise PydanticCustomError("unfit_for_a_program", why)
        return value

    @property
    def recipe_path(self) -> str:
        """The recipe as package.module:function.

        Raises:
            SpecError: the run trains a program.
        """
        if self.recipe is None:
            problem = "recipe: this needs a recipe, and the run trains a program with a loop of its own"
            raise SpecError(source=f"the spec of run {self.run_id!r}", problems=(problem,))
        return self.recipe

    @property
    def kind(self) -> typing.Literal["recipe", "program"]:
        """What is trained: a recipe or a program."""
        return "recipe" if self.program is None else "program"

    @property
    def workload(self) -> str:
        """What is trained, in words: the recipe's path or the program's command."""
        return self.recipe or shlex.join(self.program.command if self.program is not None else ())

    @classmethod
    def parse(cls, data: object, *, source: str = "the run spec") -> Self:
        """Validate plain data.

        Raises:
            SpecError: some fields are wrong; it names each by its path, with the remedy.
        """
        _warn_of_old_names(data, source=source)
        return parsed(cls, data, source=source)

    @classmethod
    def from_toml(cls, path: Path, **overrides: object) -> Self:
        """Read a TOML file; overrides that are not None replace the file's values.

        Raises:
            SpecError: the file cannot be read, is not TOML, or has wrong fields.
        """
        return cls.parse(read_toml(path) | {k: v for k, v in overrides.items() if v is not None}, source=str(path))

    def require_future_deadline(self, now: datetime) -> None:
        """Raise DeadlinePassedError when the deadline is not after `now`."""
        if self.deadline is not None and self.deadline <= now:
            raise DeadlinePassedError(
                deadline=self.deadline.isoformat(timespec="seconds"), now=now.isoformat(timespec="seconds")
            )

    def identity(self) -> dict[str, str]:
        """The fields that define what is trained; a change in them is drift."""
        config = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        names = {
            "recipe" if self.recipe else "program": self.workload,
            "steps": str(self.steps),
            "seed": str(self.seed),
        }
        for key, value in sorted(self.config.items()):
            names[f"config.{key}"] = json.dumps(value, sort_keys=True)
        names["config"] = hashlib.sha256(config.encode()).hexdigest()[:12]
        return names


def _unfit_for_a_program(value: object) -> str | None:
    """Why a setting cannot be kept for a program, whose loop and data are not segue's; None where it can."""
    if isinstance(value, dict):
        return "a program has no config; give it options in its command" if value else None
    if isinstance(value, AnomalySpec):
        is_skip = "skip" in (value.non_finite, value.spikes)
        return "a batch of a program cannot be skipped; use rollback" if is_skip else None
    if isinstance(value, SegmentSpec):
        return "the epochs of a program are not known; use steps or hours" if value.epochs is not None else None
    return "a program trains in one process; several need a recipe" if value != 1 else None


def _warn_of_old_names(data: object, *, source: str) -> None:
    for name, new in RENAMED.items():
        section, _, old = name.partition(".")
        table = data.get(section) if isinstance(data, dict) else None
        if isinstance(table, dict) and old in table:
            log.warning("%s: %s is now %s.%s; the old name is read for this version only", source, name, section, new)


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a TOML file.

    Raises:
        SpecError: the file cannot be read, or is not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror}); check the path"
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problem = f"the file is not TOML ({error}); correct that line"
    raise SpecError(source=str(path), problems=(problem,))
