"""Reads the files of a window as one table, with only the requested columns in memory."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from segue.data.frames import column_names, is_parquet, place_of, read_frame, tables_of
from segue.retraining.spec import WindowFile
from segue.spec import Reading

if TYPE_CHECKING:
    import pandas as pd

_USUAL = Reading()


class Part(NamedTuple):
    """One file of a table."""

    source: str
    """Path or URL of the file."""
    path: Path
    """Path of the Parquet file with the content of this file."""
    names: tuple[str, ...]
    """Names of the columns of this file."""
    rows: int


class Columns:
    """The rows of several files, in order, with only the requested columns in memory."""

    def __init__(self, parts: Sequence[Part], types: Mapping[str, str]) -> None:
        self.parts = tuple(parts)
        self._types = types

    def only(self, sources: Collection[str]) -> Columns:
        """Return a table with only these files."""
        return Columns([part for part in self.parts if part.source in sources], self._types)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(part.rows for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The columns that every file has, in the order of the first file."""
        first, *others = self.parts
        return tuple(name for name in first.names if all(name in part.names for part in others))

    def read(self, names: Sequence[str]) -> pd.DataFrame:
        """Return these columns, with an index that begins at 0.

        Raises:
            DataUnreadableError: a file is damaged, or a value does not have the type of its column.
        """
        if not names:
            return self.count()
        sources = {part.path: part.source for part in self.parts}
        return read_frame([part.path for part in self.parts], columns=names, types=self._types, names=sources)

    def outline(self) -> pd.DataFrame:
        """Return all columns of the first file, without rows."""
        return read_frame([], types={name: self._types[name] for name in self.parts[0].names})

    def count(self) -> pd.DataFrame:
        """Return a frame with all rows and no columns."""
        import pandas as pd

        return pd.DataFrame(index=pd.RangeIndex(self.rows))

    def place_of(self, row: int) -> str:
        """Return the file of a row, and the number of the row in this file, counted from 0."""
        return place_of([(part.source, part.rows) for part in self.parts], row)


@contextmanager
def columns_of(
    files: Sequence[WindowFile], local: Mapping[str, Path], types: Mapping[str, str], reading: Reading = _USUAL
) -> Iterator[Columns]:
    """Yield one table with the rows of these files. `types` gives the types of its columns. `local` gives the local
    path of each file.

    CSV files are converted to Parquet files, so that single columns can be read. The Parquet files exist until the
    block ends.

    Raises:
        DataUnreadableError: a file is damaged, or a value does not have the type of its column.
    """
    with tempfile.TemporaryDirectory(prefix="segue-data-") as folder:
        parts = []
        for number, file in enumerate(files):
            path = local[file.path]
            names = column_names(path, name=file.path, reading=reading)
            if not is_parquet(path, name=file.path):
                held = {name: types[name] for name in names}
                path = _as_parquet(path, Path(folder, f"{number}.parquet"), file.path, held, reading)
            parts.append(Part(file.path, path, names, file.rows or 0))
        yield Columns(parts, types)


def _as_parquet(path: Path, to: Path, name: str, types: Mapping[str, str], reading: Reading) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from segue.data.tables.column_types import arrow_type

    schema = pa.schema([(column, arrow_type(kind) or pa.null()) for column, kind in types.items()])
    with pq.ParquetWriter(to, schema) as writer:
        for table in tables_of(path, name=name, types=types, reading=reading):
            writer.write_table(table)
    return to
