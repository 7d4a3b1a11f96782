"""Records of a check: what was found, and what the columns looked like."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from segue.records import FiniteValue, Record

Kind = Literal["numbers", "values", "other"]


class ColumnProfile(FiniteValue):
    """The distribution of one column."""

    kind: Kind = Field(description="Numbers, values of which some repeat, or neither: no drift is computed.")
    rows: int = Field(ge=0)
    null_share: float = Field(ge=0, le=1)
    edges: tuple[float, ...] = Field((), description="Quantiles of numbers, each once, in order.")
    cumulative: tuple[float, ...] = Field((), description="Share of the numbers that are at most the edge.")
    shares: dict[str, float] = Field(default_factory=dict, description="Share of each of the most frequent values.")


class Finding(FiniteValue):
    """An expectation that is not met."""

    expectation: str = Field(description="Its name in Great Expectations, e.g. expect_column_values_to_not_be_null.")
    about: str = Field(description="Its columns, or the measure that segue computed: files, rows, age or drift.")
    is_warning: bool = Field(description="Whether it does not stop the slot.")
    observed: str = Field(description="What was found instead, in words.")
    places: tuple[str, ...] = Field((), description="The first rows at fault: file and row, or what the row is about.")

    @property
    def sentence(self) -> str:
        """The finding in words."""
        where = f" ({'; '.join(self.places[:3])})" if self.places else ""
        return f"{self.about}: {self.expectation} is not met: {self.observed}{where}"


class GateResult(Record):
    """The findings of the check of a window."""

    outcome: Literal["passed", "warned", "failed"]
    expectations: int = Field(ge=0, description="Number of expectations that were evaluated.")
    rows: int = Field(ge=0, description="Number of rows they were evaluated over.")
    findings: tuple[Finding, ...] = ()
    profiles: dict[str, ColumnProfile] = Field(
        default_factory=dict, description="Distribution of each column, for the drift of the next slot."
    )
