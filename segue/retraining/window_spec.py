"""Defines the files on which each slot of a scheduled retraining trains: the table `data` of retrain.toml."""

from __future__ import annotations

import typing
from datetime import date

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from segue.retraining.periods import Unit
from segue.spec import DataAccess


class WindowSpec(DataAccess):
    """The files on which a slot trains, and the files that are only for the evaluation."""

    files: str = Field(
        min_length=1,
        description="Place of the files: a path, a glob, or a folder or bucket prefix that ends with '/'. With "
        "`period`, the place may have fields of strftime, e.g. s3://lake/flights/%Y-%m.parquet.",
    )
    period: Unit | None = Field(
        None,
        validate_default=True,
        description="Period of a file: hour, day, week or month; None: each file is a separate period.",
    )
    window: typing.Literal["sliding", "growing"] = Field("sliding", description="Whether to leave out old periods.")
    periods: int | None = Field(
        None, validate_default=True, ge=1, description="Number of periods to train on, for a sliding window."
    )
    since: date | None = Field(None, validate_default=True, description="A day in a growing window's first period.")
    held_back_periods: int = Field(1, ge=0, description="Number of newest periods that are only for the evaluation.")
    delay_hours: float = Field(
        0.0, ge=0, description="Hours from the end of a period until its files must be complete."
    )
    on_missing: typing.Literal["stop", "warn"] = Field(
        "stop", description="Reaction to a period without files: stop before capacity is bought, or train without it."
    )

    @field_validator("period")
    @classmethod
    def _tells_what_the_fields_are(cls, period: Unit | None, info: ValidationInfo) -> Unit | None:
        if period is None and "%" in info.data.get("files", ""):
            raise PydanticCustomError("window", "required if files has fields of strftime: hour, day, week or month")
        if period is not None and "%" not in info.data.get("files", "%"):
            raise PydanticCustomError("window", "needs fields of strftime in files that name the period, e.g. %Y-%m")
        return period

    @field_validator("periods")
    @classmethod
    def _has_a_length(cls, periods: int | None, info: ValidationInfo) -> int | None:
        if periods is None and info.data.get("window") == "sliding":
            raise PydanticCustomError("window", "required for a sliding window: the number of periods to train on")
        return periods

    @field_validator("since")
    @classmethod
    def _has_a_begin(cls, since: date | None, info: ValidationInfo) -> date | None:
        if since is None and info.data.get("window") == "growing" and info.data.get("period") is not None:
            raise PydanticCustomError("window", "required for a growing window of periods: a day in its first one")
        return since
