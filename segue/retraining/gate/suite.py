"""Reads a suite of Great Expectations from its file, validates it, and groups its expectations by columns.

From a table of good data, the module also writes a first suite that this data passes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from segue.errors import SpecError
from segue.retraining.gate.columns import Columns

if TYPE_CHECKING:
    import pandas as pd

_COLUMN_FIELDS = ("column", "column_A", "column_B", "column_list", "column_set")
_OF_THE_TABLE = "expect_table_"

Entry = dict[str, Any]

_MOST_VALUES = 20
_ROOM = 0.5
"""Margin on each side between the values of a column and its limits, as a share of the column's range."""


class Expectation(NamedTuple):
    """One expectation of the suite."""

    kind: str
    """The kind of the expectation, as in expect_column_values_to_not_be_null."""
    columns: tuple[str, ...] | None
    """The columns that the expectation reads. The value None means all columns.

    The tuple is empty for an expectation about the table as a whole.
    """
    made: Any
    """The expectation as an object of Great Expectations."""

    @property
    def counts_rows(self) -> bool:
        """Whether the expectation is about the number of rows."""
        return self.kind.startswith("expect_table_row_count")

    @property
    def is_warning(self) -> bool:
        """Whether a failure of the expectation stops no slot, because its severity is warning or info."""
        return str(getattr(self.made.severity, "value", self.made.severity)) in ("warning", "info")


def read_suite(path: Path, gx: Any) -> tuple[Expectation, ...]:
    """Return the expectations in a suite's file, as `ExpectationSuite.to_json_dict()` writes it.

    Raises:
        SpecError: the file cannot be read, or has an entry that is not an expectation. The error names each such entry.
    """
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    listed = _read(path)
    found, problems = [], []
    for number, entry in enumerate(listed):
        try:
            given = {
                name: entry[name]
                for name in ("type", "kwargs", "meta", "severity", "notes")
                if entry.get(name) is not None
            }
            made = ExpectationConfiguration(**given).to_domain_obj()
        except (gx.exceptions.GreatExpectationsError, ValueError, TypeError, AttributeError) as error:
            why = "; ".join(line.strip() for line in str(error).splitlines()) or type(error).__name__
            problems.append(f"expectations.{number}: {why}")
            continue
        found.append(Expectation(made.expectation_type, _columns_of(entry), made))
    if problems:
        raise SpecError(source=str(path), problems=tuple(problems))
    return tuple(found)


def by_columns(expectations: Sequence[Expectation]) -> dict[tuple[str, ...] | None, list[Expectation]]:
    """Group the expectations by the columns that they read."""
    groups: dict[tuple[str, ...] | None, list[Expectation]] = {}
    for each in expectations:
        groups.setdefault(each.columns, []).append(each)
    return groups


def _read(path: Path) -> Sequence[dict[str, Any]]:
    try:
        suite = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror}); check gate.suite"
    except ValueError as error:
        problem = f"the file is not JSON ({error}); correct it, or write a new one with Great Expectations"
    else:
        listed = suite.get("expectations") if isinstance(suite, dict) else None
        if isinstance(listed, list) and all(isinstance(each, dict) for each in listed):
            return listed
        problem = "the file has no list `expectations`; it must be a suite of Great Expectations"
    raise SpecError(source=str(path), problems=(problem,))


def _columns_of(entry: dict[str, Any]) -> tuple[str, ...] | None:
    if str(entry["type"]).startswith(_OF_THE_TABLE):
        return ()
    columns: list[str] = []
    for field in _COLUMN_FIELDS:
        value = entry.get("kwargs", {}).get(field)
        columns += [value] if isinstance(value, str) else list(value or ())
    # A condition on rows may name any column of the table.
    return None if entry.get("kwargs", {}).get("row_condition") else tuple(dict.fromkeys(columns))


def starter_suite(columns: Columns, *, name: str) -> Entry:
    """Return a draft of a suite that these rows pass: columns, nulls, ranges, sets, uniqueness.

    The function reads every row, one column at a time.

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
    """Return a range with a margin around the values. If no value is negative, the range begins at zero or above."""
    room = _ROOM * (high - low) or abs(high) or 1.0
    digits = 3 - math.floor(math.log10(room))
    lower = 0.0 if low >= 0 else round(low - room, digits)
    return lower, round(high + room, digits)


def _entry(kind: str, **arguments: Any) -> Entry:
    return {"type": kind, "kwargs": arguments, "severity": "critical"}
