"""Reads CSV files as cells of text: first the encoding, the delimiter and the header, then batches of rows."""

from __future__ import annotations

import codecs
import itertools
import re
import tempfile
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.csv

from segue.data.tables.cells import first_refused
from segue.data.tables.content_limits import refuse_more, refuse_names
from segue.errors import DataContentError, DataUnreadableError
from segue.spec import Reading

_BLOCK_BYTES = 2**20
"""Size of a block in bytes.

A row must fit into one block. Reader threads would need much more memory for larger blocks.
"""
_HEAD_BYTES = 2**20
"""The header of the file must end within this number of bytes."""
_CHUNK_BYTES = 2**20
_TAIL_BYTES = 16
_DELIMITERS = (",", ";", "\t", "|")
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_UNEVEN = re.compile(r"Row #(\d+): Expected (\d+) columns, got (\d+)")
"""This pattern matches pyarrow's message about an invalid row.

segue parses the message because pyarrow's handler of invalid rows fails for some encodings.
"""


class _Dialect(NamedTuple):
    encoding: str
    delimiter: str
    names: tuple[str, ...]
    given: tuple[str, ...]
    """The names of the columns in the file. A column without a name has an empty name."""
    has_rows: bool


def read_cells(
    path: Path, *, name: str, reading: Reading
) -> tuple[tuple[str, ...], Generator[pa.RecordBatch, None, None]]:
    """Return the names of the columns, and the rows in batches of text.

    An empty cell is null, and so is a cell with a text in `reading.nulls`.

    Raises:
        DataContentError: the file is empty, its header has no names, or a row breaks a rule.
        DataUnreadableError: the file could not be read.
    """
    dialect = _dialect_of(path, name=name, reading=reading)
    return dialect.names, _batches(path, dialect, name=name, reading=reading)


def _batches(path: Path, dialect: _Dialect, *, name: str, reading: Reading) -> Generator[pa.RecordBatch, None, None]:
    if not dialect.has_rows:
        return
    last: pa.RecordBatch | None = None
    try:
        with _native(path, dialect.encoding, name=name) as native:
            for batch in _opened(native.stream, dialect, reading, pa.string()):
                if batch.num_rows:
                    last = batch.rename_columns(list(dialect.names))
                    yield last
    except UnicodeDecodeError as error:
        raise _not_decoded(name, error, dialect.encoding) from None
    except pa.ArrowInvalid as error:
        raise _explained(error, path, dialect, name=name, reading=reading) from None
    _refuse_open_quote(last, native.tail, dialect, name=name, reading=reading)


def _opened(stream: Any, dialect: _Dialect, reading: Reading, kind: pa.DataType) -> Iterator[pa.RecordBatch]:
    options = {
        # pyarrow gives the row number in an error only if it uses no threads.
        "read_options": pa.csv.ReadOptions(block_size=_BLOCK_BYTES, use_threads=False),
        "parse_options": _parse_options(dialect.delimiter, reading),
        "convert_options": pa.csv.ConvertOptions(
            column_types=dict.fromkeys(dialect.given, kind),
            null_values=[""] if reading.nulls is None else list(reading.nulls),
            strings_can_be_null=True,
        ),
    }
    with pa.csv.open_csv(stream, **options) as batches:
        yield from batches


def _parse_options(delimiter: str, reading: Reading, refuse: Any = None) -> pyarrow.csv.ParseOptions:
    return pa.csv.ParseOptions(
        delimiter=delimiter,
        quote_char=reading.quote,
        escape_char=reading.escape or False,
        newlines_in_values=True,
        invalid_row_handler=refuse,
    )


def _dialect_of(path: Path, *, name: str, reading: Reading) -> _Dialect:
    head = _head(path, name=name)
    mark = next((encoding for mark, encoding in _MARKS if head.startswith(mark)), None)
    encoding = mark or reading.encoding or "utf-8"
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head).removeprefix("\ufeff")
    if not text.strip():
        rule = "it is empty, and a CSV file begins with the names of its columns"
        raise DataContentError(path=name, rule=rule, fix="deliver it again, or remove it.")
    if "\0" in text:
        fix = "if it is UTF-16, set data.reading.encoding = 'utf-16-le'; otherwise write it again."
        raise DataContentError(path=name, rule=f"it holds NUL characters, so it is not text in {encoding}", fix=fix)
    delimiter = reading.delimiter or _delimiter_of(text, name=name, quote=reading.quote)
    given = _header_of(text, delimiter, name=name, reading=reading)
    if any("\ufffd" in each for each in given):
        raise DataContentError(path=name, rule=f"the header is not text in {encoding}", fix=_encoding_fix(head[:200]))
    names = tuple(each or f"Unnamed: {number}" for number, each in enumerate(given))
    refuse_names(names, name=name)
    # pyarrow refuses a header without a line break at its end.
    has_rows = len(head) == _HEAD_BYTES or re.search(r"[\r\n]", text.strip("\r\n")) is not None
    return _Dialect(encoding, delimiter, names, given, has_rows)


