"""Manifests name the parts of the loss curve: a lost or changed part is damage by name, and no resume fails."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from segue.checkpoints.loading.quarantine import quarantine
from segue.continuity.witness import StepRow
from segue.curves import curve_rows
from segue.curves.curve_damage import damaged_parts, up_to
from segue.curves.curve_rows import Curve
from segue.curves.expectations import check_curve
from segue.curves.schema import sha256_of
from segue.records import VerdictKind
from segue.reports.page import finding_lines
from segue.runlog import keys
from segue.runlog.log import RunLog
from segue.spec import StoreSpec
from segue.stores import LocalStore
from segue.testing.faulty_store import FaultyStore
from tests.support.histories import Logbook, make_spec
from tests.support.resumed_run import read_resumed

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def files_of(run):
    """The files of the attempts, in the order of the attempts."""
    return [run.store / keys.metrics_key("nightly", a.claim.attempt_id, 0) for a in run.history.attempts]


def rewrite(path, step, column="loss", value=9.0):
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[table["step"].to_pylist().index(step)] = value
    at = table.column_names.index(column)
    pq.write_table(table.set_column(at, table.field(column), pa.array(values, table.field(column).type)), path)


def cut(path):
    pq.write_table(pq.read_table(path).slice(0, 15), path)


DAMAGE = {
    "is missing from the store": lambda path: path.unlink(),
    "differs in its first 20 rows from the manifest of step 20": lambda path: rewrite(path, 7),
    "differs in its first 20 rows from the manifest": lambda path: rewrite(path, 7, "capacity", "on-demand"),
    "has 15 rows, the manifest of step 20 has 20": cut,
    "cannot be read (": lambda path: path.write_bytes(b"PAR1 and no more"),
}


def test_a_run_without_damage_has_no_damaged_part(resumed):
    assert [len(c.manifest.curve) for c in resumed.history.checkpoints] == [1] * 7
    assert damaged_parts(resumed.log, resumed.history) == ()


@pytest.mark.parametrize("why", DAMAGE)
def test_a_damaged_part_is_named_with_its_difference(resumed, tmp_path, why):
    run = resumed.copy(tmp_path / "store")
    first, _ = files_of(run)
    DAMAGE[why](first)
    (found,) = damaged_parts(run.log, run.history)
    assert (found.key, found.why[: len(why)]) == (f"nightly/metrics/{first.name}", why)
    failed = check_curve(run.log).failed
    assert failed[0].name == "files as committed"
    assert found.sentence in failed[0].sentence


def test_rows_after_the_checkpoint_are_not_part_of_it(resumed, tmp_path):
    run = resumed.copy(tmp_path / "store")
    first, second = files_of(run)
    rewrite(first, 25)  # Superseded: the second attempt resumed from step 20.
    rewrite(second, 60)
    assert [part.key for part in damaged_parts(run.log, run.history)] == [f"nightly/metrics/{second.name}"]
    at_50 = next(c for c in run.history.checkpoints if c.manifest.step == 50)
    assert damaged_parts(run.log, up_to(run.history, at_50)) == ()


def test_another_layout_of_the_same_values_is_no_damage(resumed, tmp_path):
    run = resumed.copy(tmp_path / "store")
    for path in files_of(run):
        table = pq.read_table(path)
        metric = pa.array(np.full(table.num_rows, np.nan))  # The column of a metric that came later.
        wider = table.append_column("metric.later", metric).select(["metric.later", *reversed(table.column_names)])
        pq.write_table(wider, path, compression="gzip", row_group_size=7, use_dictionary=False)
    assert damaged_parts(run.log, run.history) == ()


def test_a_nan_of_other_bits_is_the_same_value():
    def table(bits):
        return pa.table({"loss": np.array([0x3FF0000000000000, bits], dtype="u8").view("f8")})

    assert sha256_of(table(0x7FF8000000000000)) == sha256_of(table(0xFFF8000000000001))
    assert sha256_of(table(0x7FF8000000000000)) != sha256_of(table(0x7FF0000000000000))


@pytest.fixture
def long_run(tmp_path, monkeypatch):
    """A log and a store of one attempt with three full parts."""
    monkeypatch.setattr(curve_rows, "ROWS_PER_PART", 10)
    book, store = Logbook(make_spec()), LocalStore(tmp_path).create()
    attempt_id = book.claim(book.plan())
    curve = Curve(
        run="r", segment=0, attempt=1, attempt_id=attempt_id, capacity="spot", environment="e", from_checkpoint=0
    )
    for step in range(1, 31):
        row = StepRow(step, "", "", None, loss=1 / step, grad_norm=None, param_norm=None, lr=(0.1,), loss_scale=None)
        curve.add(row, epoch=0, samples_seen=step, step_seconds=0.1, wall_time=NOW, metrics={"own": step})
        if step % 5 == 0:
            (part,) = curve.take()
            store.put(keys.metrics_key("r", attempt_id, part.number), part.to_parquet())
            book.commit(attempt_id, step, curve=(part.digest(),))
    return book.history, store


def test_the_manifest_of_a_long_run_names_only_the_newest_part(long_run):
    history, store = long_run
    named = [[(digest.part, digest.rows) for digest in c.manifest.curve] for c in history.checkpoints]
    assert named == [[(0, 5)], [(0, 10)], [(1, 5)], [(1, 10)], [(2, 5)], [(2, 10)]]
    assert damaged_parts(RunLog(store, "r"), history) == ()


def test_a_resume_reads_one_part_and_looks_for_all(long_run):
    history, store = long_run
    parts = sorted(item.key for item in store.list_objects("r/metrics/"))
    store.delete(parts[:1])
    for number in (1, 2):
        store.put(parts[number], b"other bytes")
    reads = []
    seen = FaultyStore(store, fails=lambda name, key: bool(name == "get" and reads.append(key)))
    found = damaged_parts(RunLog(seen, "r"), history, most_read=1)
    assert [part.key for part in found] == [parts[2], parts[0]]
    assert reads == [parts[2]]
    assert len(damaged_parts(RunLog(store, "r"), history)) == 3


def test_a_run_of_an_older_version_is_not_measured(resumed, tmp_path):
    run = resumed.copy(tmp_path / "store")
    without = [c.manifest.model_copy(update={"curve": ()}) for c in run.history.checkpoints]
    assert not any("curve" in json.loads(manifest.model_dump_json()) for manifest in without)
    book, store = Logbook(make_spec()), LocalStore(tmp_path / "old").create()
    book.commit(book.claim(book.plan()), 10)
    assert damaged_parts(RunLog(store, "r"), book.history) == ()


@pytest.mark.matrix
@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: rewrite(path, 45)])
def test_a_resume_continues_exactly_and_names_the_damaged_part(resumed, tmp_path, fork_server, damage):
    run = resumed.copy(tmp_path / "store")
    _, newest = files_of(run)
    damage(newest)
    quarantine(run.log, checkpoint=run.history.newest, reason="a person doubted it", epoch=run.log.highest_epoch)
    place = StoreSpec(url=str(run.store))
    spec = run.history.spec.model_copy(update={"store": place, "steps": 80})
    fork_server.run_attempt(run.log, spec)
    found = read_resumed(run.store).history
    assert (found.committed_step, found.attempts[-1].verdict.kind) == (80, VerdictKind.EXACT)
    (line,) = [line for line in finding_lines(found) if line.startswith("damaged: ")]
    assert f"nightly/metrics/{newest.name}: " in line
    assert "found at the resume from step 50" in line
    (part,) = damaged_parts(run.log, found)
    assert part.key == f"nightly/metrics/{newest.name}"


_READ_UNTIL_THE_END = """
import threading, time
import pyarrow as pa
import pyarrow.parquet as pq
from segue.curves.curve_damage import _difference
from segue.records import CurveDigest

sink = pa.BufferOutputStream()
pq.write_table(pa.table({f"column {n}": range(10) for n in range(300)}), sink)
content, digest = sink.getvalue().to_pybytes(), CurveDigest(part=0, rows=10**9, sha256="")

def search():
    while True:
        assert "rows" in _difference(content, 1, digest)

_difference(content, 1, digest)
threading.Thread(target=search, daemon=True).start()
time.sleep(0.1)
"""


@pytest.mark.matrix
def test_a_process_that_ends_during_the_search_does_not_wait_for_it():
    for _ in range(10):
        ended = subprocess.run(
            [sys.executable, "-c", _READ_UNTIL_THE_END], timeout=120, capture_output=True, text=True, check=False
        )
        assert ended.returncode == 0, ended.stderr
