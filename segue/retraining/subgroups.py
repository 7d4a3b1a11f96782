"""Divides the rows of an evaluation into subgroups.

A row without a value also belongs to a subgroup of the column. The module is pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pandas as pd

_MOST_NAMED = 3
_MOST_RECORDED = 1_000
"""Maximum number of values of a column whose row counts are recorded. The most frequent values come first."""


class Subgroups(NamedTuple):
    """The subgroups of one column that are compared."""

    names: Sequence[str]
    of_row: npt.NDArray[np.int64]
    """The subgroup of each row, as an index of `names`. The value is -1 for a row that is in no compared subgroup."""
    rows: Mapping[str, int]
    """Number of rows of each value, whether the value is compared or not."""
    notes: Sequence[str]
    """Sentences about the values that are new, that are gone, or that have too few rows."""

    def means(self, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The mean of each subgroup."""
        is_compared, count = self.of_row >= 0, len(self.names)
        mine = self.of_row[is_compared]
        means: npt.NDArray[np.float64] = np.bincount(mine, values[is_compared], count) / np.bincount(mine, None, count)
        return means


def subgroups(
    frame: pd.DataFrame,
    column: str,
    counted: npt.NDArray[np.bool_],
    *,
    least: int,
    before: Mapping[str, int] | None = None,
) -> Subgroups:
    """Return the values of a column with at least `least` counted rows.

    All values with fewer rows are compared together. `before` contains the number of rows of each value at the
    evaluation of the model in service. None means that the numbers are unknown.
    """
    names, codes = _values(frame[column], column)
    counts = np.bincount(codes[counted], minlength=len(names))
    order = [int(code) for code in np.argsort(-counts, kind="stable") if counts[code]]
    large, small = [code for code in order if counts[code] >= least], [code for code in order if counts[code] < least]
    rows = {names[code]: int(counts[code]) for code in order[:_MOST_RECORDED]}
    compared, notes = [names[code] for code in large], list[str]()
    index = np.full(len(names) + 1, -1, dtype=np.int64)
    index[large] = np.arange(len(large))
    if small:
        are_compared = len(small) > 1 and sum(counts[code] for code in small) >= least
        if are_compared:
            index[small] = len(compared)
            compared.append(f"{column} is one of {len(small):,} values with fewer than {least:,} rows each")
        problem = "too few rows to be compared alone" if are_compared else "too few rows to be compared"
        notes.append(f"{problem}: {_listed([_with_rows(names[code], int(counts[code])) for code in small])}")
    of_row = np.where(counted, index[codes], -1)
    return Subgroups(compared, of_row, rows, (*notes, *_changes(column, rows, before)))


def _values(column: pd.Series[Any], name: str) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return the name of each value, and the value of each row. The last name is for rows without a value."""
    import pandas as pd

    # Objects are compared by their text, because lists have no hash, and 1 would be the same value as True.
    is_objects = column.dtype == object
    codes, _ = pd.factorize(column.map(_with_type, na_action="ignore") if is_objects else column)
    _, first = np.unique(codes, return_index=True)
    values = [column.iloc[row] for row in first if codes[row] >= 0]
    alike = Counter(map(str, values))
    shown = (f"{value} ({type(value).__name__})" if alike[str(value)] > 1 else str(value) or "''" for value in values)
    names = [*(f"{name}={each}" for each in shown), f"{name} is missing"]
    return names, np.where(codes < 0, len(values), codes).astype(np.int64)


def _with_type(value: object) -> str:
    return f"{type(value).__name__} {value}"


def _changes(column: str, rows: Mapping[str, int], before: Mapping[str, int] | None) -> Iterator[str]:
    if not before:
        return
    own = (f"{column}=", f"{column} is missing")
    earlier = {name: count for name, count in before.items() if name.startswith(own)}
    new = [_with_rows(name, count) for name, count in rows.items() if name not in earlier]
    if new and earlier and len(earlier) < _MOST_RECORDED:
        yield f"new since the model in service was evaluated: {_listed(new)}"
    gone = [f"{name} ({count:,} rows then)" for name, count in earlier.items() if name not in rows]
    if gone and len(rows) < _MOST_RECORDED:
        yield f"gone since the model in service was evaluated: {_listed(gone)}"


def _with_rows(name: str, count: int) -> str:
    return f"{name} ({count:,} {'row' if count == 1 else 'rows'})"


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join([*names[:_MOST_NAMED], *([f"{more:,} more"] if more > 0 else [])])
