"""The files of a run: read in full before each segment, copied from a bucket, refused when they have changed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from segue.clock import SystemClock
from segue.controller.steps import decide_next
from segue.data.files import checked_copies
from segue.errors import DataChangedError, DataUnreadableError
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.spec import DataFile, DataSpec
from segue.trainer.health.failures import is_transient


def described(path: str, content: bytes) -> DataFile:
    return DataFile(path=path, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))


def spec_of(*files: DataFile, **fields) -> DataSpec:
    return DataSpec(files=files, **fields)


def test_local_files_stay_where_they_are_in_the_order_of_the_spec(tmp_path):
    paths = [tmp_path / name for name in ("b.csv", "a.csv")]
    for path in paths:
        path.write_bytes(path.name.encode())
    files = [described(str(paths[0]), b"b.csv"), described(paths[1].as_uri(), b"a.csv")]
    assert checked_copies(spec_of(*files)) == paths


def test_a_local_file_that_has_changed_is_named_with_both_hashes(tmp_path):
    path = tmp_path / "may.csv"
    path.write_bytes(b"new")
    file = described(str(path), b"old")
    with pytest.raises(DataChangedError, match=rf"^{path} has changed since the run began") as raised:
        checked_copies(spec_of(file))
    assert (raised.value.expected, raised.value.found) == (file.sha256, hashlib.sha256(b"new").hexdigest())
    assert "start a new run with the new file" in str(raised.value)


def test_a_missing_file_is_named_and_is_not_worth_a_retry(tmp_path):
    with pytest.raises(DataUnreadableError, match=r"may\.csv could not be read: it is missing\. Fix: ") as raised:
        checked_copies(spec_of(described(str(tmp_path / "may.csv"), b"")))
    assert not is_transient(raised.value)


@pytest.mark.parametrize(("path", "why"), [("nosuch://lake/may.csv", "nosuch"), ("/proc/self/mem", "put/output error")])
def test_what_cannot_be_read_is_named_with_the_reason(path, why):
    with pytest.raises(DataUnreadableError, match=rf"{path} could not be read: .*{why}"):
        checked_copies(spec_of(described(path, b"")))


def test_an_object_is_copied_once_and_then_read_from_the_cache(bucket, tmp_path):
    client, name, url = bucket
    content = np.random.default_rng(0).bytes(9_000_000)
    client.put_object(Bucket=name, Key="2026/may.csv.gz", Body=content)
    data = spec_of(
        described(f"s3://{name}/2026/may.csv.gz", content), endpoint_url=url, cache_folder=str(tmp_path / "cache")
    )
    (copy,) = checked_copies(data)
    assert copy.read_bytes() == content
    assert copy.name.endswith(".csv.gz")  # By which pandas knows the format.
    client.delete_object(Bucket=name, Key="2026/may.csv.gz")
    assert checked_copies(data) == [copy]
    copy.write_bytes(content[:-1])
    with pytest.raises(DataUnreadableError, match="it is missing"):  # A damaged copy is none.
        checked_copies(data)


def test_an_object_that_has_changed_is_refused_and_leaves_no_copy(bucket, tmp_path):
    client, name, url = bucket
    client.put_object(Bucket=name, Key="may.csv", Body=b"new")
    folder = tmp_path / "cache"
    data = spec_of(described(f"s3://{name}/may.csv", b"old"), endpoint_url=url, cache_folder=str(folder))
    with pytest.raises(DataChangedError, match=f"s3://{name}/may.csv has changed"):
        checked_copies(data)
    assert [path.name for path in folder.iterdir() if path.suffix != ".lock"] == []


@pytest.mark.matrix
def test_a_bucket_that_cannot_be_reached_is_worth_a_retry(aws_keys, tmp_path):
    file = described("s3://lake/may.csv", b"")
    data = spec_of(file, endpoint_url="http://127.0.0.1:9", cache_folder=str(tmp_path))
    with pytest.raises(DataUnreadableError, match=r"s3://lake/may\.csv could not be read") as raised:
        checked_copies(data)
    assert is_transient(raised.value)


def write_frame(path: Path, seed: int) -> bytes:
    x = np.random.default_rng(seed).normal(size=64)
    pd.DataFrame({"x": x, "y": 2 * x}).to_parquet(path)
    return path.read_bytes()


@pytest.mark.matrix
def test_a_run_refuses_a_file_that_changed_between_segments_and_goes_on_when_it_is_back(
    fork_server, make_spec, open_log, tmp_path
):
    path = tmp_path / "may.parquet"
    content = write_frame(path, seed=0)
    files = [described(str(path), content).model_dump()]
    spec = make_spec(recipe="tests.recipes.from_files:build", data={"files": files}, segment={"steps": 20})
    runlog = open_log(spec)
    assert fork_server.run_attempt(runlog, spec).stop_reason is StopReason.BOUND
    write_frame(path, seed=1)
    report = fork_server.run_attempt(runlog, spec)
    assert (report.stop_reason, report.failure.type) == (StopReason.FAILED, "DataChangedError")
    decision = decide_next(runlog, spec, clock=SystemClock())
    assert decision.action == "failed"
    assert f"{path} has changed since the run began" in decision.reason
    path.write_bytes(content)
    reopened = open_log(spec)
    assert fork_server.run_attempt(reopened, spec).stop_reason is StopReason.FINISHED
    assert read_history(reopened).attempts[-1].verdict.kind is VerdictKind.EXACT