def _head(path: Path, *, name: str) -> bytes:
    head = b""
    with closing(_chunks(path, name=name)) as chunks:
        while len(head) < _HEAD_BYTES and (data := next(chunks, b"")):
            head += data
    return head[:_HEAD_BYTES]


def _header_of(text: str, delimiter: str, *, name: str, reading: Reading) -> tuple[str, ...]:
    options = {
        "read_options": pa.csv.ReadOptions(block_size=4 * _HEAD_BYTES),
        "parse_options": _parse_options(delimiter, reading, lambda _: "skip"),
    }
    try:
        with pa.csv.open_csv(pa.BufferReader(f"{text}\n".encode()), **options) as batches:
            return tuple(batches.schema.names)
    except pa.ArrowInvalid as error:
        raise _no_csv(error, delimiter, name=name, reading=reading) from None


def _no_csv(error: pa.ArrowInvalid, delimiter: str, *, name: str, reading: Reading) -> DataContentError:
    rule = f"it is not CSV with the delimiter {delimiter!r} and the quote {reading.quote!r}: {error}"
    return DataContentError(path=name, rule=rule, fix="correct the file, or set delimiter and quote in data.reading.")


def _delimiter_of(text: str, *, name: str, quote: str) -> str:
    """Return the delimiter of the header.

    Outside of quotes, the header must contain only one of the usual delimiters.
    """
    q = re.escape(quote)
    plain = re.sub(rf"{q}(?:[^{q}]|{q}{q})*{q}", "x", text.lstrip("\r\n"))
    header = re.split(r"[\r\n]", plain, maxsplit=1)[0]
    found = [each for each in _DELIMITERS if each in header]
    if len(found) > 1:
        shown = " and ".join("tab" if each == "\t" else f"'{each}'" for each in found)
        fix = "set data.reading.delimiter in retrain.toml, e.g. delimiter = ';'."
        raise DataContentError(path=name, rule=f"the header has {shown}, so its delimiter is not certain", fix=fix)
    return found[0] if found else ","


def _explained(
    error: pa.ArrowInvalid, path: Path, dialect: _Dialect, *, name: str, reading: Reading
) -> DataContentError:
    """Return an error that names the cause: the wrong row and column, if they are known."""
    uneven = _UNEVEN.search(str(error))
    if uneven:
        rule = f"it has {uneven[3]} cells, and the header of this CSV file has {uneven[2]}"
        fix = "quote cells that hold the delimiter, and give every row all cells."
        # The header has the number 1.
        return DataContentError(path=name, row=int(uneven[1]) - 2, rule=rule, fix=fix)
    if "straddling" in str(error):
        rule = f"a row is longer than {_BLOCK_BYTES / 2**20:.0f} MiB, or a quote is never closed"
        return DataContentError(path=name, rule=rule, fix="close the quote, or write the column as Parquet.")
    begin = 0
    with suppress(pa.ArrowInvalid), _native(path, dialect.encoding, name=name) as native:
        for batch in _opened(native.stream, dialect, reading, pa.binary()):
            for column, cells in zip(dialect.names, batch.columns, strict=True):
                try:
                    cells.cast(pa.string())
                except pa.ArrowInvalid:
                    return _not_text(name, column, cells, begin, dialect.encoding)
            begin += batch.num_rows
    return _no_csv(error, dialect.delimiter, name=name, reading=reading)


def _not_text(name: str, column: str, cells: pa.Array, begin: int, encoding: str) -> DataContentError:
    row = first_refused(cells, lambda some: some.cast(pa.string()))
    cell = cells[row].as_py()
    rule = f"the bytes {cell[:20].hex(' ')} are not text in {encoding.upper()}"
    return DataContentError(path=name, column=column, row=begin + row, rule=rule, fix=_encoding_fix(cell))


