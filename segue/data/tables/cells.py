"""Converts CSV cells from text to values. A column gets the first type in `CANDIDATES` that fits all its cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from segue.spec import Reading

MOST_EXACT = 2**53
"""Largest whole number up to which a 64-bit float represents every whole number exactly."""
CANDIDATES: tuple[pa.DataType, ...] = (
    pa.int64(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.timestamp("us"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("ns", "UTC"),
)
"""The types that segue tries for a column, in this order. If no type fits, the column is text."""
NUMBER = r"^\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*$"
TIME = r"^\s*\d{4}-\d{2}-\d{2}([ T]\d{2}.*)?\s*$"
OTHER_NUMBER = r"^\s*[+-]?(\d{1,3}([. ']\d{3})+(,\d+)?|\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?)\s*$"
"""This pattern matches a number with a decimal comma, or with groups of digits."""

NULL_WORDS = (
    *("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
    *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Words that mean a missing value in columns that are not text."""


def values_of(cells: pa.Array, kind: pa.DataType, reading: Reading) -> pa.Array:
    """Convert cells to values of a type. The conversion loses digits that floating point cannot represent.

    Raises:
        pyarrow.ArrowInvalid: a cell is not a value of this type.
    """
    if pa.types.is_string(kind):
        return cells
    if pa.types.is_null(kind):
        return pa.nulls(len(cells))
    try:
        return _cast(cells, kind, reading)
    except pa.ArrowInvalid:
        trimmed = pc.utf8_trim_whitespace(cells)
        words = pa.array([""] if reading.nulls is not None else NULL_WORDS, pa.string())
        known = pc.if_else(pc.is_in(trimmed, words), pa.scalar(None, pa.string()), trimmed)
        return _cast(known, kind, reading)


def exact_values_of(cells: pa.Array, kind: pa.DataType, reading: Reading) -> pa.Array:
    """Convert cells to values of a type without loss of digits, because a loss of digits would change ids.

    Raises:
        pyarrow.ArrowInvalid: a cell is not a value of this type, or has too many digits.
    """
    if pa.types.is_floating(kind):
        _refuse_inexact(cells)
    return values_of(cells, kind, reading)


def first_refused(cells: pa.Array, cast: Callable[[pa.Array], object]) -> int:
    """Return the index of the first cell for which `cast` raises an exception.

    The caller knows that `cast` raises an exception for the whole array.
    """
    begin, end = 0, len(cells)
    while end - begin > 1:
        middle = (begin + end) // 2
        try:
            cast(cells.slice(begin, middle - begin))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            end = middle
        else:
            begin = middle
    return begin


def matching(cells: pa.Array, patterns: tuple[str, ...]) -> Iterator[tuple[int, int | None]]:
    """Yield for each pattern the number of cells that match, and the index of the first cell that does not match.

    If all cells match, the index is None.
    """
    counted = pc.value_counts(pc.drop_null(cells))
    values, counts = counted.field("values"), counted.field("counts")
    for pattern in patterns:
        fits = pc.match_substring_regex(values, pattern)
        count = pc.sum(counts.filter(fits)).as_py() or 0
        others = values.filter(pc.invert(fits))
        yield count, cells.index(others[0]).as_py() if count and len(others) else None


def _cast(cells: pa.Array, kind: pa.DataType, reading: Reading) -> pa.Array:
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        cells = _as_numbers(cells, reading)
        if pa.types.is_integer(kind):
            _refuse(cells, pc.match_substring(cells, "x"), "hexadecimal digits")
            _refuse(cells, pc.match_substring(cells, "X"), "hexadecimal digits")
    return cells.cast(kind)


def _as_numbers(cells: pa.Array, reading: Reading) -> pa.Array:
    """Return the numbers, rewritten with a decimal point and without separators between groups of digits."""
    if reading.decimal == "." and reading.thousands is None:
        return cells
    sign, digits = re.escape(reading.decimal), r"\d+"
    if reading.thousands is not None:
        digits = rf"(\d{{1,3}}({re.escape(reading.thousands)}\d{{3}})+|\d+)"
    pattern = rf"^[+-]?({digits}({sign}\d*)?|{sign}\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf)$"
    _refuse(cells, pc.invert(pc.match_substring_regex(cells, pattern)), "another notation")
    if reading.thousands is not None:
        cells = pc.replace_substring(cells, reading.thousands, "")
    return pc.replace_substring(cells, reading.decimal, ".")


def _refuse_inexact(cells: pa.Array) -> None:
    is_long = pc.and_(pc.greater(pc.binary_length(cells), 15), pc.invert(pc.match_substring(cells, ".")))
    if not pc.any(is_long).as_py():
        return
    whole = cells.filter(is_long)
    whole = whole.filter(pc.match_substring_regex(whole, r"^[+-]?\d+$"))
    if len(whole):
        size = pc.abs_checked(whole.cast(pa.int64()))
        _refuse(whole, pc.greater(size, MOST_EXACT), "more digits than a number with a fraction holds")


def _refuse(cells: pa.Array, at_fault: pa.Array, why: str) -> None:
    if pc.any(at_fault).as_py():
        raise pa.ArrowInvalid(why)
