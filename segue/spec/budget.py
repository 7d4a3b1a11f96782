"""Defines the table `budget` of a run spec: limits for the cost and time of a run, and for a store's monthly cost."""

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
    """The highest permitted costs, in the currency of the pools. The budget takes precedence over the deadline."""

    per_run: float | None = Field(None, gt=0, description="Highest cost of the run; None: no limit.")
    per_month: float | None = Field(
        None, gt=0, description="Highest cost of all runs of the store in a calendar month; None: no limit."
    )
    max_hours: float | None = Field(
        None,
        gt=0,
        # Left out if it is not set: older versions refuse a record with a field that they do not know.
        exclude_if=lambda hours: hours is None,
        description="Longest time of the run in hours from its first decision, with all waits and restarts. After this "
        "time, the run commits and ends, whatever the value of on_exceeded is. None: no limit.",
    )
    on_exceeded: OnExceeded = Field(
        "stop",
        description="Action if the budget is too small. stop: end the run at a checkpoint before its cost reaches "
        "the budget; refuse: also do not start a run whose expected cost is above the budget; warn: only report it.",
    )
    time_zone: str = Field("UTC", description="Time zone of the calendar months, e.g. Europe/Berlin.")

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
        """Whether a run ends before its cost exceeds the budget."""
        return self.is_set and self.on_exceeded != "warn"


def _zone(name: str) -> tzinfo:
    # UTC must work on a machine without a time zone database too.
    return UTC if name == "UTC" else zoneinfo.ZoneInfo(name)


def _from_a_number(given: Any) -> Any:
    is_number = isinstance(given, (int, float)) and not isinstance(given, bool)
    return {"per_run": given} if is_number else given


Budget = Annotated[BudgetSpec, BeforeValidator(_from_a_number, json_schema_input_type=float | BudgetSpec)]
"""A budget table, or a number, which is the highest cost of the run."""
