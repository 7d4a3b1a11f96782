"""Makes a first suite of expectations from data that is known to be good."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from segue.retraining.gate.columns import Columns

if TYPE_CHECKING:
    import pandas as pd

Entry = dict[str, Any]

_MOST_VALUES = 20
_ROOM = 0.5
"""Margin on each side between the values of a column and its limits, as a share of the column's range."""


def starter_suite(columns: Columns, *, name: str) -> Entry:
    """Return a suite that these rows meet, as a draft for a person: columns, nulls, ranges, sets of values, uniqueness.

    Every row is read, one column at a time.

    Raises:
        DataUnreadableError: a file is damaged.
    """
    expectations = [_entry("expect_table_columns_to_match_set", column_set=list(columns.names), exact_match=False)]
    for column in columns.names:
        expectations += _of_column(column, columns.read([column])[column])
    return {"name": name, "expectations": expectations, "meta": {"rows": columns.rows}}


def _of_column(name: str, values: pd.Series) -> Iterator[Entry]:
    import pandas as pd

    present = values.dropna()
    share = len(present) / len(values) if len(values) else 0.0
    if share == 1.0:
        yield _entry("expect_column_values_to_not_be_null", column=name)
    elif share > 0.5:
        yield _entry("expect_column_values_to_not_be_null", column=name, mostly=math.floor(share * 90) / 100)
    # Lists, bytes and times of day are objects that cannot be counted or compared.
    if not len(present) or pd.api.types.is_bool_dtype(present) or present.dtype == object:
        return
    distinct = present.nunique()
    if distinct == len(values) > 1 and not pd.api.types.is_float_dtype(present):
        yield _entry("expect_column_values_to_be_unique", column=name)
    if pd.api.types.is_numeric_dtype(present):
        low, high = float(present.min()), float(present.max())
        if math.isinf(low) or math.isinf(high):
            return
        low, high = _limits(low, high)
        yield _entry("expect_column_values_to_be_between", column=name, min_value=low, max_value=high)
    elif pd.api.types.is_string_dtype(present) and distinct <= _MOST_VALUES:
        yield _entry("expect_column_values_to_be_in_set", column=name, value_set=sorted(map(str, present.unique())))


def _limits(low: float, high: float) -> tuple[float, float]:
    """Return a range with a margin around the values.

    The range does not go below zero if no value does, as for counts.
    """
    room = _ROOM * (high - low) or abs(high) or 1.0
    digits = 3 - math.floor(math.log10(room))
    lower = 0.0 if low >= 0 else round(low - room, digits)
    return lower, round(high + room, digits)


def _entry(kind: str, **arguments: Any) -> Entry:
    return {"type": kind, "kwargs": arguments, "severity": "critical"}
