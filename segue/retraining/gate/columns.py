"""The files of a window as one table of which a few columns are read at a time."""

from __future__ import annotations

import tempfile
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from segue.data.files import readable
from segue.data.frames import is_parquet, read_frame
from segue.retraining.spec import WindowFile

if TYPE_CHECKING:
    import pandas as pd


class Part(NamedTuple):
    """One file of a table."""

    source: str
    """Path or URL of the file."""
    path: Path
    """A Parquet file."""
    schema: pa.Schema
    rows: int

    @property
    def name(self) -> str:
        """Its last part."""
        return self.source.rpartition("/")[2]


class Columns:
    """The rows of several files, in order. Memory holds the columns that were asked for, and no others."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self._ends = tuple(accumulate(part.rows for part in parts))

    def only(self, sources: Collection[str]) -> Columns:
        """The same of these files only."""
        return Columns([part for part in self.parts if part.source in sources])

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self._ends[-1] if self._ends else 0

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that every file has, in the order of the first one."""
        first, *others = self.parts
        return tuple(name for name in first.schema.names if all(name in part.schema.names for part in others))

    def mismatches(self) -> tuple[str, ...]:
        """What is not alike in the files, in sentences: columns that some lack, and columns of other types."""
        types: dict[str, tuple[str, pa.DataType]] = {}
        found = []
        for part in self.parts:
            for field in part.schema:
                kind = _kind_of(field.type)
                name, first = types.setdefault(field.name, (part.name, kind))
                if kind != first:
                    found.append(f"column {field.name} is {kind} in {part.name} and {first} in {name}")
        for part in self.parts:
            found += [f"{part.name} has no column {name}" for name in types if name not in part.schema.names]
        return tuple(found)

    def read(self, names: Sequence[str]) -> pd.DataFrame:
        """These columns, with an index from 0 on.

        Raises:
            DataUnreadableError: a file is damaged.
        """
        return read_frame([part.path for part in self.parts], columns=names)

    def outline(self) -> pd.DataFrame:
        """All columns of the first file, without rows."""
        frame: pd.DataFrame = self.parts[0].schema.empty_table().to_pandas()
        return frame

    def count(self) -> pd.DataFrame:
        """As many rows as there are, with nothing in them."""
        import pandas as pd

        return pd.DataFrame(index=pd.RangeIndex(self.rows))

    def place_of(self, row: int) -> str:
        """Where a row is: the file and its row, counted from 0."""
        number = bisect_right(self._ends, row)
        begin = self._ends[number - 1] if number else 0
        return f"{self.parts[number].name}, row {row - begin}"


@contextmanager
def columns_of(files: Sequence[WindowFile], local: Mapping[str, Path]) -> Iterator[Columns]:
    """The table of a window's files, by where they are on this machine. CSV becomes Parquet until the block ends.

    Raises:
        DataUnreadableError: a file is damaged.
    """
    with ExitStack() as opened:
        parts = []
        for number, file in enumerate(files):
            path = local[file.path]
            with readable(file.path):
                if not is_parquet(path, name=file.path):
                    folder = opened.enter_context(tempfile.TemporaryDirectory(prefix="segue-data-"))
                    path = _as_parquet(path, Path(folder, f"{number}.parquet"))
                parts.append(Part(file.path, path, pq.read_schema(path), file.rows or 0))
        yield Columns(parts)


def _kind_of(kind: pa.DataType) -> str:
    """The type of a column, as far as a difference matters: the width of its numbers does not."""
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind):
        return "a number"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return "text"
    return "a time" if pa.types.is_temporal(kind) else str(kind)


def _as_parquet(path: Path, to: Path) -> Path:
    with pyarrow.csv.open_csv(path) as batches, pq.ParquetWriter(to, batches.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return to
