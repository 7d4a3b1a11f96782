"""The loss curve of one attempt, as parquet."""

from __future__ import annotations

import io
import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from segue.continuity.witness import StepRow

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
"""`environment` is `Environment.short_id`; `from_checkpoint` the step the attempt resumed from, 0 for a new start.

Files written before these two columns were added lack them; `segue.curve` takes both from the run's log then.
"""

ROWS_PER_PART = 20_000

METRIC_PREFIX = "metric."
"""Begins the name of a column that holds a metric of the training code's own."""

NO_METRICS: Mapping[str, float] = MappingProxyType({})


@dataclass(frozen=True)
class CurvePart:
    """A stretch of an attempt's curve, to be stored as one file."""

    number: int
    constants: dict[str, Any]
    columns: dict[str, array[Any]]
    metrics: Mapping[str, array[Any]] = field(default_factory=dict)
    """Columns of the training code's own, by name."""

    def to_parquet(self) -> bytes:
        """All its rows as one file."""
        count = len(self.columns["step"])
        arrays = [
            _column(field, self.columns[field.name])
            if field.name in self.columns
            else _repeated(field, self.constants[field.name], count)
            for field in SCHEMA
        ]
        own = [pa.field(METRIC_PREFIX + name, pa.float64()) for name in self.metrics]
        arrays += [_column(field, column) for field, column in zip(own, self.metrics.values(), strict=True)]
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema([*SCHEMA, *own])), buffer)
        return buffer.getvalue()


class Curve:
    """Rows of the steps this attempt has done, in parts: only the last one is ever stored again."""

    def __init__(self, **constants: Any) -> None:
        self._constants = constants
        self._number = 0
        self._columns = self._empty()
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
        """Add the row of one step. `metrics` get columns of their own: NaN in the rows of steps without them."""
        columns = self._columns
        columns["step"].append(row.step)
        columns["epoch"].append(epoch)
        columns["samples_seen"].append(samples_seen)
        columns["loss"].append(row.loss)
        columns["grad_norm"].append(math.nan if row.grad_norm is None else row.grad_norm)
        columns["param_norm"].append(math.nan if row.param_norm is None else row.param_norm)
        columns["lr"].append(row.lr[0] if row.lr else 0.0)
        columns["step_seconds"].append(step_seconds)
        columns["wall_time"].append(round(wall_time.timestamp() * 1e6))
        if metrics or self._metrics:
            self._add_metrics(metrics)

    def _add_metrics(self, metrics: Mapping[str, float]) -> None:
        count = len(self._columns["step"])
        for name in metrics:
            if name not in self._metrics:
                self._metrics[name] = array("d", [math.nan]) * (count - 1)
        for name, column in self._metrics.items():
            column.append(metrics.get(name, math.nan))

    def take(self) -> tuple[CurvePart, ...]:
        """The part that is being filled, as it stands; a full one is taken for the last time."""
        if len(self._columns["step"]) < ROWS_PER_PART:
            return (self._part(_copied(self._columns), _copied(self._metrics)),)
        full = self._part(self._columns, self._metrics)
        self._number, self._columns, self._metrics = self._number + 1, self._empty(), {}
        return (full,)

    def _part(self, columns: dict[str, array[Any]], metrics: dict[str, array[Any]]) -> CurvePart:
        return CurvePart(self._number, self._constants, columns, metrics)

    def _empty(self) -> dict[str, array[Any]]:
        varying = (field for field in SCHEMA if field.name not in self._constants)
        return {field.name: array("d" if pa.types.is_floating(field.type) else "q") for field in varying}


def _copied(columns: Mapping[str, array[Any]]) -> dict[str, array[Any]]:
    return {name: column[:] for name, column in columns.items()}


def _column(field: pa.Field, values: array[Any]) -> pa.Array:
    # From plain Python values, pyarrow would import pandas first, which takes longer than many a save.
    return pa.Array.from_buffers(field.type, len(values), [None, pa.py_buffer(values)])


def _repeated(field: pa.Field, value: Any, count: int) -> pa.Array:
    if not pa.types.is_string(field.type):
        return _column(field, array("i" if field.type.bit_width == 32 else "q", [value]) * count)
    text = value.encode()
    ends = array("i", (len(text) * n for n in range(count + 1)))
    return pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(ends), pa.py_buffer(text * count)])
