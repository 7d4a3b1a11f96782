"""Reads Parquet files: the types of their columns, and the columns as tables. Reading runs no code from a file."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from segue.data.tables.cells import MOST_EXACT
from segue.data.tables.column_facts import ColumnFacts, FileFacts
from segue.data.tables.content_limits import refuse_more, refuse_names

_INDEX = re.compile(r"__index_level_\d+__")
"""Pattern of the names of columns in which pandas stores an index without a name. Such a column contains no data."""


def parquet_facts(path: Path, *, name: str) -> FileFacts:
    """Return the number of rows and the types of the columns. If the file's metadata suffices, read no values.

    Raises:
        DataContentError: two columns have the same name.
        DataUnreadableError: the file contains far more data than its size permits.
    """
    with pq.ParquetFile(path) as file:
        found = file.metadata
        groups = [found.row_group(number) for number in range(found.num_row_groups)]
        # Rows that are all equal take no space in the file, but 8 bytes for each column in memory.
        size_bytes = max(sum(group.total_byte_size for group in groups), 8 * found.num_rows * found.num_columns)
        refuse_more(size_bytes, path=path, name=name)
        leaves = _leaves(file.schema_arrow)
        refuse_names(tuple(field.name for field, _ in leaves), name=name)
        columns = {field.name: _facts_of(file, field, leaf, groups) for field, leaf in leaves}
    return FileFacts(rows=found.num_rows, columns=columns)


def parquet_names(path: Path) -> tuple[str, ...]:
    """Return the names of the file's data columns."""
    return tuple(field.name for field, _ in _leaves(pq.read_schema(path)))


def parquet_columns(path: Path, names: Collection[str]) -> tuple[int, dict[str, pa.ChunkedArray]]:
    """Return the number of rows, and the columns `names` in the types of the file.

    The result does not contain columns that the file lacks.
    """
    with pq.ParquetFile(path) as file:
        wanted = [field.name for field, _ in _leaves(file.schema_arrow) if field.name in names]
        # A name also selects every column whose path begins with it, such as a column called NAME.x.
        table = file.read(columns=wanted)
        return file.metadata.num_rows, {name: table.column(table.schema.get_field_index(name)) for name in wanted}


def as_type(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert the values to a common type.

    Raises:
        pyarrow.ArrowInvalid: a value is not of that type.
    """
    if column.null_count == len(column):
        return pa.chunked_array([pa.nulls(len(column), kind)])
    if isinstance(column.type, pa.BaseExtensionType):
        storage = column.type.storage_type
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], type=storage)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(column.type):
        column.validate(full=True)  # Other programs may write invalid bytes into text.
    return column if column.type == kind else column.cast(kind)


def common_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column, reduced to the types that segue's readers distinguish."""
    if isinstance(kind, pa.BaseExtensionType):
        return common_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return common_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_date(kind):
        return pa.timestamp("us")
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind):
        return pa.int64() if kind.scale == 0 else pa.float64()
    return kind


def _leaves(schema: pa.Schema) -> list[tuple[pa.Field, int | None]]:
    """Return the data columns, each with the number of its leaf in the file.

    For a nested column, the number is None.
    """
    found, number = [], 0
    for field in schema:
        count = _count_leaves(field.type)
        if not _INDEX.fullmatch(field.name):
            found.append((field, None if pa.types.is_nested(field.type) else number))
        number += count
    return found


def _count_leaves(kind: pa.DataType) -> int:
    if isinstance(kind, pa.BaseExtensionType):
        return _count_leaves(kind.storage_type)
    if not pa.types.is_nested(kind):
        return 1
    return sum(_count_leaves(kind.field(number).type) for number in range(kind.num_fields))


def _facts_of(file: pq.ParquetFile, field: pa.Field, leaf: int | None, groups: Sequence[Any]) -> ColumnFacts:
    kind = common_type(field.type)
    rows = sum(group.num_rows for group in groups)
    if leaf is None:
        return ColumnFacts(kind=kind, nulls=0)
    statistics = [group.column(leaf).statistics for group in groups]
    is_whole = pa.types.is_integer(kind)
    needs_limits = is_whole and kind.bit_width == 64
    nulls = [each.null_count if each is not None and each.has_null_count else None for each in statistics]
    if any(each is None for each in nulls) or (needs_limits and any(not _tells_limits(each) for each in statistics)):
        return _read_facts(file, field.name, kind)
    count = sum(each or 0 for each in nulls)
    limits = (
        [limit for each in statistics if each.has_min_max for limit in (each.min, each.max)] if needs_limits else []
    )
    is_exact = all(abs(int(limit)) <= MOST_EXACT for limit in limits)
    has_negatives = not limits or min(limits) < 0
    return ColumnFacts(kind if count < rows else None, nulls=count, is_exact=is_exact, has_negatives=has_negatives)


def _tells_limits(statistics: Any) -> bool:
    return bool(statistics.has_min_max or statistics.num_values == 0)


def _read_facts(file: pq.ParquetFile, name: str, kind: pa.DataType) -> ColumnFacts:
    table = file.read(columns=[name])
    column = table.column(table.schema.get_field_index(name))
    is_exact = True
    if pa.types.is_integer(kind) and column.null_count < len(column):
        try:
            limits = pc.min_max(as_type(column, kind)).as_py()
            is_exact = all(abs(limit) <= MOST_EXACT for limit in limits.values())
        except pa.ArrowInvalid:  # A decimal has more digits than a 64-bit integer holds; a later read names its row.
            is_exact = False
    return ColumnFacts(
        kind=kind if column.null_count < len(column) else None, nulls=column.null_count, is_exact=is_exact
    )
