"""Parquet and CSV files: their number of rows, and their content as a pandas frame."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from segue.data.files import readable
from segue.errors import DataUnreadableError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd

LEAST_LIMIT_BYTES = 2**30
MOST_EXPANSION = 200
"""A file may hold so many times its own bytes, and at least the limit above. Text compresses to about a tenth."""

_OF_CONTENT = (ArithmeticError, AttributeError, LookupError, NotImplementedError, RecursionError, TypeError)
"""What pandas and pyarrow raise for files whose parts contradict each other."""


def count_rows(path: Path, *, name: str) -> int:
    """The number of rows of a local file, read in pieces. Errors call it by this name.

    Raises:
        DataUnreadableError: it is neither Parquet nor CSV, is damaged, or holds far more than its own size.
    """
    with _as_data(name):  # What pyarrow raises for a damaged file is a ValueError.
        if is_parquet(path, name=name):
            return _checked_rows(path, name=name)
        import pyarrow.csv

        with _plain(path, name=name) as source, pyarrow.csv.open_csv(source) as batches:
            return sum(batch.num_rows for batch in batches)


def is_parquet(path: Path, *, name: str) -> bool:
    """Whether a file is Parquet by its name, and not CSV.

    Raises:
        DataUnreadableError: it is neither.
    """
    if ".parquet" in path.suffixes[-2:]:
        return True
    if ".csv" in path.suffixes[-2:]:
        return False
    raise DataUnreadableError(path=name, why="its name ends with neither .parquet nor .csv, .csv.gz or .csv.zst")


def read_frame(paths: Iterable[Path], *, columns: Sequence[str] | None = None) -> pd.DataFrame:
    """The rows of local files, in order, with a new index from 0 on; all columns, or these.

    Raises:
        DataUnreadableError: a file is neither Parquet nor CSV, is damaged, lacks a column, or holds far more than its
            own size.
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="Reading data as a frame") from None
    frames = []
    for path in paths:
        name, wanted = str(path), None if columns is None else list(columns)
        with _as_data(name):
            if is_parquet(path, name=name):
                _checked_rows(path, name=name)
                frames.append(pd.read_parquet(path, columns=wanted))
            else:
                with _plain(path, name=name) as source:
                    frames.append(pd.read_csv(source, usecols=wanted))
    return pd.concat(frames, ignore_index=True)


@contextmanager
def _as_data(name: str) -> Iterator[None]:
    """Turn what reading a file raises into a DataUnreadableError that names it. Nothing in a file is run."""
    with readable(name):
        try:
            yield
        except _OF_CONTENT as error:
            why = f"its content is not that of such a file ({type(error).__name__}: {error})"
            raise DataUnreadableError(path=name, why=why) from error


def _checked_rows(path: Path, *, name: str) -> int:
    """The number of rows of a Parquet file, if they are in proportion to its size."""
    import pyarrow.parquet

    found = pyarrow.parquet.read_metadata(path)
    rows, groups = int(found.num_rows), range(found.num_row_groups)
    # Rows that are all equal take no space in the file, and 8 bytes a column in memory.
    size_bytes = max(sum(found.row_group(number).total_byte_size for number in groups), 8 * rows * found.num_columns)
    _refuse_more(size_bytes, most_bytes=_most_bytes(path), name=name)
    return rows


@contextmanager
def _plain(path: Path, *, name: str) -> Iterator[Path | IO[bytes]]:
    """A CSV file to read from: the file itself, or what it decompresses to, up to the limit."""
    import pyarrow as pa

    compression = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(path.suffix)
    if compression is None:
        yield path
        return
    with pa.input_stream(str(path), compression=compression) as inner:
        yield io.BufferedReader(_Limited(inner, most_bytes=_most_bytes(path), name=name), 2**20)


class _Limited(io.RawIOBase):
    """A stream that ends with an error after so many bytes."""

    def __init__(self, inner: Any, *, most_bytes: int, name: str) -> None:
        self._inner, self._most_bytes, self._name = inner, most_bytes, name
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, into: Any) -> int:
        data = self._inner.read(len(into))
        self._count += len(data)
        _refuse_more(self._count, most_bytes=self._most_bytes, name=self._name)
        into[: len(data)] = data
        return len(data)


def _most_bytes(path: Path) -> int:
    return max(LEAST_LIMIT_BYTES, MOST_EXPANSION * path.stat().st_size)


def _refuse_more(size_bytes: int, *, most_bytes: int, name: str) -> None:
    if size_bytes > most_bytes:
        why = f"it holds more than {most_bytes / 1e9:.1f} GB, far more than a file of its size"
        raise DataUnreadableError(path=name, why=why)
