"""Defines the table [trigger] of retrain.toml."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.records import FiniteValue


class ArrivalSpec(FiniteValue):
    """The trigger for new data. A slot begins when the files of its window are new or changed, and complete."""

    settle_minutes: float = Field(
        5.0,
        ge=0,
        description="Minutes without a change of any file's size or time, after which the files are complete. With "
        "`marker`, `settle_minutes` applies only if the marker is older than a file of its folder.",
    )
    marker: str | None = Field(
        None,
        pattern=r"^[^/%*?]+$",
        description="Name of a file, such as _SUCCESS, that is written to each folder after the files of a delivery. "
        "If this file exists, the delivery counts as complete immediately.",
    )


class DriftSpec(FiniteValue):
    """The trigger for drift. A slot begins when the data that the model in service receives has drifted."""

    data: str = Field(
        min_length=1, description="Place of the files: a path, a glob, or a folder or bucket prefix that ends with '/'."
    )
    newest_files: int = Field(7, ge=1, description="Number of newest files, by name, that are read.")
    max_psi: float | None = Field(
        None, gt=0, description="Limit of a column's population stability index (PSI) above which a slot starts."
    )
    max_ks: float | None = Field(
        None,
        gt=0,
        le=1,
        validate_default=True,
        description="Limit of a column's Kolmogorov-Smirnov (KS) distance above which a slot starts.",
    )
    columns: tuple[str, ...] | None = Field(
        None, min_length=1, description="Columns to compare; None: all columns in both data sets."
    )

    @field_validator("data")
    @classmethod
    def _has_no_fields(cls, data: str) -> str:
        if "%" in data:
            text = "cannot have fields of strftime; give a glob or a folder, and the number of files in newest_files"
            raise PydanticCustomError("trigger", text)
        return data

    @field_validator("max_ks")
    @classmethod
    def _has_a_limit(cls, limit: float | None, info: ValidationInfo) -> float | None:
        if limit is None and "max_psi" in info.data and info.data["max_psi"] is None:
            raise PydanticCustomError("trigger", "needs max_psi or max_ks: the limit of a column's drift, e.g. 0.25")
        return limit


class TriggerSpec(FiniteValue):
    """The causes of a slot besides the schedule and a person. The deployment watch/NAME checks for these causes."""

    every_minutes: float = Field(10.0, ge=1, description="Minutes between two checks for new or drifted data.")
    event: str | None = Field(
        None,
        min_length=1,
        description="Name of a Prefect event that starts an additional check at once, e.g. lake.flights.delivered.",
    )
    arrival: ArrivalSpec | None = None
    drift: DriftSpec | None = Field(None, validate_default=True)

    @field_validator("drift")
    @classmethod
    def _has_a_cause(cls, drift: DriftSpec | None, info: ValidationInfo) -> DriftSpec | None:
        if drift is None and "arrival" in info.data and info.data["arrival"] is None:
            raise PydanticCustomError("trigger", "needs [trigger.arrival] or [trigger.drift]: the cause of a slot")
        return drift