def _not_decoded(name: str, error: UnicodeDecodeError, encoding: str) -> DataContentError:
    some = error.object[max(error.start - 10, 0) : error.start + 10]
    rule = f"the bytes {some.hex(' ')} are not text in {encoding}"
    return DataContentError(path=name, rule=rule, fix=_encoding_fix(some))


def _encoding_fix(some: bytes) -> str:
    guess = f"cp1252 would read {some.decode('cp1252', 'replace')[:20]!r}"
    return f"write the file as UTF-8, or set data.reading.encoding in retrain.toml ({guess})."


def _refuse_open_quote(
    last: pa.RecordBatch | None, tail: bytes, dialect: _Dialect, *, name: str, reading: Reading
) -> None:
    """Refuse a quote that is never closed, because pyarrow would read the rest of the file as one cell."""
    cell = last.column(last.num_columns - 1)[-1].as_py() if last is not None else None
    if cell is None or not re.search(r"[\r\n]", cell):
        return
    if not tail.replace(b"\0", b"").rstrip(b"\r\n \t").endswith(reading.quote.encode()):
        begins = cell[:20]
        rule = f"the quote before {begins!r} is never closed, so the rows after it are part of a cell"
        raise DataContentError(path=name, column=dialect.names[-1], rule=rule, fix="close the quote.")


class _Native(NamedTuple):
    """The text of a file in a form that Arrow reads without calls to Python."""

    stream: Any
    """The path of a file, or a stream of Arrow's own type."""
    tail: bytes
    """The last bytes of the file's text."""


@contextmanager
def _native(path: Path, encoding: str, *, name: str) -> Iterator[_Native]:
    """Provide the text of a file in UTF-8, decompressed if needed, so that Arrow's threads do not call Python.

    Arrow's own threads read ahead, even after an error. If the process ends while a thread of Arrow calls Python, the
    process aborts or hangs. Therefore the caller's thread counts the bytes and decodes the text before Arrow reads it.

    Raises:
        DataUnreadableError: the file contains far more data than its size permits, or its text does not fit into the
            temporary folder.
        UnicodeDecodeError: the file is not text in this encoding.
    """
    if encoding != "utf-8":
        with tempfile.NamedTemporaryFile(prefix="segue-", suffix=".csv") as file:
            tail = _decoded(path, encoding, file, name=name)
            yield _Native(file.name, tail)
    elif _compression(path) is None:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - _TAIL_BYTES, 0))
            tail = file.read()
        yield _Native(str(path), tail)
    else:
        tail = b""
        for data in _chunks(path, name=name):
            tail = (tail + data[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        with pa.input_stream(str(path), compression=_compression(path)) as stream:
            yield _Native(stream, tail)


def _decoded(path: Path, encoding: str, file: Any, *, name: str) -> bytes:
    """Write the text of a file to another file, in UTF-8. Return the last bytes of the text."""
    decoder, tail = codecs.getincrementaldecoder(encoding)(), b""
    for data in itertools.chain(_chunks(path, name=name), (None,)):
        text = decoder.decode(b"", final=True) if data is None else decoder.decode(data)
        written = text.encode()
        try:
            file.write(written)
            file.flush()
        except OSError as error:
            with suppress(OSError):  # Closing the file would try to write the rest again.
                file.close()
            why = f"its text could not be written in UTF-8 to {tempfile.gettempdir()} ({error.strerror})"
            fix = "make room there, set TMPDIR to a folder with room for the file's text, or write the file as UTF-8."
            raise DataUnreadableError(path=name, why=why, fix=fix) from error
        tail = (tail + written[-_TAIL_BYTES:])[-_TAIL_BYTES:]
    return tail


def _chunks(path: Path, *, name: str) -> Generator[bytes, None, None]:
    """Yield the decompressed bytes of a file, up to a limit for compressed files."""
    compression, count = _compression(path), 0
    with pa.input_stream(str(path), compression=compression) as stream:
        while data := stream.read(_CHUNK_BYTES):
            count += len(data)
            if compression is not None:
                refuse_more(count, path=path, name=name)
            yield data


def _compression(path: Path) -> str | None:
    return {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}.get(path.suffix)
