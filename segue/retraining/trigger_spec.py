"""The table [trigger] of retrain.toml."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.records import FiniteValue


class ArrivalSpec(FiniteValue):
    """A slot begins when the files of its window are new or have changed, and are complete."""

    settle_minutes: float = Field(
        5.0,
        ge=0,
        description="Minutes without a change of any file's size or time, after which they are complete; with "
        "`marker`, if that is older than a file of its folder.",
    )
    marker: str | None = Field(
        None,
        pattern=r"^[^/%*?]+$",
        description="Name of a file, such as _SUCCESS, that is written to each folder after the files of a delivery, "
        "which are complete then without settling.",
    )


class DriftSpec(FiniteValue):
    """A slot begins when data in service has drifted from that of the version in service, which it is compared with."""

    data: str = Field(
        min_length=1, description="Where its files are: a path, a glob, or a folder or prefix ending with '/'."
    )
    newest_files: int = Field(7, ge=1, description="Number of its newest files, by name, that are read.")
    max_psi: float | None = Field(None, gt=0, description="Greatest population stability index of a column.")
    max_ks: float | None = Field(
        None, gt=0, le=1, validate_default=True, description="Greatest Kolmogorov-Smirnov distance of a column."
    )
    columns: tuple[str, ...] | None = Field(
        None, min_length=1, description="Columns to compare; None: all that both have, so that a label may be missing."
    )

    @field_validator("data")
    @classmethod
    def _has_no_fields(cls, data: str) -> str:
        if "%" in data:
            text = "cannot have fields of strftime; give a glob or a folder, and newest_files for the newest of them"
            raise PydanticCustomError("trigger", text)
        return data

    @field_validator("max_ks")
    @classmethod
    def _has_a_limit(cls, limit: float | None, info: ValidationInfo) -> float | None:
        if limit is None and "max_psi" in info.data and info.data["max_psi"] is None:
            raise PydanticCustomError("trigger", "needs max_psi or max_ks: above what a column has drifted, e.g. 0.25")
        return limit


class TriggerSpec(FiniteValue):
    """What begins a slot besides the schedule and a person. The deployment watch/NAME looks for it."""

    every_minutes: float = Field(10.0, ge=1, description="Minutes from one look to the next.")
    event: str | None = Field(
        None,
        min_length=1,
        description="Name of a Prefect event after which it is also looked at once, e.g. lake.flights.delivered.",
    )
    arrival: ArrivalSpec | None = None
    drift: DriftSpec | None = Field(None, validate_default=True)

    @field_validator("drift")
    @classmethod
    def _has_a_cause(cls, drift: DriftSpec | None, info: ValidationInfo) -> DriftSpec | None:
        if drift is None and "arrival" in info.data and info.data["arrival"] is None:
            raise PydanticCustomError("trigger", "needs [trigger.arrival] or [trigger.drift]: what begins a slot")
        return drift
