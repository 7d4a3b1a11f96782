"""Reads the rows of committed steps as plain values, in the order of steps, for trackers.

The module needs no pandas.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from segue.curves.curve_rows import METRIC_PREFIX
from segue.curves.frame import steps_of_lineage
from segue.errors import MissingObjectError
from segue.runlog import keys
from segue.runlog.history import History
from segue.runlog.log import RunLog

log = logging.getLogger(__name__)

CHANNELS = ("loss", "lr", "grad_norm", "param_norm", "step_seconds")


@dataclass(frozen=True)
class CommittedRow:
    """The measured numbers of one committed step."""

    step: int
    at: datetime
    values: Mapping[str, float]
    """Loss, learning rate, norms, and other metrics of the training code, without NaN values."""


class CommittedRows:
    """Reads a run's curve while the curve grows.

    If a stored file has not changed, the reader does not read it again.
    """

    def __init__(self, runlog: RunLog) -> None:
        self._runlog = runlog
        self._read: dict[str, tuple[int, int]] = {}
        """Maps each file to its size at the last read, and to its last step."""

    def after(self, step: int, history: History) -> Iterator[CommittedRow]:
        """Yield the rows after `step` up to the newest checkpoint, from the attempts in the checkpoint's lineage.

        Raises:
            StoreReadError: the store could not be read.
        """
        spans = sorted(steps_of_lineage(history).items(), key=lambda item: item[1])
        for attempt_id, (begin, end) in spans:
            if end > step:
                yield from self._of_attempt(attempt_id, after=max(begin, step), to=end)

    def _of_attempt(self, attempt_id: str, *, after: int, to: int) -> Iterator[CommittedRow]:
        prefix = keys.metrics_prefix(self._runlog.run_id)
        for item in sorted(self._runlog.store.list_objects(prefix), key=lambda item: item.key):
            if not item.key.startswith(f"{prefix}{attempt_id}-p"):
                continue
            size, last = self._read.get(item.key, (-1, 0))
            if size == item.size_bytes and last <= after:
                continue
            rows = self._rows_in(item.key)
            # A file that cannot be read is read again only after it was written again.
            self._read[item.key] = (item.size_bytes, rows[-1].step if rows else after)
            yield from (row for row in rows if after < row.step <= to)

    def _rows_in(self, key: str) -> list[CommittedRow]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            table = pq.read_table(pa.BufferReader(self._runlog.store.get(key)))
        except (MissingObjectError, pa.ArrowException) as error:
            log.warning("loss curve file left out key=%s reason=%s", key, error)
            return []
        columns = table.to_pydict()
        own = [name for name in table.column_names if name.startswith(METRIC_PREFIX)]
        names = {**{name: name for name in CHANNELS}, **{name: name.removeprefix(METRIC_PREFIX) for name in own}}
        return [_row(columns, names, number) for number in range(table.num_rows)]


def _row(columns: Mapping[str, list[Any]], names: Mapping[str, str], number: int) -> CommittedRow:
    values = {shown: columns[name][number] for name, shown in names.items() if name in columns}
    present = {name: value for name, value in values.items() if value is not None and not math.isnan(value)}
    return CommittedRow(columns["step"][number], columns["wall_time"][number], present)
