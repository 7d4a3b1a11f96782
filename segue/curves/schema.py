"""The columns of the loss curve in a Parquet file, and the digest of its rows."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("segment", pa.int32()),
        ("attempt", pa.int32()),
        ("attempt_id", pa.string()),
        ("capacity", pa.string()),
        ("step", pa.int64()),
        ("epoch", pa.int64()),
        ("samples_seen", pa.int64()),
        ("loss", pa.float64()),
        ("grad_norm", pa.float64()),
        ("param_norm", pa.float64()),
        ("lr", pa.float64()),
        ("step_seconds", pa.float64()),
        ("environment", pa.string()),
        ("from_checkpoint", pa.int64()),
        ("wall_time", pa.timestamp("us", tz="UTC")),
    ]
)
"""`environment` is `Environment.short_id`. `from_checkpoint` is the step of the resume, or 0 without a resume.

If a file of an older version lacks these two columns, `segue.curve` takes both values from the run's log.
"""


def table_of(rows: npt.NDArray[Any], *, constants: Mapping[str, Any], metrics: Mapping[str, array[Any]]) -> pa.Table:
    """Return these rows as a table, with a column for each metric. `constants` has the columns that are constant within
    an attempt."""
    arrays = [
        _repeated(field, constants[field.name], len(rows))
        if field.name in constants
        else _column(field, np.ascontiguousarray(rows[field.name]))
        for field in SCHEMA
    ]
    own = [pa.field(name, pa.float64()) for name in metrics]
    arrays += [_column(field, column) for field, column in zip(own, metrics.values(), strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema([*SCHEMA, *own]))


def sha256_of(rows: pa.Table) -> str:
    """Return the SHA-256 of the values in the rows of a part.

    The hash ignores columns without a value, because a new metric also adds its column to the earlier rows. The hash
    treats all NaN values as equal, because files do not keep the exact bits of NaN.
    """
    hasher = hashlib.sha256(f"{rows.num_rows} rows".encode())
    for name in sorted(rows.column_names):
        content = _content(rows[name])
        if content:
            hasher.update(f"{name} {len(content)} ".encode() + content)
    return hasher.hexdigest()


def _content(column: pa.ChunkedArray) -> bytes:
    """Return the values as bytes, without `to_numpy`, which would import pandas."""
    if pa.types.is_string(column.type):
        return repr(column.unique().to_pylist()).encode()  # An attempt has one value; a changed row adds a second one.
    if column.null_count:
        return b"missing values"
    dtype = np.dtype(f"{'f' if pa.types.is_floating(column.type) else 'i'}{column.type.bit_width // 8}")
    chunks = [np.frombuffer(it.buffers()[1], dtype, len(it), it.offset * dtype.itemsize) for it in column.chunks]
    values = np.concatenate([np.empty(0, dtype), *chunks])
    missing = np.isnan(values)
    if missing.any():
        values[missing] = np.nan
    return b"" if missing.all() else values.tobytes()


def _column(field: pa.Field, values: array[Any] | npt.NDArray[Any]) -> pa.Array:
    # For plain Python values, pyarrow would import pandas first, which can take longer than a save.
    return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(values)])


def _repeated(field: pa.Field, value: Any, count: int) -> pa.Array:
    if not pa.types.is_string(field.type):
        return _column(field, array("i" if field.type.bit_width == 32 else "q", [value]) * count)
    text = value.encode()
    ends = array("i", (len(text) * n for n in range(count + 1)))
    return pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])
