"""Defines retrain.toml, the specification of a scheduled retraining."""

from __future__ import annotations

import typing
from pathlib import Path
from typing import Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, JsonValue, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.credentials import secrets_in
from segue.data.frames import place_of
from segue.errors import SpecError
from segue.parsing import parsed
from segue.records import FiniteValue, Record
from segue.retraining.promotion_spec import FUNCTION, EvaluationSpec
from segue.retraining.trigger_spec import TriggerSpec
from segue.retraining.window_spec import WindowSpec
from segue.spec import DataAccess, DataFile, DataSpec, RunSpec, read_toml

_OF_THE_SLOT, _OF_THE_FILES = ("run_id", "deadline", "data"), ("data", "reading")
_ANY_SLOT = "20000101t0000"


class GateSpec(FiniteValue):
    """The requirements for the data of a slot, which are checked before any capacity is bought."""

    suite: str | None = Field(
        None, description="File with a suite of Great Expectations, relative to retrain.toml; None: no suite."
    )
    on_failure: typing.Literal["stop", "warn"] = Field(
        "stop", description="Reaction to unmet expectations: stop, or record them and train."
    )
    time_column: str | None = Field(
        None, description="Column with the time of each row, for max_age_hours: a time, or text in ISO 8601."
    )
    max_age_hours: float | None = Field(
        None,
        gt=0,
        description="Highest permitted age in hours of the newest row at the slot's time; needs time_column.",
    )
    min_rows_share: float | None = Field(
        None,
        gt=0,
        description="Lowest permitted number of rows of a period, as a share of the mean over the window's periods.",
    )
    max_rows_share: float | None = Field(
        None,
        gt=0,
        description="Highest permitted number of rows of a period, as a share of the mean over the window's periods.",
    )
    max_psi: float | None = Field(
        None,
        gt=0,
        description="Highest permitted population stability index (PSI) of a column, against the previous window.",
    )
    max_ks: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Highest permitted Kolmogorov-Smirnov (KS) distance of a column, against the previous window.",
    )
    drift_columns: tuple[str, ...] | None = Field(None, description="Columns whose drift is computed; None: all.")

    @field_validator("max_age_hours")
    @classmethod
    def _is_of_a_column(cls, hours: float | None, info: ValidationInfo) -> float | None:
        if hours is not None and info.data.get("time_column") is None:
            raise PydanticCustomError("window", "needs gate.time_column, the column with the time of each row")
        return hours


class RegistrySpec(FiniteValue):
    """The model registry of an MLflow server, to which segue copies versions and promotions."""

    tracking_uri: str = Field(description="URL of the MLflow server without credentials, e.g. http://mlflow:5000.")
    name: str | None = Field(None, description="Name of the registered model; None: `name` of this file.")
    alias: str = Field("champion", description="Alias of the version in service.")

    @field_validator("tracking_uri")
    @classmethod
    def _holds_no_credentials(cls, uri: str) -> str:
        if "@" in uri.partition("://")[2].partition("/")[0]:
            text = "holds credentials, which would be stored; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            raise PydanticCustomError("credentials", text)
        return uri


class PublishSpec(FiniteValue):
    """The part of a run's checkpoint that becomes the candidate, and the function that returns the model."""

    checkpoint: typing.Literal["last", "best"] = Field(
        "last", description="Checkpoint to publish: the last of the run, or the one with the best metric."
    )
    component: str = Field(
        "model",
        description="Component to publish: `model`, or `extra.NAME`, e.g. an average; for a program, the name of a "
        "tracked object.",
    )
    model: str | None = Field(
        None,
        pattern=FUNCTION,
        description="Function of the run's config, as package.module:function, that returns the model without its "
        "weights; required for an evaluation.",
    )
    example: str | None = Field(
        None,
        pattern=FUNCTION,
        description="Function without arguments that returns example arguments of the model, as a tuple. With "
        "`example`, the model is also published as a program of torch.export, which runs without the user's code.",
    )
    mlflow: RegistrySpec | None = None

    @field_validator("example")
    @classmethod
    def _has_a_model(cls, example: str | None, info: ValidationInfo) -> str | None:
        if example is not None and info.data.get("model") is None:
            raise PydanticCustomError("publish", "needs publish.model, the function that returns the model")
        return example


