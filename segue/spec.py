"""RunSpec: what a person asks for, from TOML, from Prefect parameters or from Python."""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import tomllib
import typing
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pydantic import (
    AwareDatetime,
    BaseModel,
    Field,
    JsonValue,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from segue.errors import DeadlinePassedError, SpecError
from segue.policies import POLICIES, checked_parameters, declaration, declared_policy
from segue.pools import PoolSpec
from segue.records import FiniteValue, Record

log = logging.getLogger(__name__)

_Model = typing.TypeVar("_Model", bound=BaseModel)

RENAMED = {
    "checkpoints.arenas": "staging_buffers",
    "continuity.fire_drill": "rehearsal",
    "liveness.lease_seconds": "heartbeat_timeout_seconds",
}
"""Settings of version 0.1, by section and old name. Still read, for this version: from files with a warning."""


class _Section(FiniteValue):
    """A table of a run spec. Takes a setting by its old name too, as the logs of version 0.1 have it."""

    @model_validator(mode="before")
    @classmethod
    def _takes_old_names(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        old = {name.partition(".")[2]: new for name, new in RENAMED.items() if new in cls.model_fields}
        return {old.get(name, name) if old.get(name) not in data else name: value for name, value in data.items()}


class StoreSpec(FiniteValue):
    """Where a run lives. Credentials are never part of it: boto3 finds them."""

    url: str = Field(".segue/store", description="A folder, file:///folder, or s3://bucket/prefix.")
    endpoint_url: str | None = Field(
        None, pattern=r"^https?://[^/\s]+", description="S3 endpoint other than AWS's, e.g. http://127.0.0.1:9000."
    )
    region: str | None = Field(None, description="S3 region; None lets boto3 find it.")

    @classmethod
    def parse(cls, data: object, *, source: str) -> Self:
        """Validate plain data.

        Raises:
            SpecError: names every wrong field by its path, with the fix.
        """
        return _parsed(cls, data, source=source)


class CheckpointSpec(_Section):
    """How often to commit and what to keep."""

    every_steps: int | None = Field(None, gt=0, description="Commit every so many steps.")
    every_seconds: float | None = Field(
        None, gt=0, description="Commit every so many seconds; with neither given, as often as loses least, measured."
    )
    keep: int = Field(3, ge=2, description="Newest committed checkpoints to keep; 2 is the least that survives damage.")
    best: typing.Literal["min", "max"] = Field("min", description="Which way the user's metric is better.")
    staging: typing.Literal["blocking", "overlapped"] = Field(
        "blocking",
        description="overlapped: what only the optimizer changes is copied during the next forward and backward pass.",
    )
    staging_buffers: int = Field(
        1, ge=1, le=2, description="Copies of the state in memory; with 2 a save need not wait."
    )
    full_every: int = Field(
        1, ge=1, description="Store all tensors every so many saves, in between only those that changed; 1: always all."
    )
    fast_folder: str | None = Field(
        None, description="A folder on a local disk that gets every checkpoint first; resumes there prefer it."
    )
    max_work_at_risk_seconds: float = Field(
        600.0, gt=0, description="The longest between two commits; training stops when none succeeds for so long."
    )

    @property
    def longest_seconds(self) -> float | None:
        """The longest between two commits by the clock; None when steps alone decide."""
        if self.every_seconds is None and self.every_steps is None:
            return self.max_work_at_risk_seconds
        return self.every_seconds


MOST_WITNESS_STEPS = 64


class ContinuitySpec(_Section):
    """How much of a resume is replayed."""

    witness_steps: int = Field(
        8, ge=0, le=MOST_WITNESS_STEPS, description="Steps after a commit that a resume must reproduce."
    )
    rehearsal: typing.Literal["stop", "warn", "off"] = Field(
        "stop", description="What to do when a fresh process cannot continue from the run's first checkpoint."
    )
    accept: tuple[
        typing.Literal["setup.model", "setup.hyperparameters", "setup.code", "setup.data", "setup.binding"], ...
    ] = Field((), description="Parts of the setup that were changed on purpose since the checkpoint.")


OnAnomaly = typing.Literal["off", "rollback", "skip"]


class AnomalySpec(FiniteValue):
    """What to do about a step whose numbers go bad. It is never committed, unless it is not looked for."""

    non_finite: OnAnomaly = Field(
        "rollback", description="A loss, gradient or parameter norm that is nan or inf: off, rollback or skip."
    )
    spikes: OnAnomaly = Field("off", description="A loss far above its recent level: off, rollback or skip.")
    spike_factor: float = Field(
        10.0, gt=0, description="How many robust standard deviations above the median a loss may lie."
    )
    spike_window_steps: int = Field(64, ge=8, le=1024, description="Steps that make up the recent level.")
    max_rollbacks: int = Field(
        4, ge=0, description="Rollbacks before the run stops; a batch that is skipped has cost two."
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
        description="Longest time until a silent death is noticed; None: the heartbeat timeout plus one heartbeat.",
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
    max_failures: int = Field(2, ge=1, description="Attempts in which the user's code may raise before the run stops.")
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
    """How a living attempt is told from a dead one."""

    heartbeat_seconds: float = Field(2.0, gt=0, description="Seconds between two signs of life.")
    heartbeat_timeout_seconds: float = Field(
        30.0, gt=0, description="Heartbeat timeout: an attempt without a new heartbeat for this long is declared lost."
    )
    notice_file: str | None = Field(None, description="A file whose appearance on the machine is a notice.")
    rank_seconds: float = Field(
        300.0, gt=0, description="Longest that one rank may keep the others waiting, within a step or while restoring."
    )
    start_seconds: float = Field(900.0, gt=0, description="Longest wait for capacity when no deadline bounds it.")


class RunSpec(FiniteValue, Record):
    """What a person asks for: program, goal, deadline, store, capacity."""

    run_id: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$", description="Names the run; the same id goes on with it."
    )
    recipe: str = Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", description="package.module:function.")
    steps: int = Field(gt=0, description="Optimizer steps from step 0 to the goal.")
    config: dict[str, JsonValue] = Field(default_factory=dict, description="Passed to the recipe as it is.")
    seed: int = Field(0, ge=0, lt=2**63, description="Seeds weights, data order and every random stream.")
    threads: int | None = Field(None, ge=1, description="Intra-op threads; fix it to compare runs across machines.")
    device: str = Field("auto", description="auto, cpu or cuda.")
    ranks: int | None = Field(
        1, ge=1, le=1024, description="Processes that train together on one machine; None: one for each accelerator."
    )
    deadline: AwareDatetime | None = Field(None, description="When it must be finished; None: as cheap as can be.")
    grace_seconds: float = Field(25.0, gt=0, description="Seconds between the platform's SIGTERM and its SIGKILL.")
    store: StoreSpec = StoreSpec()
    checkpoints: CheckpointSpec = CheckpointSpec()
    continuity: ContinuitySpec = ContinuitySpec()
    anomalies: AnomalySpec = AnomalySpec()
    policy: PolicySpec = PolicySpec()
    liveness: LivenessSpec = LivenessSpec()
    pools: PoolSpec = PoolSpec()

    @classmethod
    def parse(cls, data: object, *, source: str = "the run spec") -> Self:
        """Validate plain data.

        Raises:
            SpecError: names every wrong field by its path, with the fix.
        """
        _warn_of_old_names(data, source=source)
        return _parsed(cls, data, source=source)

    @classmethod
    def from_toml(cls, path: Path, **overrides: object) -> Self:
        """Read a TOML file; keyword values that are not None win over the file's.

        Raises:
            SpecError: the file is missing, is not TOML, or has wrong fields.
        """
        return cls.parse(read_toml(path) | {k: v for k, v in overrides.items() if v is not None}, source=str(path))

    def require_future_deadline(self, now: datetime) -> None:
        """Raises DeadlinePassedError when the deadline is not after `now`."""
        if self.deadline is not None and self.deadline <= now:
            raise DeadlinePassedError(
                deadline=self.deadline.isoformat(timespec="seconds"), now=now.isoformat(timespec="seconds")
            )

    def identity(self) -> dict[str, str]:
        """The fields that make this training run this one; a change in them is drift."""
        config = json.dumps(self.config, sort_keys=True, separators=(",", ":"))
        names = {"recipe": self.recipe, "steps": str(self.steps), "seed": str(self.seed)}
        for key, value in sorted(self.config.items()):
            names[f"config.{key}"] = json.dumps(value, sort_keys=True)
        names["config"] = hashlib.sha256(config.encode()).hexdigest()[:12]
        return names


def _warn_of_old_names(data: object, *, source: str) -> None:
    for name, new in RENAMED.items():
        section, _, old = name.partition(".")
        table = data.get(section) if isinstance(data, dict) else None
        if isinstance(table, dict) and old in table:
            log.warning("%s: %s is now %s.%s; the old name is read for this version only", source, name, section, new)


def read_toml(path: Path) -> dict[str, Any]:
    """The file's table.

    Raises:
        SpecError: the file is missing, unreadable, or not TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(source=str(path), problems=(f"cannot be read ({error.strerror}); check the path",)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(source=str(path), problems=(f"is not TOML ({error}); fix that line",)) from None


def _parsed(model: type[_Model], data: object, *, source: str) -> _Model:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        problems = tuple(_problem(model, item) for item in error.errors())
        raise SpecError(source=source, problems=problems) from None


_PATTERN_FIXES = {
    "run_id": "must be lower-case letters, digits, '.', '_' or '-', at most 63 of them",
    "recipe": "is not package.module:function; write it like examples.flights:build",
    "deployment": "is not a deployment; write flow and name, like segment/spot",
    "on_demand": "is not a deployment; write flow and name, like segment/on-demand",
    "endpoint_url": "is not an address; write it like http://127.0.0.1:9000",
}


def _problem(model: type[BaseModel], item: Any) -> str:
    path = ".".join(str(part) for part in _without_tags(item["loc"])) or "the document"
    return f"{path}: {_fix(model, item)}"


def _fix(model: type[BaseModel], item: Any) -> str:
    where, given = item["loc"], repr(item["input"])
    match item["type"]:
        case "extra_forbidden":
            return _no_such_field(str(where[-1]), known=_fields_at(model, where[:-1]))
        case "missing":
            return "is missing; give it a value"
        case "string_pattern_mismatch" if where[-1] in _PATTERN_FIXES:
            return f"{given} {_PATTERN_FIXES[where[-1]]}"
        case "timezone_aware":
            return f"{given} has no time zone; add one, e.g. Z or +01:00"
        case "datetime_parsing" | "datetime_from_date_parsing" | "datetime_type":
            return f"{given} is not a time; write it like 2026-12-01T06:00:00+00:00"
        case "model_type":
            return f"{given} is not a table; known in it are {', '.join(_fields_at(model, where))}"
        case "dict_type":
            return f"{given} is not a table; give it names and values"
        case "invalid-json-value" | "finite_number" if where[0] == "config":
            return f"{given} does not survive as JSON; write it as a string"
    return f"{item['msg'][0].lower()}{item['msg'][1:]} (got {given})"


def _no_such_field(name: str, *, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return "no such field; " + (f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}")


def _without_tags(path: tuple[int | str, ...]) -> tuple[int | str, ...]:
    # Below [config], pydantic puts the type of each value between the keys: config.sizes.list.0.float.
    return tuple(part for at, part in enumerate(path) if path[0] != "config" or at < 2 or at % 2 == 1)


def _fields_at(model: type[BaseModel], path: tuple[int | str, ...]) -> list[str]:
    current: Any = model
    for part in path:
        if isinstance(part, int):
            continue  # A place in a list: the field before it said of what.
        annotation = current.model_fields[part].annotation
        options = typing.get_args(annotation) or (annotation,)
        current = next(option for option in options if isinstance(option, type) and issubclass(option, BaseModel))
    return list(current.model_fields)
