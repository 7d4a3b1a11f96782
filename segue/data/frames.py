"""Reads Parquet and CSV files: the number of rows, the types of the columns, and the rows as a pandas frame."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from segue.data.files import readable
from segue.errors import DataContentError, DataUnreadableError, MissingExtraError
from segue.spec import Reading

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from segue.data.tables.column_facts import FileFacts

_OF_CONTENT = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError)
"""The errors that pandas and pyarrow raise for files with inconsistent parts."""
_USUAL = Reading()


def facts_of(path: Path, *, name: str, reading: Reading = _USUAL) -> FileFacts:
    """Return the number of rows of a local file, and the type of each column.

    All values of a column determine its type. Errors call the file `name`.

    Raises:
        DataContentError: the content of the file breaks a rule of the reader.
        DataUnreadableError: the file is neither Parquet nor CSV, is damaged, or contains far more data than its size
            permits.
    """
    from segue.data.tables.column_facts import csv_facts
    from segue.data.tables.parquet import parquet_facts

    with _as_data(name):  # For a damaged file, pyarrow raises a ValueError.
        return (
            parquet_facts(path, name=name)
            if is_parquet(path, name=name)
            else csv_facts(path, name=name, reading=reading)
        )


def is_parquet(path: Path, *, name: str) -> bool:
    """Whether a file is Parquet, and not CSV, according to its name.

    Raises:
        DataUnreadableError: the file is neither Parquet nor CSV.
    """
    if ".parquet" in path.suffixes[-2:]:
        return True
    if ".csv" in path.suffixes[-2:]:
        return False
    why = "its name does not end with .parquet, .csv, .csv.gz or .csv.zst"
    raise DataUnreadableError(
        path=name, why=why, fix="give the file the suffix of its format, or remove it from data.files."
    )


def read_frame(
    paths: Iterable[Path],
    *,
    columns: Sequence[str] | None = None,
    types: Mapping[str, str] | None = None,
    reading: Reading = _USUAL,
    names: Mapping[Path, str] | None = None,
) -> pd.DataFrame:
    """Return the rows of local files, in order, with a new index from 0. The frame has all columns, or only `columns`.

    `types` contains the types of a window's columns, so that a part of the window's files gets the same types. If
    `types` is None, the content of these files determines the types. If a file lacks a column of `types`, the rows of
    the file have no value in this column. Errors use `names` as the names of the files.

    Raises:
        DataContentError: the content of a file breaks a rule of the reader.
        DataUnreadableError: a file is neither Parquet nor CSV, is damaged, lacks a column, or contains far more data
            than its size permits.
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="Reading data as a frame") from None
    import pyarrow as pa

    from segue.data.tables.column_types import arrow_type, layout_of

    files = [(path, (names or {}).get(path, str(path))) for path in paths]
    if types is None:
        facts = [(name, facts_of(path, name=name, reading=reading)) for path, name in files]
        for (name, found), each in itertools.product(facts, columns or ()):
            if each not in found.columns:
                raise DataContentError(path=name, column=each, rule="it has no such column", fix="deliver it again.")
        types = layout_of(facts, reading).columns
    wanted = {name: kind for name, kind in types.items() if columns is None or name in columns}
    empty = pa.table({name: pa.nulls(0, arrow_type(kind)) for name, kind in wanted.items()})
    frames = [_frame(empty, wanted)]
    for path, name in files:  # Each table is freed before the next file is read, so no file is in memory twice.
        frames += [_frame(table, wanted) for table in tables_of(path, name=name, types=wanted, reading=reading)]
    return pd.concat(frames, ignore_index=True)


def tables_of(path: Path, *, name: str, types: Mapping[str, str], reading: Reading = _USUAL) -> Iterator[pa.Table]:
    """Yield the rows of a local file as several tables, whose columns have the types of a layout.

    Raises:
        DataContentError: the content of the file breaks a rule of the reader.
        DataUnreadableError: the file is neither Parquet nor CSV, or is damaged.
    """
    from segue.data.tables.row_reader import csv_tables, parquet_tables

    with _as_data(name):
        if is_parquet(path, name=name):
            yield from parquet_tables(path, name=name, types=types)
        else:
            yield from csv_tables(path, name=name, types=types, reading=reading)


def column_names(path: Path, *, name: str, reading: Reading = _USUAL) -> tuple[str, ...]:
    """Return the names of the columns of a local file.

    Raises:
        DataContentError: the header breaks a rule of the reader.
        DataUnreadableError: the file is neither Parquet nor CSV, or is damaged.
    """
    from segue.data.tables.csv_cells import read_cells
    from segue.data.tables.parquet import parquet_names

    with _as_data(name):
        return parquet_names(path) if is_parquet(path, name=name) else read_cells(path, name=name, reading=reading)[0]


def place_of(files: Iterable[tuple[str, int]], row: int) -> str:
    """Return the name of the file that contains row `row` of all files, and the row's number in this file, from 0.

    `files` gives the path and the number of rows of each file, in order.

    Raises:
        IndexError: the files have fewer rows than `row`.
    """
    for path, rows in files:
        if row < rows:
            return f"{path.rpartition('/')[2]}, row {row}"
        row -= rows
    raise IndexError(row)


def data_frame(config: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows of a run's files, `config["data"]`, in order.

    The data check and the evaluation read the rows by the same rules.

    Raises:
        DataContentError: the content of a file breaks a rule of the reader.
        DataUnreadableError: a file is neither Parquet nor CSV, or is damaged.
        MissingExtraError: pandas is not installed.
    """
    known = config.get("reading") or {}
    reading = Reading.model_validate(known.get("rules") or {})
    return read_frame(map(Path, config["data"]), types=known.get("columns") or None, reading=reading)


def _frame(table: pa.Table, types: Mapping[str, str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame({name: _series(table.column(name), kind) for name, kind in types.items()}, copy=False)


def _series(column: pa.ChunkedArray, kind: str) -> pd.Series:
    import pandas as pd

    from segue.data.tables.column_types import NULLABLE

    if column.type == "null":
        return pd.Series([None] * len(column), dtype=object)
    nullable = {NULLABLE[kind]: pd.api.types.pandas_dtype(kind)}.get if kind in NULLABLE else None
    series: pd.Series = column.to_pandas(types_mapper=nullable, date_as_object=False)
    return series


@contextmanager
def _as_data(name: str) -> Iterator[None]:
    """A block that turns each error of reading a file into a DataUnreadableError with the name of the file."""
    try:
        with readable(name):
            try:
                yield
            except _OF_CONTENT as error:
                why = f"its content does not match its suffix ({type(error).__name__}: {error})"
                raise DataUnreadableError(path=name, why=why, fix=_DAMAGED) from error
    except DataUnreadableError as error:
        if isinstance(error.__cause__, ValueError) and not isinstance(error.__cause__, OSError):
            raise DataUnreadableError(path=name, why=error.why, fix=_DAMAGED) from error.__cause__
        raise


_DAMAGED = "deliver the file again: its content is damaged, or is not of the format of its suffix."
