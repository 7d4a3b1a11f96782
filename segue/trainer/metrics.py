"""The loss curve of one attempt, as parquet."""

from __future__ import annotations

import io
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from segue.records import WitnessRow

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
        ("wall_time", pa.timestamp("us", tz="UTC")),
    ]
)


class Curve:
    """Rows of the steps this attempt has done."""

    def __init__(self, **constants: Any) -> None:
        self._constants = constants
        self._columns: dict[str, list[Any]] = {name: [] for name in SCHEMA.names if name not in constants}

    def add(self, row: WitnessRow, *, epoch: int, samples_seen: int, step_seconds: float, wall_time: datetime) -> None:
        values = {
            "step": row.step,
            "epoch": epoch,
            "samples_seen": samples_seen,
            "loss": row.loss,
            "grad_norm": row.grad_norm,
            "param_norm": row.param_norm,
            "lr": row.lr[0] if row.lr else 0.0,
            "step_seconds": step_seconds,
            "wall_time": wall_time,
        }
        for name, value in values.items():
            self._columns[name].append(value)

    def to_parquet(self) -> bytes:
        """All rows so far as one file."""
        count = len(self._columns["step"])
        columns = self._columns | {name: [value] * count for name, value in self._constants.items()}
        buffer = io.BytesIO()
        pq.write_table(pa.table({name: columns[name] for name in SCHEMA.names}, schema=SCHEMA), buffer)
        return buffer.getvalue()
