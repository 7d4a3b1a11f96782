"""Defines the records of a check of data: the findings, and the distributions of the columns."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from segue.records import FiniteValue, Record

Kind = Literal["numbers", "values", "other"]


class ColumnProfile(FiniteValue):
    """The distribution of one column."""

    kind: Kind = Field(description="Numbers, repeated values, or other. Segue computes no drift for other.")
    rows: int = Field(ge=0)
    null_share: float = Field(ge=0, le=1)
    edges: tuple[float, ...] = Field((), description="Distinct quantiles of the numbers, in ascending order.")
    cumulative: tuple[float, ...] = Field((), description="For each edge, the share of the numbers up to this edge.")
    shares: dict[str, float] = Field(default_factory=dict, description="Share of each of the most frequent values.")


class Finding(FiniteValue):
    """An expectation that is not met."""

    expectation: str = Field(description="Name in Great Expectations, e.g. expect_column_values_to_not_be_null.")
    about: str = Field(description="The columns, or the measure that segue computed: files, rows, age or drift.")
    is_warning: bool = Field(description="Whether the finding is only a warning, which does not stop the slot.")
    observed: str = Field(description="The observed value, in words.")
    places: tuple[str, ...] = Field((), description="File and row of each of the first wrong rows, or the subject.")

    @property
    def sentence(self) -> str:
        """A sentence about the finding."""
        where = f" ({'; '.join(self.places[:3])})" if self.places else ""
        return f"{self.about}: {self.expectation} is not met: {self.observed}{where}"


class GateResult(Record):
    """The findings of the check of a window."""

    outcome: Literal["passed", "warned", "failed"]
    expectations: int = Field(ge=0, description="Number of expectations that were evaluated.")
    rows: int = Field(ge=0, description="Number of rows that were checked.")
    findings: tuple[Finding, ...] = ()
    profiles: dict[str, ColumnProfile] = Field(
        default_factory=dict, description="Distribution of each column, for the drift of the next slot."
    )
