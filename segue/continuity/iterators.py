"""Positions (numbers of drawn items) of Python's built-in iterators."""

from __future__ import annotations

import itertools
import operator
import types
import warnings
from collections.abc import Iterator
from typing import Any

SEQUENCES = frozenset(
    {"list_iterator", "tuple_iterator", "range_iterator", "longrange_iterator", "str_iterator", "str_ascii_iterator"}
)
_MOST_DRAWN = 100_000_000


def is_iterator(value: Any) -> bool:
    """Whether the value is a built-in iterator or a running generator."""
    if isinstance(value, types.GeneratorType):
        return True
    return isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools")


def position_of(iterator: Any) -> int | float | None:
    """Return a number that grows with each drawn item, or None if the position cannot be read.

    The position of a generator cannot be read. For an iterator over a sequence, the result is the negative number of
    remaining items.
    """
    kind = type(iterator)
    if kind.__module__ == "builtins" and kind.__name__ in SEQUENCES:
        return -operator.length_hint(iterator, 0)
    if kind not in (itertools.count, itertools.cycle, enumerate):
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Later versions of Python cannot copy some iterators.
        try:
            parts: Any = iterator.__reduce__()
        except (TypeError, AttributeError):
            return None
    if kind is itertools.count:
        start, *steps = parts[1]
        return start / (steps[0] if steps else 1)  # type: ignore[no-any-return]
    if kind is enumerate:
        return parts[1][1] if position_of(parts[1][0]) is not None else None
    kept, is_first_pass_over = parts[2]
    # The position goes from 1 to the number of items. After the last item, it equals the position after the first pass.
    return (len(kept) - operator.length_hint(parts[1][0], 0)) or len(kept) if is_first_pass_over else len(kept)


def draw_until(iterator: Iterator[Any], position: float) -> None:
    """Draw items until the iterator is at the position that `position_of` returned for an iterator of the same type."""
    now = position_of(iterator)
    left = round(position - now) if now is not None else 0
    for _ in itertools.islice(iterator, max(0, min(left, _MOST_DRAWN))):
        pass
