"""Files from outside: read as data, or refused by name; nothing in them is run, and none takes the machine down."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import random
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segue.checkpoints.saving.written import PreparedCommit
from segue.curves.frame import curve
from segue.data.files import fetch, find
from segue.data.frames import facts_of, read_frame
from segue.data.tables import content_limits
from segue.errors import DataUnreadableError
from segue.runlog import keys


class Payload:
    """Runs a command where it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self):
        return os.system, (f"touch {self.proof}",)


@pytest.fixture
def proof(tmp_path):
    """A file that exists if something was run."""
    path = tmp_path / "was-run"
    yield path
    assert not path.exists()


@pytest.fixture
def payload(proof):
    return pickle.dumps(Payload(proof))


def written(folder, table, name="data.parquet"):
    path = folder / name
    pq.write_table(table, path)
    return path


def extension(name, payload):
    facts = {b"ARROW:extension:name": name, b"ARROW:extension:metadata": payload}
    return pa.table([pa.array([payload])], schema=pa.schema([pa.field("x", pa.binary(), metadata=facts)]))


@pytest.mark.parametrize("name", [b"arrow.py_extension_type", b"pandas.period", b"some.other"])
def test_a_pickle_in_an_extension_type_is_bytes(tmp_path, payload, proof, name):
    path = written(tmp_path, extension(name, payload))
    try:
        assert read_frame([path])["x"].tolist() == [payload]
        assert facts_of(path, name="it").rows == 1
    except DataUnreadableError:
        assert name == b"pandas.period", "pandas' own types hold JSON"


def test_a_pickle_in_a_column_is_bytes(tmp_path, payload, proof):
    assert read_frame([written(tmp_path, pa.table({"x": [payload]}))])["x"].tolist() == [payload]


@pytest.mark.parametrize("suffix", ["parquet", "csv", "csv.gz", "csv.zst"])
def test_a_pickle_in_place_of_a_file_is_refused(tmp_path, payload, proof, suffix):
    path = tmp_path / f"data.{suffix}"
    path.write_bytes(payload)
    for read in (lambda: read_frame([path]), lambda: facts_of(path, name=str(path))):
        with pytest.raises(DataUnreadableError) as caught:
            read()
        assert caught.value.path == str(path)


def of_column(**facts):
    common = {"name": "x", "field_name": "x", "pandas_type": "object", "numpy_type": "object", "metadata": None}
    return {"index_columns": [], "columns": [common | facts], "column_indexes": []}


HOSTILE_METADATA = {
    "no JSON": b"\x80\x04.",
    "another type": b"[]",
    "no columns": json.dumps({"index_columns": 5}).encode(),
    "an index that is not there": json.dumps({"index_columns": ["y"], "columns": [], "column_indexes": []}).encode(),
    "an expression": json.dumps(of_column(numpy_type="__import__('os').system('true')")).encode(),
    "deep": b'{"columns":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a time zone with a path": json.dumps(
        of_column(pandas_type="datetimetz", metadata={"timezone": "../../etc/passwd"})
    ).encode(),
}


@pytest.mark.parametrize("metadata", HOSTILE_METADATA.values(), ids=HOSTILE_METADATA)
def test_pandas_metadata_that_lies_is_refused_or_ignored(tmp_path, metadata):
    path = written(tmp_path, pa.table({"x": [1, 2]}).replace_schema_metadata({b"pandas": metadata}))
    with suppress(DataUnreadableError):
        assert read_frame([path])["x"].tolist() == [1, 2]


def test_whatever_bytes_of_a_parquet_file_are_changed_it_is_read_or_refused(tmp_path):
    good = written(tmp_path, pa.table({"x": [1, 2], "y": ["a", "b"]})).read_bytes()
    path, rolls = tmp_path / "changed.parquet", random.Random(5)
    refused = 0
    for _ in range(400):
        changed = bytearray(good)
        for _ in range(rolls.randint(1, 6)):
            changed[rolls.randrange(len(changed))] = rolls.randrange(256)
        path.write_bytes(changed)
        try:
            read_frame([path])
        except DataUnreadableError:
            refused += 1
    assert refused > 200


def test_formulas_in_csv_stay_text(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text('a,b\n=cmd|\' /C calc\'!A0,"=HYPERLINK(""http://x"")"\n')
    assert read_frame([path]).iloc[0].tolist() == ["=cmd|' /C calc'!A0", '=HYPERLINK("http://x")']


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00a", b'a\n"' + b"x" * 100_000, b"a,b\n1,2\n1,2,3,4\n", b"a\n\x00\x00\n" * 3]
)
def test_damaged_csv_is_read_as_data_or_refused(tmp_path, content):
    path = tmp_path / "data.csv"
    path.write_bytes(content)
    for read in (lambda: read_frame([path]), lambda: facts_of(path, name=str(path))):
        with suppress(DataUnreadableError):
            read()


@pytest.mark.parametrize("suffix", ["gz", "zst", "bz2"])
def test_compressed_csv_is_read(tmp_path, suffix):
    path = tmp_path / f"data.csv.{suffix}"
    rows = "a,b\n" + "".join(f"{number},x\n" for number in range(5000))
    with pa.output_stream(str(path), compression="detect") as stream:
        stream.write(rows.encode())
    assert read_frame([path])["a"].tolist() == list(range(5000))
    assert list(read_frame([path], columns=["b"])) == ["b"]
    assert facts_of(path, name="it").rows == 5000


