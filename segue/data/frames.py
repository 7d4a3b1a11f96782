"""Parquet and CSV files: their number of rows, and their content as a pandas frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from segue.data.files import readable
from segue.errors import DataUnreadableError, MissingExtraError

if TYPE_CHECKING:
    import pandas as pd


def count_rows(path: Path, *, name: str) -> int:
    """The number of rows of a local file, read in pieces. Errors call it by this name.

    Raises:
        DataUnreadableError: it is neither Parquet nor CSV, or is damaged.
    """
    with readable(name):  # What pyarrow raises for a damaged file is a ValueError.
        if is_parquet(path, name=name):
            import pyarrow.parquet

            return int(pyarrow.parquet.read_metadata(path).num_rows)
        import pyarrow.csv

        with pyarrow.csv.open_csv(path) as batches:
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
        DataUnreadableError: a file is neither Parquet nor CSV, is damaged, or lacks a column.
        MissingExtraError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtraError(extra="data", needed_for="Reading data as a frame") from None
    frames = []
    for path in paths:
        with readable(str(path)):
            if is_parquet(path, name=str(path)):
                frames.append(pd.read_parquet(path, columns=None if columns is None else list(columns)))
            else:
                frames.append(pd.read_csv(path, usecols=None if columns is None else list(columns)))
    return pd.concat(frames, ignore_index=True)
