"""Random frames, and files of them as people write CSV and Parquet, for tests of several readers."""

from __future__ import annotations

import csv
import gzip
import io
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from segue.spec import Reading

_SHARED = "aZé0 \t'\"\\;,|\n\r.-"
_TEXTS = st.text(_SHARED, max_size=6).map(lambda text: f"t{text}")
_TIMES = st.datetimes(datetime.fromisoformat("1700-01-01"), datetime.fromisoformat("2200-01-01"))
_NAMES = st.one_of(*[st.text("ab é.\n<", min_size=1, max_size=4)] * 7, st.text("a,;\"'", max_size=2))
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "text": _TEXTS,
    "codes": st.sampled_from(["NA", "ZA", "null", "x", "None"]),
    "wild": st.text(_SHARED + "123NA", max_size=4),
    "whole": st.integers(-(10**6), 10**6),
    "huge": st.integers(-(2**63), 2**63 - 1),
    "hash": st.integers(0, 2**64 - 1),
    "beyond": st.integers(2**64, 2**70),
    "fraction": st.floats(allow_nan=False, allow_infinity=False, width=32),
    "flag": st.booleans(),
    "time": _TIMES,
    "zoned": _TIMES.map(lambda moment: moment.replace(tzinfo=UTC)),
    "nothing": st.none(),
}


class Column(NamedTuple):
    """A column, with a list of values for each file."""

    name: str
    kind: str
    values: list[list[Any]]


class Dialect(NamedTuple):
    """How the CSV files of a window are written."""

    delimiter: str
    quote: str
    quoting: int
    line_end: str
    encoding: str
    has_decimal_comma: bool
    null: str
    is_declared: bool
    """Whether retrain.toml says all of it."""

    @property
    def reading(self) -> Reading:
        """What retrain.toml says of it."""
        if not self.is_declared:
            return Reading()
        return Reading(
            encoding=None if self.encoding.startswith("utf-8") else self.encoding,
            delimiter=self.delimiter,
            quote=self.quote,
            decimal="," if self.has_decimal_comma else ".",
            nulls=("", self.null),
        )


@st.composite
def columns(draw: st.DrawFn, *, files: int) -> list[Column]:
    """Some columns of so many files with the same number of rows in each of them."""
    names = draw(st.lists(_NAMES, min_size=1, max_size=4, unique=True))
    rows = [draw(st.integers(1, 5) | st.integers(0, 5)) for _ in range(files)]
    found = []
    for name in names:
        kind = draw(st.sampled_from(sorted(VALUES)))
        empty = draw(st.sets(st.integers(0, files - 1))) if draw(st.booleans()) else set()
        share = draw(st.sampled_from([0, 3]))
        cell = st.one_of(*[VALUES[kind]] * 3, *[st.none()] * bool(share))
        values = [[None if number in empty else draw(cell) for _ in range(count)] for number, count in enumerate(rows)]
        found.append(Column(name, kind, values))
    return found


dialects = st.builds(
    Dialect,
    delimiter=st.sampled_from([",", ";", "\t", "|"]),
    quote=st.sampled_from(['"', '"', "'"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    has_decimal_comma=st.booleans(),
    null=st.sampled_from(["", "NA", "-"]),
    is_declared=st.booleans(),
)


def write(path: Path, columns: list[Column], number: int, dialect: Dialect) -> Path:
    """File `number` of the columns, in the format of its name."""
    if path.suffix == ".parquet":
        arrays = {column.name: _array(column.kind, column.values[number]) for column in columns}
        pq.write_table(pa.table(arrays), path)
        return path
    text = io.StringIO(newline="")
    style: dict[str, Any] = {"delimiter": dialect.delimiter, "quotechar": dialect.quote, "quoting": dialect.quoting}
    writer = csv.writer(text, lineterminator=dialect.line_end, **style)
    writer.writerow([column.name for column in columns])
    writer.writerows(
        zip(*([_cell(value, dialect) for value in column.values[number]] for column in columns), strict=True)
    )
    data = text.getvalue().encode(dialect.encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def _cell(value: Any, dialect: Dialect) -> Any:
    if value is None:
        return dialect.null
    if isinstance(value, float) and dialect.has_decimal_comma:
        return repr(value).replace(".", ",")
    return value if not isinstance(value, datetime) else value.isoformat(" ")


def _array(kind: str, values: list[Any]) -> pa.Array:
    """What Arrow has no type for is text."""
    if kind == "beyond":
        return pa.array([None if value is None else str(value) for value in values])
    return pa.array(values, pa.uint64() if kind == "hash" else None)


def faithful(column: Column, dialect: Dialect) -> bool:
    """Whether its values can be told from the cells: nobody can for a dialect that is not declared."""
    texts = [value for values in column.values for value in values if isinstance(value, str)]
    if dialect.quoting == csv.QUOTE_MINIMAL and any("\r" in text for text in texts):
        return False  # The csv module leaves them without quotes.
    return dialect.is_declared and column.kind in ("text", "whole", "fraction", "flag", "time", "zoned")


def plain(value: Any) -> Any:
    """A value of a frame as one of Python, to compare; None where there is none."""
    if pd.isna(value):
        return None
    return value.to_pydatetime() if hasattr(value, "to_pydatetime") else value
