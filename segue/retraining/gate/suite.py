"""Reads a suite of Great Expectations from its file, validates the suite, and divides it by columns."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from segue.errors import SpecError

_COLUMN_FIELDS = ("column", "column_A", "column_B", "column_list", "column_set")
_OF_THE_TABLE = "expect_table_"


class Expectation(NamedTuple):
    """One expectation of the suite."""

    kind: str
    """The kind of the expectation, as in expect_column_values_to_not_be_null."""
    columns: tuple[str, ...] | None
    """The columns that the expectation reads.

    The tuple is empty if the expectation is about the table as a whole, and None for all columns.
    """
    made: Any
    """The expectation as an object of Great Expectations."""

    @property
    def counts_rows(self) -> bool:
        """Whether the expectation is about the number of rows."""
        return self.kind.startswith("expect_table_row_count")

    @property
    def is_warning(self) -> bool:
        """Whether the expectation does not stop a slot, because the severity of the expectation is warning or info."""
        return str(getattr(self.made.severity, "value", self.made.severity)) in ("warning", "info")


def read_suite(path: Path, gx: Any) -> tuple[Expectation, ...]:
    """Return the expectations in a suite's file, as `ExpectationSuite.to_json_dict()` writes it.

    Raises:
        SpecError: the file cannot be read, or an entry is not an expectation. The error names each such entry.
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
