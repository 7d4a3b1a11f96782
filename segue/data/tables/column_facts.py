"""Determines the type, the number of missing values and the limits of each column of a file.

For a CSV file, the module examines every cell, not only a part of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from segue.data.tables.cells import CANDIDATES, MOST_EXACT, NUMBER, OTHER_NUMBER, TIME, exact_values_of, matching
from segue.data.tables.csv_cells import read_cells
from segue.spec import Reading


class ColumnFacts(NamedTuple):
    """Facts about the content of a column of a file."""

    kind: pa.DataType | None
    """The type of the column. If no row has a value, the type is None."""
    nulls: int
    is_exact: bool = True
    """Whether the column's whole numbers keep their exact values in floating point."""
    has_negatives: bool = True
    """Whether some of the column's whole numbers are negative, or may be negative."""
    is_words: bool = False
    """Whether all cells are words such as NA.

    In a column of text, the word NA is text. In other columns, the word NA is a missing value.
    """
    problem: str | None = None
    """Text with the reason why the type of the column is not certain."""
    fix: str = ""
    """The settings in retrain.toml that solve the problem. `{setting}` is a placeholder for the name of the setting."""


class FileFacts(NamedTuple):
    """Facts about the content of a file."""

    rows: int
    columns: dict[str, ColumnFacts]


def csv_facts(path: Path, *, name: str, reading: Reading) -> FileFacts:
    """Return facts about a CSV file. Columns with a declared type are not examined.

    Raises:
        DataContentError: a row breaks a rule of the reader.
        DataUnreadableError: the file could not be read.
    """
    names, batches = read_cells(path, name=name, reading=reading)
    columns = [_Column(reading) for _ in names]
    rows = 0
    with closing(batches):
        for batch in batches:
            for column, cells in zip(columns, batch.columns, strict=True):
                column.add(cells, begin=rows)
            rows += batch.num_rows
    return FileFacts(rows, {name: column.facts() for name, column in zip(names, columns, strict=True)})


@dataclass
class _Pattern:
    """Counts the cells of a column that have one notation. Also contains the first cell with another notation."""

    regex: str
    words: str
    fix: str
    count: int = 0
    other: tuple[int, str] | None = None


@dataclass
class _Column:
    """The type of a column's cells so far.

    The type changes only to a wider type that can also represent all earlier cells.
    """

    reading: Reading
    kind: pa.DataType | None = None
    nulls: int = 0
    present: int = 0
    is_exact: bool = True
    has_negatives: bool = False
    has_words: bool = False
    patterns: list[_Pattern] = field(
        default_factory=lambda: [
            _Pattern(NUMBER, "numbers", _TEXT),
            _Pattern(TIME, "times", _TEXT),
            _Pattern(OTHER_NUMBER, "numbers with a decimal comma or groups of digits", _NOTATION),
        ]
    )

    def add(self, cells: pa.Array, *, begin: int) -> None:
        """Add the next cells of the column. `begin` is the row of the first of these cells."""
        if cells.null_count == len(cells):
            self.nulls += len(cells)
            return
        for kind in self._wider():
            try:
                values = exact_values_of(cells, kind, self.reading)
            except pa.ArrowInvalid:
                continue
            self._take(cells, values, kind, begin)
            return
        raise AssertionError("every cell is text")

    def facts(self) -> ColumnFacts:
        """Return the facts about all cells of the column."""
        return ColumnFacts(
            kind=self.kind,
            nulls=self.nulls,
            is_exact=self.is_exact,
            has_negatives=self.has_negatives,
            is_words=self.kind is None and self.has_words,
        )._replace(**self._problem())

    def _wider(self) -> Iterator[pa.DataType]:
        """Return the types that can represent all cells so far, the narrowest type first."""
        kind = self.kind
        if kind is None:
            yield from CANDIDATES
        else:
            yield kind
            if kind == pa.int64() and not self.has_negatives:
                yield pa.uint64()
            if kind == pa.int64() and self.is_exact:
                yield pa.float64()
            if pa.types.is_timestamp(kind) and kind.unit == "us":
                yield pa.timestamp("ns", kind.tz)
        yield pa.string()

    def _take(self, cells: pa.Array, values: pa.Array, kind: pa.DataType, begin: int) -> None:
        if values.null_count == len(values):  # If all cells are words such as NA, they show no type.
            self.has_words = True
            self.nulls += len(values)
            return
        self.kind = kind
        self.nulls += values.null_count
        present = len(values) - values.null_count
        self.present += present
        if pa.types.is_integer(kind):
            limits = pc.min_max(values).as_py()
            self.has_negatives |= limits["min"] < 0
            self.is_exact &= max(abs(limits["min"]), abs(limits["max"])) <= MOST_EXACT
        if pa.types.is_string(kind):
            self._count(cells, begin)
        elif not pa.types.is_boolean(kind):
            self.patterns[pa.types.is_timestamp(kind)].count += present

    def _count(self, cells: pa.Array, begin: int) -> None:
        found = matching(cells, tuple(each.regex for each in self.patterns))
        for pattern, (count, other) in zip(self.patterns, found, strict=True):
            pattern.count += count
            if pattern.other is None and other is not None:
                pattern.other = begin + other, cells[other].as_py()
            elif pattern.other is None and not count:
                row = pc.index(cells.is_valid(), True).as_py()
                pattern.other = begin + row, cells[row].as_py()

    def _problem(self) -> dict[str, Any]:
        """If most cells of a column of text fit another type, return the problem and its fix."""
        if self.kind is None or not pa.types.is_string(self.kind):
            return {}
        mostly = max(self.patterns, key=lambda pattern: pattern.count)
        if 2 * mostly.count <= self.present:
            return {}
        others = ""
        if mostly.other is not None and mostly.count < self.present:
            others = f", and others are text, e.g. {mostly.other[1][:40]!r} in row {mostly.other[0]}"
        elif mostly.words == "numbers":
            others = ", and no type of numbers can hold all their digits"
        problem = f"{mostly.count} of {self.present} cells are {mostly.words}{others}"
        return {"problem": problem, "fix": mostly.fix}


_TEXT = "{setting} = 'text', or data.reading.nulls to the texts of the cells without a value,"
_NOTATION = "data.reading.decimal and data.reading.thousands to how they are written, or {setting} = 'text'"
