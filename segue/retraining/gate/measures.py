"""Computes segue's own measures of a window: likeness of the files, number of rows, age and drift.

Each measure is a small frame. Expectations from retrain.toml check this frame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from segue.retraining.gate.columns import Columns
from segue.retraining.gate.profile import Drift, drift_of
from segue.retraining.gate.record import ColumnProfile
from segue.retraining.spec import GateSpec, Window

if TYPE_CHECKING:
    import pandas as pd

DIFFERENCES = "differences"
"""Name of the frame of differences between files. Each row of the frame is one difference."""
Arguments = Mapping[str, Any]


class Derived(NamedTuple):
    """A frame of measures, and the classes and arguments of its expectations."""

    name: str
    of: str
    """Plural noun for the rows of the frame, such as `files`."""
    frame: pd.DataFrame
    """The frame of measures. The first column names the subject of each row."""
    expected: tuple[tuple[str, Arguments], ...]


def derived(
    spec: GateSpec,
    columns: Columns,
    window: Window,
    *,
    slot: datetime,
    new: Columns,
    before: Mapping[str, ColumnProfile],
) -> Iterator[Derived]:
    """Return the frames of measures of a window.

    `before` contains the profiles of the previous window, by column. At the first slot, `before` is empty. The drift is
    computed for the rows in `new`.

    Raises:
        DataUnreadableError: a file is damaged.
    """
    import pandas as pd

    unlike = list(window.unlike)
    between, inside = "ExpectColumnValuesToBeBetween", "ExpectColumnValuesToBeInSet"
    files = pd.DataFrame({"files": unlike or ["all files"], "alike": [not unlike] * max(len(unlike), 1)})
    yield Derived("files", DIFFERENCES, files, ((inside, {"column": "alike", "value_set": [True]}),))
    limits = {"min_value": spec.min_rows_share, "max_value": spec.max_rows_share}
    if any(limit is not None for limit in limits.values()):
        yield Derived("rows", "periods", _rows_by_period(window), ((between, {"column": "share", **limits}),))
    if spec.max_age_hours is not None and spec.time_column is not None:
        known = ("ExpectColumnValuesToNotBeNull", {"column": "age_hours"})
        young = (between, {"column": "age_hours", "max_value": spec.max_age_hours})
        yield Derived("age", "columns", _age(columns, spec.time_column, slot), (known, young))
    drifts = {"psi": spec.max_psi, "ks": spec.max_ks}
    if before and any(limit is not None for limit in drifts.values()):
        expected = tuple(
            (between, {"column": name, "max_value": limit}) for name, limit in drifts.items() if limit is not None
        )
        yield Derived("drift", "columns", _drifts(spec, new, before), expected)


def _rows_by_period(window: Window) -> pd.DataFrame:
    import pandas as pd

    rows: dict[str, int] = {}
    for file in window.files:
        rows[file.period] = rows.get(file.period, 0) + (file.rows or 0)
    mean = sum(rows.values()) / len(rows)
    shares = [count / mean if mean else 0.0 for count in rows.values()]
    return pd.DataFrame({"period": [*rows], "rows": [*rows.values()], "share": shares})


def _age(columns: Columns, name: str, slot: datetime) -> pd.DataFrame:
    import pandas as pd

    held = columns.read([name])[name] if name in columns.names else pd.Series()
    times = pd.to_datetime(held, utc=True, errors="coerce", format="ISO8601")
    hours = (pd.Timestamp(slot).tz_convert(UTC) - times.max()).total_seconds() / 3600 if times.notna().any() else None
    return pd.DataFrame({"column": [name], "age_hours": pd.Series([hours], dtype="float64")})


def drifts_of(
    columns: Columns, before: Mapping[str, ColumnProfile], *, only: Sequence[str] | None = None
) -> dict[str, Drift]:
    """Return the drift of each column that has a profile. The columns are read one at a time.

    If a column in `only` is missing, its drift is infinite.

    Raises:
        DataUnreadableError: a file is damaged.
    """
    wanted = [name for name in columns.names if name in before and (only is None or name in only)]
    found = {name: drift_of(columns.read([name])[name], before[name]) for name in wanted}
    known = {name: drift for name, drift in found.items() if drift is not None}
    return known | {name: Drift(math.inf, None) for name in only or () if name not in columns.names}


def _drifts(spec: GateSpec, columns: Columns, before: Mapping[str, ColumnProfile]) -> pd.DataFrame:
    import pandas as pd

    known = drifts_of(columns, before, only=spec.drift_columns)
    psi, ks = [drift.psi for drift in known.values()], [drift.ks for drift in known.values()]
    return pd.DataFrame({"column": [*known], "psi": psi, "ks": pd.Series(ks, dtype="float64")})
