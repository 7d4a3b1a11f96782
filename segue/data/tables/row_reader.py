"""Reads the rows of a file, and converts them to the types of a layout. Errors name the row of a wrong value."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from segue.data.tables.cells import first_refused, values_of
from segue.data.tables.column_types import arrow_type, setting
from segue.data.tables.csv_cells import read_cells
from segue.data.tables.parquet import as_type, common_type, parquet_columns
from segue.errors import DataContentError
from segue.spec import Reading


def parquet_tables(path: Path, *, name: str, types: Mapping[str, str]) -> Iterator[pa.Table]:
    """Yield one table with the columns and types of `types`.

    If the file lacks a column, the column contains only nulls.

    Raises:
        DataContentError: a value does not have the type of its column.
    """
    rows, found = parquet_columns(path, [*types])
    columns = {}
    for column, kind in types.items():
        held, target = found.get(column), arrow_type(kind)
        if held is None:
            columns[column] = _missing(rows, target)
        else:
            cast = partial(as_type, kind=target or common_type(held.type))
            columns[column] = _converted(held, cast, kind, file=name, column=column, begin=0)
    yield pa.table(columns)


def csv_tables(path: Path, *, name: str, types: Mapping[str, str], reading: Reading) -> Iterator[pa.Table]:
    """Yield one table for each batch of rows of a CSV file, with the columns and types of `types`.

    Raises:
        DataContentError: a row breaks a rule, or a value does not have the type of its column.
    """
    names, batches = read_cells(path, name=name, reading=reading)
    begin = 0
    with closing(batches):
        for batch in batches:
            columns = {}
            for column, kind in types.items():
                target = arrow_type(kind)
                if column not in names or target is None:
                    columns[column] = _missing(batch.num_rows, target)
                    continue
                cells, cast = batch.column(names.index(column)), partial(values_of, kind=target, reading=reading)
                columns[column] = _converted(cells, cast, kind, file=name, column=column, begin=begin)
            begin += batch.num_rows
            yield pa.table(columns)


def _missing(rows: int, kind: pa.DataType | None) -> pa.Array:
    return pa.nulls(rows, kind or pa.null())


def _converted(
    held: Any, cast: Callable[[Any], Any], kind: str, *, file: str, column: str, begin: int
) -> pa.Array | pa.ChunkedArray:
    try:
        return cast(held)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row = first_refused(held, cast)
    try:
        rule = f"{repr(held[row].as_py())[:60]} is not of the type {kind}"
        fix = f"correct the value, or set {setting(column)} = 'text' in retrain.toml."
    except UnicodeDecodeError:
        rule, fix = "the text is not UTF-8", "write the text as UTF-8, or the column as binary."
    raise DataContentError(path=file, column=column, row=begin + row, rule=rule, fix=fix) from None
