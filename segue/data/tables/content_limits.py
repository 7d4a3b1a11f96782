"""Refuses files that contain far more data than their size permits, and columns without a name or with equal names."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from segue.errors import DataContentError, DataUnreadableError

LEAST_LIMIT_BYTES = 2**30
MOST_EXPANSION = 200
"""Largest permitted size of a file's content after decompression, divided by the size of the file. Content of up to 1
GiB is always permitted.

Text compresses to about a tenth.
"""


def refuse_more(size_bytes: int, *, path: Path, name: str) -> None:
    """Raises:
    DataUnreadableError: the content is far larger than a file of that size can hold.
    """
    most_bytes = max(LEAST_LIMIT_BYTES, MOST_EXPANSION * path.stat().st_size)
    if size_bytes > most_bytes:
        why = f"it holds more than {most_bytes / 1e9:.1f} GB, far more than a file of its size"
        raise DataUnreadableError(path=name, why=why, fix="check the origin of the file; if it is correct, divide it.")


def refuse_names(names: tuple[str, ...], *, name: str) -> None:
    """Raises:
    DataContentError: a column has no name, or the name of another column.
    """
    if "" in names:
        rule = f"column {names.index('') + 1} has no name"
        raise DataContentError(path=name, rule=rule, fix="give each column a name.")
    twice = next((each for each, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        places = " and ".join(str(number) for number, each in enumerate(names, start=1) if each == twice)
        rule = f"columns {places} have the same name"
        raise DataContentError(path=name, column=twice, rule=rule, fix="give each column a name of its own.")
