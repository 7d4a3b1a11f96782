"""The rules of the reader, each with what it reads and what it refuses; docs/your-data.md has them as a table."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import re
import tempfile
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import segue
from segue.data.config import config_with_data
from segue.data.frames import facts_of, read_frame
from segue.data.tables import csv_cells
from segue.data.tables.column_types import layout_of
from segue.errors import DataContentError, DataUnreadableError
from segue.spec import DataSpec, Reading, RunSpec
from tests.data.dialects import plain

CP1252, GERMAN = Reading(encoding="cp1252"), Reading(decimal=",", thousands=".")


def deliver(folder, *contents):
    """Files of text, bytes or tables, in the format of each."""
    paths = []
    for number, content in enumerate(contents):
        if isinstance(content, pa.Table):
            paths.append(folder / f"{number}.parquet")
            pq.write_table(content, paths[-1])
        else:
            data = content.encode() if isinstance(content, str) else content
            suffix = {b"\x1f\x8b": ".gz", b"\x28\xb5": ".zst"}.get(data[:2], "")
            paths.append(folder / f"{number}.csv{suffix}")
            paths[-1].write_bytes(data)
    return paths


def layout(paths, reading=Reading()):  # noqa: B008 - it is frozen
    return layout_of([(path.name, facts_of(path, name=path.name, reading=reading)) for path in paths], reading)


def rows_of(paths, reading=Reading()):  # noqa: B008
    frame = read_frame(paths, reading=reading)
    return {name: [plain(value) for value in frame[name]] for name in frame.columns}


def zstd(text: str) -> bytes:
    return pa.compress(text.encode(), codec="zstd", asbytes=True)


ALIKE = {
    "an empty cell of text": (["a,b\nJFK,1\n,2\n"], {"a": ["JFK", None], "b": [1, 2]}),
    "an empty cell in quotes": (['a,b\n"x","1"\n"",""\n'], {"a": ["x", None], "b": [1, None]}),
    "NA is a country": (["c\nNA\nZA\n"], {"c": ["NA", "ZA"]}),
    "NA is a country, alone in a file": (["c\nNA\n", "c\nZA\n"], {"c": ["NA", "ZA"]}),
    "NA is no number": (["n\nNA\n1\nnull\n2.5\n"], {"n": [None, 1, None, 2.5]}),
    "a number is NA in all of one file": (["n\nNA\n", "n\n3\n"], {"n": [None, 3]}),
    "words for no value among times": (["t\nNULL\n2026-01-02\n"], {"t": [None, datetime(2026, 1, 2)]}),  # noqa: DTZ001
    "whole numbers and fractions": (["n\n1\n", "n\n2.5\n"], {"n": [1, 2.5]}),
    "spaces around numbers": (["a,b\n 1 , x\n2, y\n"], {"a": [1, 2], "b": [" x", " y"]}),
    "line breaks, quotes and delimiters in cells": (
        ['a,b\n"x\r\ny","a ""b"", c"\n'],
        {"a": ["x\r\ny"], "b": ['a "b", c']},
    ),
    "semicolons": (["a;b\nx, y;1\n"], {"a": ["x, y"], "b": [1]}),
    "tabs": (["a\tb\nx|y\t1\n"], {"a": ["x|y"], "b": [1]}),
    "old line ends": (["a,b\r1,x\r2,y\r"], {"a": [1, 2], "b": ["x", "y"]}),
    "a byte order mark": (["\ufeffa,b\n1,x\n"], {"a": [1], "b": ["x"]}),
    "UTF-16 with its mark": (["a,b\n1,ü\n".encode("utf-16")], {"a": [1], "b": ["ü"]}),
    "gzip": ([gzip.compress(b"a\n1\n")], {"a": [1]}),
    "zstd": ([zstd("a\n1\n")], {"a": [1]}),
    "a header and no rows": (["a,b\n", "a,b\n1,x\n", "a,b"], {"a": [1], "b": ["x"]}),
    "a header of spaces": ([" \n7\n"], {" ": [7]}),
    "blank lines": (["\n\na,b\n1,x\n\n2,y\n\n"], {"a": [1, 2], "b": ["x", "y"]}),
    "an index without a name, of pandas": ([",a\n0,x\n"], {"Unnamed: 0": [0], "a": ["x"]}),
    "an index without a name, in Parquet": ([pa.table({"a": [1], "__index_level_0__": [7]})], {"a": [1]}),
    "truth": (["b\ntrue\nFALSE\n", "b\n \nTrue\n"], {"b": [True, False, None, True]}),
    "hashes in hexadecimal": (["h\n0x1f\n0xAB\n"], {"h": ["0x1f", "0xAB"]}),
    "ids above 2^63": (["i\n9223372036854775809\n1\n"], {"i": [9223372036854775809, 1]}),
    "ids above 2^63 in one file": (["i\n9223372036854775809\n", "i\n1\n"], {"i": [9223372036854775809, 1]}),
    "large ids with missing ones": (["i,b\n9007199254740993,1\n,2\n"], {"i": [9007199254740993, None], "b": [1, 2]}),
    "times with a zone": (["t\n2026-01-01T02:00:00+02:00\n"], {"t": [datetime(2026, 1, 1, tzinfo=UTC)]}),
    "a column without values, then text": (["n,v\n,1\n", "n,v\nx,2\n"], {"n": [None, "x"], "v": [1, 2]}),
    "a column without values in Parquet, of any type": (
        [pa.table({"n": pa.array([None], kind)}) for kind in (pa.null(), pa.float64(), pa.int32(), pa.bool_())]
        + [pa.table({"n": ["x"]})],
        {"n": [None, None, None, None, "x"]},
    ),
    "a column without values in Parquet, then times": (
        [pa.table({"n": pa.array([None], pa.bool_())}), pa.table({"n": [datetime(2026, 1, 2)]})],  # noqa: DTZ001
        {"n": [None, datetime(2026, 1, 2)]},  # noqa: DTZ001
    ),
    "categories of two files": (
        [pa.table({"c": pa.array([each]).dictionary_encode()}) for each in ("x", "y")],
        {"c": ["x", "y"]},
    ),
    "decimals": (
        [pa.table({"d": [Decimal("1.25")], "i": pa.array([7], pa.decimal128(38, 0))})],
        {"d": [1.25], "i": [7]},
    ),
    "dates": ([pa.table({"d": [date(2026, 1, 2)]}), "d\n2026-01-03\n"], {"d": [datetime(2026, 1, n) for n in (2, 3)]}),  # noqa: DTZ001
    "units of time": (
        [pa.table({"t": pa.array([n], pa.timestamp(unit, "UTC"))}) for n, unit in ((1, "s"), (0, "ns"))],
        {"t": [datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)]},
    ),
    "time of day": ([pa.table({"t": [time(1, 2)]})], {"t": [time(1, 2)]}),
    "columns in another order": (["a,b\n1,x\n", "b,a\ny,2\n"], {"a": [1, 2], "b": ["x", "y"]}),
    "a column whose name begins with that of a list": ([pa.table({"l.x": [1], "l": ["a"]})], {"l.x": [1], "l": ["a"]}),
    "names that are hostile": (['"a\nb",<img>,"=1+1"\n1,2,3\n'], {"a\nb": [1], "<img>": [2], "=1+1": [3]}),
}


@pytest.mark.parametrize(("contents", "expected"), ALIKE.values(), ids=ALIKE)
def test_it_is_read_as_people_mean_it(tmp_path, contents, expected):
    paths = deliver(tmp_path, *contents)
    assert layout(paths).unlike == ()
    assert rows_of(paths) == expected
    for name in expected:  # A column alone, and a file alone in the types of all, are no other than together.
        assert read_frame(paths, columns=[name])[name].equals(read_frame(paths)[name])
    types = layout(paths).columns
    alone = [read_frame([path], types=types) for path in paths]
    assert {str(frame.dtypes.to_dict()) for frame in alone} == {str(read_frame(paths).dtypes.to_dict())}


DECLARED = {
    "cp1252": ("city\nMünchen\n".encode("cp1252"), CP1252, {"city": ["München"]}),
    "UTF-16": ("a,b\n1,ü\n".encode("utf-16-le"), Reading(encoding="utf-16-le"), {"a": [1], "b": ["ü"]}),
    "a decimal comma": ("a;b\n1.234,5;-2\n2;3\n", GERMAN, {"a": [1234.5, 2], "b": [-2, 3]}),
    "groups of digits": ('a,b\n"1,234",x\n5,y\n', Reading(thousands=","), {"a": [1234, 5], "b": ["x", "y"]}),
    "a delimiter": ("a,b|c\n1,2\n", Reading(delimiter=","), {"a": [1], "b|c": [2]}),
    "another quote": ("a,b\n'x, y',1\n", Reading(quote="'"), {"a": ["x, y"], "b": [1]}),
    "an escape": ('a,b\nx\\, "y",1\n', Reading(escape="\\"), {"a": ['x, "y"'], "b": [1]}),
    "words for no value": ("a,b\n-,x\n1,-\n", Reading(nulls=("-",)), {"a": [None, 1], "b": ["x", None]}),
    "codes": ("zip,n\n01234,1\n", Reading(types={"zip": "text"}), {"zip": ["01234"], "n": [1]}),
    "numbers of any size": ("i\n99999999999999999999\n", Reading(types={"i": "number"}), {"i": [1e20]}),
    "mixed cells": ("a\n1\n2\nx\n", Reading(types={"a": "text"}), {"a": ["1", "2", "x"]}),
}


@pytest.mark.parametrize(("content", "reading", "expected"), DECLARED.values(), ids=DECLARED)
def test_what_is_declared_is_read_so(tmp_path, content, reading, expected):
    paths = deliver(tmp_path, content)
    assert layout(paths, reading).unlike == ()
    assert rows_of(paths, reading) == expected


REFUSED = {
    "another encoding": (
        "city\nA\nMünchen\n".encode("cp1252"),
        "column city, row 1: .*not text in UTF-8.* Fix: .*'München'",
    ),
    "another encoding in the header": ("stadt,größe\n".encode("cp1252"), "the header is not text in utf-8"),
    "UTF-16 without its mark": ("a,b\n1,x\n".encode("utf-16-le"), "NUL characters.*encoding = 'utf-16-le'"),
    "an empty file": ("", "it is empty"),
    "a file of line breaks": ("\n\r\n \n", "it is empty"),
    "two columns of one name": ("a,b,a\n1,2,3\n", "column a: columns 1 and 3 have the same name"),
    "two columns of one name in Parquet": (pa.table([[1], [2]], names=["a", "a"]), "columns 1 and 2 have the same"),
    "no name in Parquet": (pa.table([[1]], names=[""]), "column 1 has no name"),
    "a name with a line break": ('"a\nb"\nA\nM\xfc\n'.encode("cp1252"), r"column 'a\\nb', row 1: "),
    "a row with too many cells": ("a,b\n1,2\n1,2,3\n", "row 1: it has 3 cells, and the header .* has 2"),
    "a row with too few": ("a,b\n1,2\n1\n", "row 1: it has 1 cells"),
    "a quote that is never closed": ('a,b\n1,"x\n2,y\n3,z\n', "column b: the quote before .* is never closed"),
    "a row of more than a block": ("a,b\n1," + "x" * 2**21 + "\n", "a row is longer than 1 MiB"),
    "two delimiters": ("a;b,c\n1;2,3\n", "the header has ',' and ';'"),
    "text that is not UTF-8 in Parquet": (
        pa.table({"s": pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())}),
        "column s, row 0: the text is not UTF-8",
    ),
    "a decimal of more than 64 bits": (
        pa.table({"i": pa.array([1, 10**30], pa.decimal128(38, 0))}),
        r"column i, row 1: Decimal\('10+'\) is not of the type int64",
    ),
}


@pytest.mark.parametrize(("content", "why"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused_by_file_column_row_and_rule(tmp_path, content, why):
    paths = deliver(tmp_path, content)
    with pytest.raises(DataContentError, match=rf"{paths[0].name} could not be read: .*{why}"):
        read_frame(paths)


UNLIKE = {
    "numbers and words": (["a\n1\n2\nunknown\n"], "column a in 0.csv: 2 of 3 cells are numbers, .* 'unknown' in row 2"),
    "times and words": (["t\n2026-01-01\n2026-01-02\nsoon\n"], "2 of 3 cells are times, .*'soon' in row 2"),
    "a decimal comma": (["a;b\n1,5;1\n2,5;2\n"], "2 of 2 cells are numbers with a decimal comma"),
    "groups of digits": (['a,b\n"1,234.5",1\n'], "numbers with a decimal comma or groups of digits"),
    "digits that no number holds": (["i\n99999999999999999999\n"], "no type of numbers can hold all their digits"),
    "digits that a fraction loses": (["i\n9007199254740993\n1.5\n"], "no type of numbers can hold all their digits"),
    "digits that the other file loses": (["i\n9007199254740993\n", "i\n1.5\n"], "whole numbers above 2.53 in 0.csv"),
    "text and a number": (["a\nx\n", "a\n1\n"], "column a is a number in 1.csv and text in 0.csv"),
    "a zone and none": (["t\n2026-01-01\n", "t\n2026-01-01T00:00:00Z\n"], "a time with a zone in 1.csv and a time in"),
    "a list and text": ([pa.table({"l": [[1]]}), pa.table({"l": ["x"]})], "column l is text in 1.parquet and list<"),
    "a name with a line break": (['"a\nb"\nx\n', '"a\nb"\n1\n'], r"column 'a\\nb' is a number in 1.csv"),
    "a column that one lacks": (["a,b\n1,2\n", "a\n1\n"], "1.csv has no column b"),
}


@pytest.mark.parametrize(("contents", "why"), UNLIKE.values(), ids=UNLIKE)
def test_files_that_do_not_fit_together_are_said(tmp_path, contents, why):
    sentences = layout(deliver(tmp_path, *contents)).unlike
    assert any(re.search(why, each) for each in sentences), sentences


LATE = {
    "text": (["", "", "weather"], "string", [None, None, "weather"]),
    "fractions": (["1", "2", "2.5"], "double", [1, 2, 2.5]),
    "words, then numbers": (["NA", "NA", "3"], "double", [None, None, 3]),
    "words, then text": (["NA", "NA", "x"], "string", ["NA", "NA", "x"]),
    "above 2^63": (["1", "2", "9223372036854775809"], "uint64", [1, 2, 9223372036854775809]),
    "digits that a fraction loses": (["9007199254740993", "1", "1.5"], "string", ["9007199254740993", "1", "1.5"]),
    "negative, then above 2^63": (["-1", "1", "9223372036854775809"], "string", ["-1", "1", "9223372036854775809"]),
    "numbers, then truth": (["1", "0", "true"], "string", ["1", "0", "true"]),
    "line breaks": (["", "a\nb", "c\n\nd"], "string", [None, "a\nb", "c\n\nd"]),
}


NATIVE = [
    pytest.param("x.csv", bytes, None, id="plain"),
    pytest.param("x.csv.gz", gzip.compress, None, id="compressed"),
    pytest.param("x.csv", bytes, "cp1252", id="encoded"),
    pytest.param("x.csv.gz", gzip.compress, "utf-16", id="both"),
]


@pytest.mark.parametrize(("cells", "kind", "expected"), LATE.values(), ids=LATE)
def test_a_type_is_that_of_the_whole_column_however_late_it_shows(tmp_path, monkeypatch, cells, kind, expected):
    """Files are read in blocks of some megabytes, and no block decides for the others."""
    monkeypatch.setattr(csv_cells, "_BLOCK_BYTES", 256)
    rows = [(cell, f"row {number}, of the part {part}") for part, cell in enumerate(cells) for number in range(50)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("a", "b"), *rows])
    paths = deliver(tmp_path, text.getvalue())
    assert layout(paths).columns["a"] == kind
    assert rows_of(paths) == {"a": [each for each in expected for _ in range(50)], "b": [row for _, row in rows]}


def test_the_row_at_fault_is_counted_over_all_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_cells, "_BLOCK_BYTES", 256)
    good = "".join(f'{number},"x\ny"\n' for number in range(200))
    for last, why in ((b"1,M\xfc\n", "column b, row 200: the bytes 4d fc"), (b"1,2,3\n", "row 200: it has 3 cells")):
        with pytest.raises(DataContentError, match=why):
            read_frame(deliver(tmp_path, f"a,b\n{good}".encode() + last))
    paths = deliver(tmp_path, f"a,b\n{good}soon,x\n")
    assert "others are text, e.g. 'soon' in row 200" in layout(paths).unlike[0]
    with pytest.raises(DataContentError, match="column a, row 200: 'soon' is not of the type int64"):
        read_frame(paths, types={"a": "int64", "b": "string"})


@pytest.mark.parametrize(("name", "write", "encoding"), NATIVE)
def test_arrow_reads_ahead_without_python_which_a_process_that_ends_would_not_survive(
    tmp_path, monkeypatch, name, write, encoding
):
    given, open_csv = [], csv_cells.pa.csv.open_csv

    def opened(source, **options):
        given.append(source)
        return open_csv(source, **options)

    monkeypatch.setattr(csv_cells.pa.csv, "open_csv", opened)
    path = tmp_path / name
    reading = Reading(encoding=encoding)
    path.write_bytes(write("a,b\n1,x\n2,y\n".encode(encoding or "utf-8")))
    assert list(read_frame([path], reading=reading)["a"]) == [1, 2]
    path.write_bytes(write("a,b\n1,x\n2,y,z\n".encode(encoding or "utf-8")))
    with pytest.raises(DataContentError, match="row 1: it has 3 cells"):
        read_frame([path], reading=reading)
    assert len(given) >= 4
    assert all(isinstance(source, (str, pa.NativeFile)) for source in given)


def test_a_temporary_folder_without_room_is_said_to_be_full(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_bytes("a,b\n1,\xe9\n".encode("cp1252"))
    full = tempfile.NamedTemporaryFile
    # Writes to this device fail as on a disk without room.
    without_room = Path("/dev/full").open("wb")  # noqa: SIM115 - closed by the reader
    monkeypatch.setattr(csv_cells.tempfile, "NamedTemporaryFile", lambda **_: without_room)
    with pytest.raises(DataUnreadableError, match="No space left on device") as refused:
        read_frame([path], reading=Reading(encoding="cp1252"))
    assert "set TMPDIR to a folder with room" in str(refused.value)
    monkeypatch.setattr(csv_cells.tempfile, "NamedTemporaryFile", full)
    assert list(read_frame([path], reading=Reading(encoding="cp1252"))["b"]) == ["\xe9"]


@pytest.mark.parametrize("share", [0.2, 0.9, 0.999])
@pytest.mark.parametrize("make", ["parquet", "csv.gz", "csv.zst"])
def test_a_truncated_file_is_refused(tmp_path, make, share):
    frame = pd.DataFrame({"a": range(5000), "b": [f"text {n * 7919 % 5000}" for n in range(5000)]})
    path = tmp_path / f"x.{make}"
    frame.to_parquet(path)
    text = frame.to_csv(index=False)
    whole = {"parquet": path.read_bytes(), "csv.gz": gzip.compress(text.encode()), "csv.zst": zstd(text)}
    data = whole[make]
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DataUnreadableError, match=str(path)):
        read_frame([path])


def test_a_recipe_reads_in_the_types_of_the_window(tmp_path):
    (path,) = deliver(tmp_path, "a;zip;n\n1,5;01;7\n")
    reading = Reading(decimal=",", types={"zip": "text"})
    file = {"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "size_bytes": 1}
    columns = {"a": "double", "zip": "string", "n": "double"}  # The other files of the window have fractions.
    data = DataSpec.model_validate({"files": [file], "reading": reading, "columns": columns})
    spec = RunSpec(run_id="r", recipe="train:build", steps=1, data=data)
    frame = segue.data_frame(config_with_data(spec))
    assert frame.to_dict("list") == {"a": [1.5], "zip": ["01"], "n": [7.0]}
    assert str(frame["n"].dtype) == "float64"
    assert segue.data_frame({"data": [str(path)]}).to_dict("list") == {"a": ["1,5"], "zip": [1], "n": [7]}
