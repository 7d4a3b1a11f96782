"""Defines RunSpec, the specification of a run, which is read from TOML, Prefect parameters or Python."""

from __future__ import annotations

import hashlib
import json
import shlex
import typing
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic import AwareDatetime, Field, JsonValue, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from segue.credentials import secrets_in
from segue.errors import DeadlinePassedError, SpecError
from segue.parsing import parsed
from segue.records import FiniteValue, Record
from segue.spec.budget import Budget, BudgetSpec
from segue.spec.data import DataSpec, Reading
from segue.spec.launchers import RaySpec, SlurmSpec, range_of_ranks
from segue.spec.policy import PolicySpec
from segue.spec.pool_prices import PoolSpec
from segue.spec.section import read_toml, warn_of_old_names
from segue.spec.sections import (
    AnomalySpec,
    CheckpointSpec,
    ContinuitySpec,
    LivenessSpec,
    ProgramSpec,
    SegmentSpec,
    StoreSpec,
)
from segue.spec.trackers import TrackerOptions, why_no_tracker


class RunSpec(FiniteValue, Record):
    """The specification of a run: recipe or program, goal, deadline, store, capacity."""

    run_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$",
        description="Name of the run. Starting a run with an existing run_id resumes it.",
    )
    program: ProgramSpec | None = Field(
        None, description="Program with its own training loop, given instead of a recipe."
    )
    recipe: str | None = Field(
        None,
        validate_default=True,
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="Function that builds the recipe, as package.module:function; None: the run trains [program].",
    )
    steps: int = Field(gt=0, description="Goal: number of optimizer steps from step 0.")
    config: dict[str, JsonValue] = Field(
        default_factory=dict, description="Configuration passed to the recipe, or to the program as run.config."
    )
    seed: int = Field(0, ge=0, lt=2**63, description="Seed of the initial weights, the data order and all RNG streams.")
    threads: int | None = Field(
        None,
        ge=1,
        description="Number of intra-op threads; None: torch's default. Set a number to compare runs across machines.",
    )
    deterministic: bool = Field(
        False,
        # Left out if it is not set: older versions refuse a record with a field that they do not know.
        exclude_if=lambda is_set: not is_set,
        description="Whether torch may use only deterministic kernels, so that resumes are equal bit for bit. Steps "
        "become slower, and an operation without a deterministic kernel ends the run.",
    )
    device: str = Field("auto", description="Device: auto, cpu or cuda; auto: cuda if there is an accelerator.")
    ranks: int | None = Field(
        1,
        ge=1,
        le=1024,
        description="Number of training processes on all nodes together; None: one per accelerator. With [ray], a "
        "range is also possible: {min = 2, max = 8}.",
    )
    deadline: AwareDatetime | None = Field(
        None,
        description="Time at which the run must be finished, with time zone; None: no deadline, minimize the cost.",
    )
    grace_seconds: float = Field(
        25.0, gt=0, description="Grace period: seconds from the platform's SIGTERM to SIGKILL."
    )
    notices: tuple[typing.Literal["aws", "gce", "azure"], ...] | None = Field(
        None,
        description="Metadata services to watch for termination notices: aws, gce, azure; None: the service of the "
        "platform, detected at the start of an attempt. Signals, recall and notice_file are always watched.",
    )
    data: DataSpec | None = Field(
        None, description="Files that are passed as config['data']; their hashes are checked before each segment."
    )
    store: StoreSpec = StoreSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    continuity: ContinuitySpec = ContinuitySpec()
    anomalies: AnomalySpec = AnomalySpec()
    policy: PolicySpec = PolicySpec()
    liveness: LivenessSpec = LivenessSpec()
    pools: PoolSpec = PoolSpec()
    budget: Budget = BudgetSpec()
    segment: SegmentSpec = SegmentSpec()
    slurm: SlurmSpec | None = Field(
        None,
        # Left out if it is not set: older versions refuse a record with a field that they do not know.
        exclude_if=lambda table: table is None,
        description="Slurm cluster on which the trainers run; None: each segment trains on its own machine.",
    )
    ray: RaySpec | None = Field(
        None,
        exclude_if=lambda table: table is None,
        description="Ray cluster on which the trainers run; None: each segment trains on its own machine.",
    )
    trackers: dict[str, TrackerOptions] = Field(
        default_factory=dict,
        description="Experiment trackers and their options: mlflow, tensorboard, or package.module:factory.",
    )

    @model_validator(mode="before")
    @classmethod
    def _takes_a_range(cls, data: Any) -> Any:
        return range_of_ranks(data) if isinstance(data, dict) else data

    @field_validator("ranks", mode="before")
    @classmethod
    def _is_no_wrong_range(cls, ranks: Any) -> Any:
        if isinstance(ranks, dict):
            why = "a range of ranks is written {min = 2, max = 8}; it needs [ray], and [ray] may not set min_ranks"
            raise PydanticCustomError("ranks", "{why}", {"why": why})
        return ranks

    @field_validator("recipe")
    @classmethod
    def _trains_one_thing(cls, recipe: str | None, info: ValidationInfo) -> str | None:
        if "program" in info.data and (recipe is None) == (info.data["program"] is None):
            text = "give either a recipe, as package.module:function, or a program: -- python SCRIPT, or [program]"
            raise PydanticCustomError("recipe_or_program", text)
        return recipe

    @field_validator("anomalies")
    @classmethod
    def _fits_a_program(cls, anomalies: AnomalySpec, info: ValidationInfo) -> AnomalySpec:
        if info.data.get("program") is not None and "skip" in (anomalies.non_finite, anomalies.spikes):
            raise PydanticCustomError("unfit_for_a_program", "a batch of a program cannot be skipped; use rollback")
        return anomalies

    @field_validator("checkpoints")
    @classmethod
    def _counts_epochs(cls, checkpoints: CheckpointSpec, info: ValidationInfo) -> CheckpointSpec:
        if info.data.get("program") is not None and checkpoints.every_epochs is not None:
            text = "every_epochs needs a recipe, because segue does not know the epochs of a program; use every_steps"
            raise PydanticCustomError("unfit_for_a_program", text)
        return checkpoints

    @field_validator("data")
    @classmethod
    def _is_not_in_the_config(cls, data: DataSpec | None, info: ValidationInfo) -> DataSpec | None:
        given = () if data is None else sorted(data.taken & info.data.get("config", {}).keys())
        if given:
            text = "these files are passed as config.{name}; remove {name} from [config]"
            raise PydanticCustomError("data", text, {"name": given[0]})
        return data

    @field_validator("slurm")
    @classmethod
    def _divides_the_ranks(cls, slurm: SlurmSpec | None, info: ValidationInfo) -> SlurmSpec | None:
        ranks = info.data.get("ranks")
        if slurm is not None and ranks is not None and ranks % slurm.nodes:
            text = "ranks must be a multiple of nodes; ranks is {ranks}, and nodes is {nodes}"
            raise PydanticCustomError("nodes", text, {"nodes": slurm.nodes, "ranks": ranks})
        return slurm

    @field_validator("ray")
    @classmethod
    def _can_place_the_ranks(cls, ray: RaySpec | None, info: ValidationInfo) -> RaySpec | None:
        if ray is None:
            return None
        why = ray.why_unfit(info.data["ranks"]) if "ranks" in info.data else None
        if info.data.get("slurm") is not None:
            why = "a run trains either on a Slurm cluster or on a Ray cluster; remove [slurm] or [ray]"
        if ray.min_ranks is not None and info.data.get("program") is not None:
            why = "the number of ranks of a program cannot change; remove min_ranks"
        if why is not None:
            raise PydanticCustomError("ray", "{why}", {"why": why})
        return ray

    @field_validator("trackers")
    @classmethod
    def _are_trackers(cls, trackers: dict[str, TrackerOptions]) -> dict[str, TrackerOptions]:
        for name, options in trackers.items():
            why = why_no_tracker(name, options)
            if why is not None:
                raise PydanticCustomError("tracker", "{why}", {"why": why})
        return trackers

    @property
    def recipe_path(self) -> str:
        """The recipe in the form package.module:function.

        Raises:
            SpecError: the run trains a program.
        """
        if self.recipe is None:
            problem = "recipe: this command needs a recipe, but the run trains a program with its own training loop"
            raise SpecError(source=f"the spec of run {self.run_id!r}", problems=(problem,))
        return self.recipe

    @property
    def trains_elsewhere(self) -> bool:
        """Whether the trainers run on other machines than the segments. A segment then cannot keep a trainer's
        machine.
        """
        return self.slurm is not None or self.ray is not None

    @property
    def ranks_of_a_node(self) -> int | None:
        """Number of ranks on one machine: all ranks, or the ranks of one node of a cluster."""
        if self.slurm is not None and self.ranks is not None:
            return self.ranks // self.slurm.nodes
        return self.ranks if self.ray is None else self.ray.ranks_per_bundle

    @property
    def kind(self) -> typing.Literal["recipe", "program"]:
        """The kind of workload: recipe or program."""
        return "recipe" if self.program is None else "program"

    @property
    def workload(self) -> str:
        """The workload in words: the path of the recipe or the command of the program."""
        return self.recipe or shlex.join(self.program.command if self.program is not None else ())

    @classmethod
    def parse(cls, data: object, *, source: str = "the run spec") -> Self:
        """Validate plain data.

        Raises:
            SpecError: some fields are wrong. The error names each wrong field by its path, with the fix.
        """
        warn_of_old_names(data, source=source)
        return parsed(cls, data, source=source)

    @classmethod
    def from_toml(cls, path: Path, **overrides: object) -> Self:
        """Read a TOML file. Overrides that are not None replace the values of the file.

        Raises:
            SpecError: the file cannot be read, is not TOML, or has wrong fields.
        """
        return cls.parse(read_toml(path) | {k: v for k, v in overrides.items() if v is not None}, source=str(path))

    def require_future_deadline(self, now: datetime) -> None:
        """Raise DeadlinePassedError if the deadline is not after `now`."""
        if self.deadline is not None and self.deadline <= now:
            raise DeadlinePassedError(
                deadline=self.deadline.isoformat(timespec="seconds"), now=now.isoformat(timespec="seconds")
            )

    def require_no_secrets(self) -> None:
        """Check that no field of the spec looks like a credential by its name or form.

        The spec is stored in the log and shown to users.

        Raises:
            SpecError: some fields look like credentials. The error names the fields but not their values.
        """
        problems = secrets_in(self.model_dump(mode="json"))
        if problems:
            raise SpecError(source=f"the spec of run {self.run_id!r}", problems=problems)

    def identity(self) -> dict[str, str]:
        """Return the fields that define the training. A change of one of these fields is drift."""
        config = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        names = {
            "recipe" if self.recipe else "program": self.workload,
            "steps": str(self.steps),
            "seed": str(self.seed),
        }
        for key, value in sorted(self.config.items()):
            names[f"config.{key}"] = json.dumps(value, sort_keys=True)
        for file in self.data.files if self.data is not None else ():
            names[f"data.{file.path}"] = file.sha256
        if self.data is not None and self.data.reading != Reading():
            names["data.reading"] = self.data.reading.model_dump_json(exclude_defaults=True)
        names["config"] = hashlib.sha256(config.encode()).hexdigest()[:12]
        return names