class RetrainSpec(Record):
    """A scheduled retraining."""

    name: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{0,39}$",
        description="Name of the model; the runs are called NAME-TIME with the slot's time in UTC: "
        "flights-20130701t1000.",
    )
    timezone: str = Field("UTC", description="Time zone of the schedule and the periods, e.g. Europe/Berlin.")
    schedule: str | None = Field(
        None, description='Cron expression in `timezone`, e.g. "0 6 2 * *"; None: slots are started by hand.'
    )
    ready_within_hours: float | None = Field(
        None, gt=0, description="Hours from the slot's time to the deadline of its run; None: no deadline."
    )
    overlap: typing.Literal["queue", "skip", "supersede"] = Field(
        "queue",
        description="Reaction to an earlier slot that is not done. `queue` waits for the earlier slot, `skip` skips "
        "the new slot, `supersede` stops the earlier slot at a checkpoint.",
    )
    missed: typing.Literal["skip", "run"] = Field(
        "skip",
        description="Reaction to slots that were not started before the next slot: skip them, or run them in order.",
    )
    start_from: typing.Literal["scratch", "in_service"] = Field(
        "scratch", description="First weights of a run: the weights that the recipe builds, or the weights in service."
    )
    promotion: typing.Literal["automatic", "ask"] = Field(
        "automatic", description="Who promotes a better candidate: segue (automatic), or a person (ask)."
    )
    decide_within_hours: float | None = Field(
        None,
        gt=0,
        le=672,
        description="Hours that a candidate waits for a decision. Without a decision, it is not promoted. None: 72.",
    )
    data: WindowSpec
    trigger: TriggerSpec | None = Field(
        None,
        description="Triggers that start slots besides the schedule; None: only the schedule and people start slots.",
    )
    gate: GateSpec = GateSpec()
    run: dict[str, JsonValue] = Field(
        description="Run spec of each slot, without run_id, deadline and data, which each slot sets itself."
    )
    publish: PublishSpec = PublishSpec()
    evaluation: EvaluationSpec | None = Field(
        None, validate_default=True, description="Rule for promotions; None: every candidate is promoted."
    )

    @field_validator("run")
    @classmethod
    def _is_a_run_spec(cls, run: dict[str, JsonValue], info: ValidationInfo) -> dict[str, JsonValue]:
        given = [name for name in _OF_THE_SLOT if name in run]
        if given:
            facts = {"names": ", ".join(given)}
            raise PydanticCustomError("run", "must not have {names}: each slot has its own", facts)
        config = run.get("config")
        given = [name for name in _OF_THE_FILES if isinstance(config, dict) and name in config]
        if given:
            text = "config.{name} is where each slot's files are passed; remove it there"
            raise PydanticCustomError("run", text, {"name": given[0]})
        if "program" in run and info.data.get("start_from") == "in_service":
            text = 'a program begins with weights of its own: start_from = "in_service" needs a recipe'
            raise PydanticCustomError("run", text)
        try:
            RunSpec.parse(run | {"run_id": f"{info.data.get('name', 'model')}-{_ANY_SLOT}"}, source="run")
        except SpecError as error:
            facts = {"problems": "; ".join(error.problems)}
            raise PydanticCustomError("run", "must be a run spec: {problems}", facts) from None
        return run

    @field_validator("evaluation")
    @classmethod
    def _has_a_model(cls, evaluation: EvaluationSpec | None, info: ValidationInfo) -> EvaluationSpec | None:
        publish, data = info.data.get("publish"), info.data.get("data")
        if evaluation is not None and publish is not None and publish.model is None:
            raise PydanticCustomError("evaluation", "needs publish.model, the function that returns the model")
        if evaluation is not None and data is not None and not data.held_back_periods:
            raise PydanticCustomError("evaluation", "needs data.held_back_periods of at least 1: rows to evaluate with")
        return evaluation

    @field_validator("decide_within_hours")
    @classmethod
    def _is_for_a_person(cls, hours: float | None, info: ValidationInfo) -> float | None:
        if hours is not None and info.data.get("promotion") == "automatic":
            raise PydanticCustomError("promotion", 'needs promotion = "ask": otherwise no person decides')
        return hours

    @field_validator("timezone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            ZoneInfo(name)
        except (ZoneInfoNotFoundError, ValueError):
            raise PydanticCustomError("timezone", "must be a time zone, e.g. Europe/Berlin") from None
        return name

    @property
    def zone(self) -> ZoneInfo:
        """The time zone of the schedule."""
        return ZoneInfo(self.timezone)

    @classmethod
    def from_toml(cls, path: Path) -> Self:
        """Read a TOML file.

        Raises:
            SpecError: the file cannot be read, is not TOML, has wrong fields, or contains credentials.
        """
        spec = parsed(cls, read_toml(path), source=str(path))
        problems = secrets_in(spec.model_dump(mode="json"))
        if problems:
            raise SpecError(source=str(path), problems=problems)
        return spec


class WindowFile(DataFile):
    """A file of a window."""

    period: str = Field(description="Name of the file's period, or name of the file if there are no periods.")
    is_held_back: bool = Field(description="Whether the file is only for the evaluation.")


class MissingPeriod(FiniteValue):
    """A period without files."""

    period: str
    pattern: str = Field(description="Place at which files of the period were expected.")


class Window(Record):
    """The data of one slot, as it was when the slot was planned."""

    files: tuple[WindowFile, ...] = Field(description="Files by period, oldest first, and by path.")
    missing: tuple[MissingPeriod, ...] = Field((), description="Periods of the window that had no files.")
    columns: dict[str, str] = Field(
        default_factory=dict, description="Types of the columns over all files; every reader uses these types."
    )
    unlike: tuple[str, ...] = Field((), description="Conflicts between the window's files, in sentences.")

    def data_of(self, files: tuple[WindowFile, ...], access: DataAccess) -> DataSpec:
        """Return the data part of a run spec, with these files of the window. The run reads them as the check of the
        window did."""
        plain = tuple(DataFile(**file.model_dump(include=set(DataFile.model_fields))) for file in files)
        return DataSpec(files=plain, columns=self.columns, **access.model_dump(include=set(DataAccess.model_fields)))

    @property
    def content(self) -> frozenset[tuple[str, str, bool]]:
        """The identity of the data. Two windows have the same identity if their files have equal paths and hashes,
        and are used equally.
        """
        return frozenset((file.path, file.sha256, file.is_held_back) for file in self.files)

    @property
    def training(self) -> tuple[WindowFile, ...]:
        """The files on which the slot trains."""
        return tuple(file for file in self.files if not file.is_held_back)

    def place_of_held_back(self, row: int) -> str:
        """Return the file of a row of the evaluation, and the number of the row in this file."""
        return place_of([(file.path, file.rows or 0) for file in self.held_back], row)

    @property
    def held_back(self) -> tuple[WindowFile, ...]:
        """The files that are only for the evaluation."""
        return tuple(file for file in self.files if file.is_held_back)
