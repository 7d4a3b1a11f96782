"""Damage in the store: it is reported by name, the previous checkpoint is used, nothing is deleted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from segue.records import VerdictKind
from segue.runlog.entries import CommitEntry, QuarantineEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import open_store


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def fill_with_garbage(path: Path) -> None:
    path.write_bytes(b"\x00garbage\xff" * 9)


@pytest.fixture
def stopped(fork_server, make_spec, open_log):
    """A run of 40 steps that was stopped with three checkpoints: usually at 10, 20 and 30, later on a busy machine."""
    spec = make_spec(
        checkpoints={"every_steps": 10, "keep": 4, "staging_buffers": 2},
        config={"raise_at_step": 35, "pause_seconds": 0.02},
    )
    runlog = open_log(spec)
    fork_server.run_attempt(runlog, spec)
    assert len(committed(spec)) == 3
    return spec


def committed(spec) -> list[int]:
    """The steps of the usable checkpoints, oldest first."""
    return [c.manifest.step for c in read_history(RunLog(open_store(spec.store), spec.run_id)).usable]


def files_below(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def resume(fork_server, spec):
    """Resume the run after the recipe was fixed; returns its history as a new reader sees it."""
    fixed = spec.model_copy(update={"config": {}})
    runlog = RunLog(open_store(spec.store), spec.run_id).reload()
    fork_server.run_attempt(runlog, fixed)
    return read_history(RunLog(open_store(spec.store), spec.run_id).reload())


@pytest.mark.parametrize(
    ("damage", "shard", "named"),
    [
        (truncate, "rank-0.safetensors", "bytes; the manifest says"),
        (flip_a_bit, "rank-0.json", "crc32c"),
        (Path.unlink, "rank-0.safetensors", "is missing"),
        pytest.param(flip_a_bit, "rank-0.safetensors", "crc32c", marks=pytest.mark.matrix),
        pytest.param(truncate, "rank-0.json", "bytes; the manifest says", marks=pytest.mark.matrix),
        pytest.param(Path.unlink, "rank-0.json", "is missing", marks=pytest.mark.matrix),
    ],
)
def test_a_damaged_shard_is_named_and_the_previous_checkpoint_used(fork_server, stopped, damage, shard, named):
    root = Path(stopped.store.url)
    *_, previous, last = committed(stopped)
    (newest,) = root.glob(f"tiny/attempts/*/step-{last:09d}/{shard}")
    damage(newest)
    before = files_below(root)
    history = resume(fork_server, stopped)
    (quarantined,) = [c for c in history.checkpoints if c.quarantined]
    assert quarantined.manifest.step == last
    assert named in quarantined.quarantined
    assert shard in quarantined.quarantined
    assert history.resumes[0].parent.step == previous
    assert history.resumes[0].verdict.kind is VerdictKind.EXACT
    assert history.committed_step == 40
    assert before <= files_below(root) | {str(p.relative_to(root)) for p in root.glob("tiny/**/.staged-*")}


@pytest.mark.matrix
@pytest.mark.parametrize(
    "damage",
    [Path.unlink, flip_a_bit, *(pytest.param(how, marks=pytest.mark.matrix) for how in (fill_with_garbage, truncate))],
)
def test_a_damaged_commit_record_is_named_and_the_previous_checkpoint_used(fork_server, stopped, damage):
    root = Path(stopped.store.url)
    slots = RunLog(open_store(stopped.store), "tiny").reload().slots
    *_, previous, last = committed(stopped)
    slot = next(s.number for s in slots if isinstance(s.entry, CommitEntry) and s.entry.manifest.step == last)
    record = root / "tiny" / "log" / f"{slot:08d}.json"
    damage(record)
    after_damage = record.read_bytes() if record.exists() else None
    before = files_below(root)
    history = resume(fork_server, stopped)
    assert [item.slot for item in history.damage] == [slot]
    named = [s.entry for s in RunLog(open_store(stopped.store), "tiny").reload().slots]
    (entry,) = [entry for entry in named if isinstance(entry, QuarantineEntry)]
    assert (entry.slot, entry.checkpoint) == (slot, None)
    assert f"{slot:08d}.json" in entry.reason
    assert history.resumes[0].parent.step == previous
    assert history.committed_step == 40
    assert before <= files_below(root)
    assert (record.read_bytes() if record.exists() else None) == after_damage


def test_with_every_checkpoint_damaged_the_run_restarts_from_step_0_and_reports_it(fork_server, stopped):
    steps = committed(stopped)
    for shard in Path(stopped.store.url).glob("tiny/attempts/*/*/rank-0.safetensors"):
        flip_a_bit(shard)
    history = resume(fork_server, stopped)
    assert [c.manifest.step for c in history.checkpoints if c.quarantined] == steps
    assert history.last_reports()[-1].from_step == 0
    assert history.committed_step == 40


def test_a_manifest_that_points_outside_the_run_is_refused(fork_server, stopped, tmp_path):
    from segue.checkpoints.loading.snapshot import read_checkpoint
    from segue.errors import MalformedCheckpointError

    store = open_store(stopped.store)
    manifest = read_history(RunLog(store, "tiny").reload()).newest.manifest
    outside = replace(manifest.shards[0], key="../../etc/passwd")
    with pytest.raises(MalformedCheckpointError, match="outside the run's folder"):
        read_checkpoint(store, run_id="tiny", manifest=manifest.model_copy(update={"shards": (outside,)}))