@pytest.mark.matrix
@pytest.mark.parametrize("suffix", ["gz", "zst"])
def test_a_file_that_decompresses_to_far_more_than_its_size_is_refused(tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(content_limits, "LEAST_LIMIT_BYTES", 2**20)
    path = tmp_path / f"bomb.csv.{suffix}"
    with pa.output_stream(str(path), compression="detect") as stream:
        stream.write(b"a,b,c,d\n")
        for _ in range(64):
            stream.write(b"0,0,0,0\n" * 2**17)
    assert path.stat().st_size < 2**20
    for read in (lambda: read_frame([path]), lambda: facts_of(path, name=str(path))):
        with pytest.raises(DataUnreadableError, match="it holds more than"):
            read()


@pytest.mark.matrix
def test_the_limit_of_a_bomb_keeps_memory_small(tmp_path):
    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as stream:
        for _ in range(300):
            stream.write(b"0" * (8 * 2**20))  # One field of 2.4 GB.
    code = f"""
import resource
resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30, 6 * 2**30))
from pathlib import Path
from segue.data.frames import facts_of
facts_of(Path({str(path)!r}), name="bomb")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert "DataUnreadableError: bomb could not be read: it holds more than 2.2 GB" in ended.stderr
    assert ended.returncode == 1


def test_a_parquet_file_of_equal_rows_is_refused_by_its_size_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(content_limits, "LEAST_LIMIT_BYTES", 2**20)
    path = written(tmp_path, pa.table({"x": pa.array([0] * 4_000_000, pa.int8())}))
    assert path.stat().st_size < 50_000
    for read in (lambda: read_frame([path]), lambda: facts_of(path, name=str(path))):
        with pytest.raises(DataUnreadableError, match="far more than a file of its size"):
            read()


def test_a_usual_compressed_file_is_far_from_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(content_limits, "LEAST_LIMIT_BYTES", 0)
    table = pd.DataFrame({"day": ["2026-01-01"] * 50_000, "delay": [number % 97 for number in range(50_000)]})
    table.to_csv(tmp_path / "data.csv.gz")
    table.to_parquet(tmp_path / "data.parquet")
    assert len(read_frame([tmp_path / "data.csv.gz", tmp_path / "data.parquet"])) == 100_000


@pytest.mark.matrix
@pytest.mark.parametrize("depth", [64, pytest.param(2000, marks=pytest.mark.matrix)])
def test_deeply_nested_types_do_not_crash_the_process(tmp_path, depth):
    code = f"""
import pyarrow as pa, pyarrow.parquet as pq
kind = pa.int8()
for _ in range({depth}): kind = pa.list_(kind)
pq.write_table(pa.table({{"x": pa.array([None], kind)}}), {str(tmp_path / "deep.parquet")!r})
"""
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False, timeout=120)
    if made.returncode:
        (tmp_path / "deep.parquet").unlink(missing_ok=True)
        return  # The library does not write one that deep either.
    path = str(tmp_path / "deep.parquet")
    read = f"from pathlib import Path; from segue.data.frames import read_frame; read_frame([Path({path!r})])"
    ended = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 0 or "DataUnreadableError" in ended.stderr


def test_names_of_files_are_names_only(tmp_path):
    lake = tmp_path / "lake"
    lake.mkdir()
    odd = ["-rf.csv", "a\nb.csv", "$(touch was-run).csv", "[x].csv", "..csv", "%2e%2e.csv"]
    for name in odd:
        (lake / name).write_text("a\n1\n")
    found = find(f"{lake}/")
    assert sorted(found) == sorted(str(lake / name) for name in odd if not name.startswith("."))
    for path in found:
        assert facts_of(fetch(path)[1], name=path).rows == 1
    assert not (tmp_path / "was-run").exists()


def test_a_name_that_would_open_another_file_system_is_refused(tmp_path):
    (tmp_path / "a::file:").mkdir()
    (tmp_path / "a::file:" / "x.csv").write_text("a\n1\n")
    with pytest.raises(DataUnreadableError, match="its name contains '::'"):
        find(f"{tmp_path}/**/*.csv")


def test_a_glob_does_not_leave_its_folder(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "secret.csv").write_text("a\n1\n")
    (tmp_path / "lake" / "x.csv").write_text("a\n1\n")
    assert find(f"{tmp_path}/lake/*.csv") == [str(tmp_path / "lake" / "x.csv")]


@pytest.mark.parametrize(
    "content",
    [
        b"[]",
        b"5",
        b"[" * 100_000,
        b"\x80\x04.",
        b'{"facts":{}}',
        b'{"facts":1,"written":{},"partition_hash":""}',
        b'{"facts":{},"written":{"shards":[5]},"partition_hash":""}',
        b'{"facts":{},"written":{"x":1}}',
    ],
)
def test_a_prepared_commit_of_somebody_else_is_none(content):
    import crc32c

    assert PreparedCommit.decode(b"%08x " % crc32c.crc32c(content) + content) is None


@pytest.mark.matrix
def test_a_hostile_part_of_the_curve_is_left_out(fork_server, make_spec, open_log, payload, proof, caplog):
    spec = make_spec(steps=10)
    runlog = open_log(spec)
    fork_server.run_to_the_end(runlog, spec)
    whole = curve(runlog)
    for number, table in enumerate([extension(b"arrow.py_extension_type", payload), pa.table({"step": ["x"]})]):
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink)
        runlog.store.put(keys.metrics_key("tiny", "seg000-a9-e9", number), sink.getvalue().to_pybytes())
    runlog.store.put(keys.metrics_key("tiny", "seg000-a9-e9", 2), payload)
    assert curve(runlog)["step"].dropna().tolist() == whole["step"].tolist()
    assert "loss curve file left out" in caplog.text
