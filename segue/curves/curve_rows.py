"""Records the loss curve of one attempt. The rows become Parquet files at the saves.

pyarrow is imported at the first save, because the import takes longer than the first steps of a small model.
"""

from __future__ import annotations

import io
import math
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from segue.continuity.witness import StepRow
from segue.process import safe_beside_forks
from segue.records import CurveDigest

if TYPE_CHECKING:
    import pyarrow as pa

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
        with safe_beside_forks():
            import pyarrow.parquet as pq

            buffer = io.BytesIO()
            pq.write_table(self._table, buffer)
            return buffer.getvalue()

    def digest(self) -> CurveDigest:
        """Return the digest of all rows of the part, without reading the file."""
        with safe_beside_forks():
            from segue.curves.schema import sha256_of

            return CurveDigest(part=self.number, rows=self._table.num_rows, sha256=sha256_of(self._table))

    @cached_property
    def _table(self) -> pa.Table:
        from segue.curves.schema import table_of

        metrics = {METRIC_PREFIX + name: column for name, column in self.metrics.items()}
        return table_of(np.frombuffer(self.rows, _ROW_TYPE), constants=self.constants, metrics=metrics)


class Curve:
    """The rows of this attempt's steps.

    The rows are divided into parts, so that only the last part has to be stored again.
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
