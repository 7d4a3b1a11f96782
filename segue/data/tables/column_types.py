"""Chooses one type for each column of a window, from the content of all files, and finds conflicts between the files.

The functions of the module are pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from segue.data.tables.column_facts import ColumnFacts, FileFacts
from segue.errors.data import printable
from segue.spec import Reading

NULLABLE: Mapping[str, pa.DataType] = {"Int64": pa.int64(), "UInt64": pa.uint64(), "boolean": pa.bool_()}
"""The nullable types of pandas. numpy's own integers and booleans cannot have missing values."""
_DECLARED = {"text": pa.string(), "integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_()}
_SIMPLE = {
    str(kind): kind
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.bool_(), pa.string(), pa.binary(), pa.null()),
    )
}
_TIMESTAMP = re.compile(r"timestamp\[(us|ns)(?:, tz=(.+))?\]")


class Layout(NamedTuple):
    """The columns of a window, and the conflicts between the files of the window."""

    columns: dict[str, str]
    """The type of each column, in the order of the first file.

    A type is the name of an Arrow type, or of a nullable pandas type.
    """
    unlike: tuple[str, ...]
    """Sentences that each describe one conflict between the files."""


def layout_of(files: Sequence[tuple[str, FileFacts]], reading: Reading) -> Layout:
    """Return the types of the columns over all of these files.

    Even if a reader reads only some of the files, the reader uses these types.
    """
    names = dict.fromkeys(name for _, facts in files for name in facts.columns)
    columns, unlike = {}, list[str]()
    for name in names:
        held = [(file, facts.columns[name]) for file, facts in files if name in facts.columns]
        is_everywhere = all(name in facts.columns for _, facts in files if facts.rows)
        found = _declared(reading, name, held) or _joined(held)
        columns[name] = _for_frames(
            found, [facts for _, facts in held], is_everywhere=is_everywhere, is_declared=name in reading.types
        )
        if name not in reading.types:
            unlike += _differences(name, held)
            unlike += _problems(name, held)
    for file, facts in files:
        unlike += [f"{file} has no column {printable(name)}" for name in names if name not in facts.columns]
    unlike += [
        f"no file has the column {printable(name)}, which data.reading.types names"
        for name in reading.types
        if name not in names
    ]
    return Layout(columns, tuple(unlike))


def arrow_type(name: str) -> pa.DataType | None:
    """Return the Arrow type of a column of a layout.

    If a column keeps the type of its file, as a list does, return None.
    """
    stamp = _TIMESTAMP.fullmatch(name)
    return pa.timestamp(stamp[1], stamp[2]) if stamp else NULLABLE.get(name) or _SIMPLE.get(name)


def setting(column: str) -> str:
    """Return the name of the setting in retrain.toml for the type of a column."""
    return f"data.reading.types.{column if re.fullmatch('[A-Za-z0-9_-]+', column) else json.dumps(column)}"


def _declared(reading: Reading, name: str, held: Sequence[tuple[str, ColumnFacts]]) -> pa.DataType | None:
    declared = reading.types.get(name)
    if declared is None:
        return None
    found = _joined(held)
    if declared == "time":
        return found if pa.types.is_timestamp(found) else pa.timestamp("us")
    if declared == "integer":
        return pa.uint64() if found == pa.uint64() else pa.int64()
    return _DECLARED[declared]


def _joined(held: Sequence[tuple[str, ColumnFacts]]) -> pa.DataType:
    """Return the narrowest type that can represent all values.

    If no numeric or time type can represent all values, return text, if possible.
    """
    kinds = [facts.kind for _, facts in held if facts.kind is not None]
    if pa.uint64() in kinds:  # Numbers that are not negative fit both types.
        fits = [facts.kind == pa.int64() and not facts.has_negatives for _, facts in held if facts.kind is not None]
        kinds = [pa.uint64() if fit else kind for kind, fit in zip(kinds, fits, strict=True)]
    kinds = list(dict.fromkeys(kinds))
    if not kinds:
        return pa.string() if any(facts.is_words for _, facts in held) else pa.null()
    joined = kinds[0]
    for kind in kinds[1:]:
        both = _both(joined, kind)
        if both is None:
            return (
                pa.string() if all(str(each) in _SIMPLE or pa.types.is_timestamp(each) for each in kinds) else kinds[0]
            )
        joined = both
    return joined


def _both(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one == other:
        return one
    if _is_number(one) and _is_number(other):
        if pa.types.is_floating(one) or pa.types.is_floating(other):
            return pa.float64()
        both_unsigned = pa.types.is_unsigned_integer(one) and pa.types.is_unsigned_integer(other)
        return pa.uint64() if both_unsigned else pa.int64()
    if pa.types.is_timestamp(one) and pa.types.is_timestamp(other) and (one.tz is None) == (other.tz is None):
        zone = one.tz if one.tz == other.tz else "UTC"
        return pa.timestamp("ns" if "ns" in (one.unit, other.unit) else "us", zone)
    return None


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _for_frames(kind: pa.DataType, held: Sequence[ColumnFacts], *, is_everywhere: bool, is_declared: bool) -> str:
    """Return the type for frames.

    If the window has missing values, return a nullable type, so that the column has one type in all files.
    """
    is_missing = not is_everywhere or any(facts.nulls for facts in held)
    if is_missing and pa.types.is_boolean(kind):
        return "boolean"
    if is_missing and pa.types.is_integer(kind):
        is_exact = all(facts.is_exact for facts in held)
        if is_exact and not is_declared:
            return str(pa.float64())
        return "UInt64" if pa.types.is_unsigned_integer(kind) else "Int64"
    return str(kind)


def _differences(name: str, held: Sequence[tuple[str, ColumnFacts]]) -> Iterator[str]:
    known = [(file, facts) for file, facts in held if facts.kind is not None]
    if not known:
        return
    first_file, first = known[0]
    for file, facts in known[1:]:
        assert first.kind is not None
        assert facts.kind is not None
        if _both(first.kind, facts.kind) is None:
            here, there = f"{_in_words(facts.kind)} in {file}", f"{_in_words(first.kind)} in {first_file}"
            yield f"column {printable(name)} is {here} and {there}"
    fractions = [file for file, facts in known if pa.types.is_floating(facts.kind)]
    inexact = [file for file, facts in known if pa.types.is_integer(facts.kind) and not facts.is_exact]
    if fractions and inexact:
        yield f"column {printable(name)} has whole numbers above 2^53 in {inexact[0]} and fractions in {fractions[0]}"


def _problems(name: str, held: Sequence[tuple[str, ColumnFacts]]) -> Iterator[str]:
    for file, facts in [(file, facts) for file, facts in held if facts.problem is not None][:1]:
        fix = facts.fix.format(setting=setting(name))
        yield f"column {printable(name)} in {file}: {facts.problem}. Fix: set {fix} in retrain.toml"


def _in_words(kind: pa.DataType) -> str:
    """Return the type of a column as a phrase for messages, without the width of its numbers."""
    if _is_number(kind):
        return "a number"
    if pa.types.is_string(kind):
        return "text"
    if pa.types.is_timestamp(kind):
        return "a time" if kind.tz is None else "a time with a zone"
    return str(kind)
