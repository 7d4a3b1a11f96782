"""The table `budget` of a run spec: how much money a run, and all runs of its store in a month, may cost."""

from __future__ import annotations

import typing
import zoneinfo
from datetime import UTC, tzinfo
from typing import Annotated, Any, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from segue.records import FiniteValue

OnExceeded = typing.Literal["stop", "refuse", "warn"]


class BudgetSpec(FiniteValue):
    """Caps on money, in the currency of the pools. The budget wins over the deadline."""

    per_run: float | None = Field(None, gt=0, description="Most that the run may cost; None: no cap.")
    per_month: float | None = Field(
        None, gt=0, description="Most that all runs of the store may cost in a calendar month; None: no cap."
    )
    on_exceeded: OnExceeded = Field(
        "stop",
        description="Action if the budget is too small. stop: end the run at a checkpoint before the money is used "
        "up; refuse: the same, and start no run that is expected to cost more; warn: only report it.",
    )
    time_zone: str = Field("UTC", description="Time zone in which months begin and end, e.g. Europe/Berlin.")

    @field_validator("time_zone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        try:
            _zone(name)
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
            raise PydanticCustomError("time_zone", "must be a time zone, e.g. UTC or Europe/Berlin") from None
        return name

    @model_validator(mode="after")
    def _caps_something(self) -> Self:
        if not self.is_set and self.on_exceeded != "stop":
            raise PydanticCustomError("budget", "on_exceeded does nothing without a cap; set per_run or per_month")
        return self

    @property
    def zone(self) -> tzinfo:
        return _zone(self.time_zone)

    @property
    def is_set(self) -> bool:
        return self.per_run is not None or self.per_month is not None

    @property
    def is_cap(self) -> bool:
        """Whether a run ends before it costs more."""
        return self.is_set and self.on_exceeded != "warn"


def _zone(name: str) -> tzinfo:
    # A machine without a database of time zones knows UTC nevertheless.
    return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _from_a_number(given: Any) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return {"per_run": given} if is_number else given


Budget = Annotated[BudgetSpec, BeforeValidator(_from_a_number, json_schema_input_type=float | BudgetSpec)]
"""A table, or a number for a cap of the run alone."""
