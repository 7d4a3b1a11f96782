"""The figures of the benchmarks with their targets, as tables for docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One row of a table: a figure of segue, and the same figure of other tools."""

    what: str
    path: str
    """The names that lead to the figure in the JSON of the benchmark, separated by `/`. In a list, a name selects the
    element that has it as one of its values."""
    most: float | None = None
    """The largest value that meets the target."""
    least: float | None = None
    """The smallest value that meets the target. True: the figure has to be true."""

    @property
    def target(self) -> str:
        """The target, as the table shows it."""
        if self.most is not None:
            return f"<= {shown(self.most)}" if self.most else "0"
        if self.least is None:
            return "-"
        return shown(self.least) if self.least is True else f">= {shown(self.least)}"

    def is_missed(self, value: Any) -> bool:
        """Whether there is a target that the value does not meet. A missing value meets no target."""
        if not isinstance(value, int | float):
            return self.target != "-"
        return (self.most is not None and value > self.most) or (self.least is not None and value < self.least)


@dataclass(frozen=True)
class Column:
    """One tool in a table."""

    title: str
    path: str = ""
    """The names that lead to the figures of this tool; empty: the benchmark's JSON itself."""
    has_targets: bool = False

    def path_of(self, figure: Figure) -> str:
        """The path of a figure of this tool."""
        return f"{self.path}/{figure.path}" if self.path else figure.path


@dataclass(frozen=True)
class FigureTable:
    """The table of one benchmark."""

    figures: tuple[Figure, ...]
    columns: tuple[Column, ...] = (Column("measured", has_targets=True),)

    def paths(self) -> Iterator[str]:
        """The path of each figure of each tool."""
        for figure in self.figures:
            yield from (column.path_of(figure) for column in self.columns)

    def as_markdown(self, values: Mapping[str, Any]) -> str:
        """The table with these values by path. A figure that misses its target is bold, and `-` is a missing figure."""
        titles = ("figure", "to reach", *(column.title for column in self.columns))
        rows = [titles, ["---"] * len(titles), *(self._row(figure, values) for figure in self.figures)]
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _row(self, figure: Figure, values: Mapping[str, Any]) -> list[str]:
        cells = [figure.what, figure.target]
        for column in self.columns:
            value = values.get(column.path_of(figure))
            text = shown(value)
            cells.append(f"**{text}**" if column.has_targets and figure.is_missed(value) else text)
        return cells


def shown(value: Any) -> str:
    """A value as a table shows it: a number with three or four digits, `-` for a missing figure."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or not isinstance(value, int | float):
        return "-"
    if abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}" if abs(value) >= 1 else f"{value:.3g}"


def found_in(report: Any, path: str) -> Any:
    """The value at this path in the JSON of a benchmark; None if there is none."""
    for name in path.split("/"):
        if isinstance(report, Mapping):
            report = report.get(name)
        elif isinstance(report, list):
            report = next((each for each in report if name in each.values()), None)
        else:
            return None
    return report
