"""Stores the loss curve of one attempt in Parquet files."""

from __future__ import annotations

import hashlib
import io
import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from segue.continuity.witness import StepRow
from segue.records import CurveDigest

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
"""`environment` is `Environment.short_id`. `from_checkpoint` is the step of the resume, or 0 for a new start.

Old files lack the columns `environment` and `from_checkpoint`. `segue.curve` then takes both from the run's log.
"""

ROWS_PER_PART = 20_000

_ROW = struct.Struct("=qqqdddddq")
_ROW_TYPE = np.dtype(
    [(name, "i8") for name in ("step", "epoch", "samples_seen")]
    + [(name, "f8") for name in ("loss", "grad_norm", "param_norm", "lr", "step_seconds")]
    + [("wall_time", "i8")]
)
"""The type of a packed row. A packed row has the columns of `SCHEMA` that vary within an attempt."""

METRIC_PREFIX = "metric."
"""Prefix of the column names of the training code's own metrics."""

NO_METRICS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class CurvePart:
    """Consecutive rows of an attempt's curve, which are stored as one file."""

    number: int
    constants: dict[str, Any]
    rows: bytes
    """The packed rows, with the columns that vary."""
    metrics: Mapping[str, array[Any]] = field(default_factory=dict)
    """The columns of the training code's own metrics, by name."""

    def to_parquet(self) -> bytes:
        """Return all rows of the part as one file."""
        buffer = io.BytesIO()
        pq.write_table(self._table, buffer)
        return buffer.getvalue()

    def digest(self) -> CurveDigest:
        """Return the digest of all rows of the part, without reading the file."""
        return CurveDigest(part=self.number, rows=self._table.num_rows, sha256=sha256_of(self._table))

    @cached_property
    def _table(self) -> pa.Table:
        rows = np.frombuffer(self.rows, _ROW_TYPE)
        arrays = [
            _repeated(field, self.constants[field.name], len(rows))
            if field.name in self.constants
            else _column(field, np.ascontiguousarray(rows[field.name]))
            for field in SCHEMA
        ]
        own = [pa.field(METRIC_PREFIX + name, pa.float64()) for name in self.metrics]
        arrays += [_column(field, column) for field, column in zip(own, self.metrics.values(), strict=True)]
        return pa.Table.from_arrays(arrays, schema=pa.schema([*SCHEMA, *own]))


class Curve:
    """The rows of this attempt's steps.

    They are divided into parts, so that only the last part has to be stored again.
    """

    def __init__(self, **constants: Any) -> None:
        self._constants = constants
        self._number = 0
        self._rows = bytearray()
        self._metrics: dict[str, array[Any]] = {}

    def add(
        self,
        row: StepRow,
        *,
        epoch: int,
        samples_seen: int,
        step_seconds: float,
        wall_time: datetime,
        metrics: Mapping[str, float] = NO_METRICS,
    ) -> None:
        """Add the row of one step. Each of the `metrics` has its own column, with NaN for steps without the metric."""
        # The row is packed, because an append to nine columns would take nine times as long.
        self._rows += _ROW.pack(
            row.step,
            epoch,
            samples_seen,
            row.loss,
            math.nan if row.grad_norm is None else row.grad_norm,
            math.nan if row.param_norm is None else row.param_norm,
            row.lr[0] if row.lr else 0.0,
            step_seconds,
            round(wall_time.timestamp() * 1e6),
        )
        if metrics or self._metrics:
            self._add_metrics(metrics)

    def amend(self, metrics: Mapping[str, float]) -> None:
        """Add these metrics to the newest row. The part of this row is not full yet."""
        count = self._count
        for name, value in metrics.items():
            column = self._metrics.setdefault(name, array("d", [math.nan]) * count)
            column[-1] = value

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        count = self._count
        for name in metrics:
            if name not in self._metrics:
                self._metrics[name] = array("d", [math.nan]) * (count - 1)
        for name, column in self._metrics.items():
            column.append(metrics.get(name, math.nan))

    def take(self) -> tuple[CurvePart, ...]:
        """Return the current part with its rows so far. A full part is returned for the last time."""
        metrics = {name: column[:] for name, column in self._metrics.items()}
        part = CurvePart(self._number, self._constants, bytes(self._rows), metrics)
        if self._count >= ROWS_PER_PART:
            self._number, self._rows, self._metrics = self._number + 1, bytearray(), {}
        return (part,)

    @property
    def _count(self) -> int:
        return len(self._rows) // _ROW.size


def sha256_of(rows: pa.Table) -> str:
    """Return the SHA-256 of the values in the rows of a part.

    Columns without a value are left out, because a metric that comes later adds its column to the earlier rows too. All
    NaN values count as equal, because a file does not store their bits.
    """
    hasher = hashlib.sha256(f"{rows.num_rows} rows".encode())
    for name in sorted(rows.column_names):
        content = _content(rows[name])
        if content:
            hasher.update(f"{name} {len(content)} ".encode() + content)
    return hasher.hexdigest()


def _content(column: pa.ChunkedArray) -> bytes:
    """Return the values as bytes. `to_numpy` is not used, because it would import pandas."""
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
