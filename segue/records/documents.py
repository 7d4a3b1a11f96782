"""The base classes of records and of their parts."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Value(BaseModel):
    """A frozen part of a record. Non-finite floats survive JSON as the strings NaN and Infinity.

    A renamed field is stored under its first name, which is its alias, because stores outlive versions of segue.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        ser_json_inf_nan="strings",
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class FiniteValue(Value):
    """A part of a run spec that accepts only finite numbers. Measured values, such as a loss, use `Value`."""

    # JSON has no infinity: the log and Prefect would return it as a string, and no policy can plan with an infinite
    # number. If a URL with a password is refused, the error must not contain the URL.
    model_config = ConfigDict(allow_inf_nan=False, hide_input_in_errors=True)


class Record(Value):
    """A frozen document with a schema version."""

    schema_version: Literal[1] = Field(1, description="Version of this record's schema.")
