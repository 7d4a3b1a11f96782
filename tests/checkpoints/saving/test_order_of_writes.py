"""In which order a save, its commit, and pruning reach the store: what a crash in between leaves is always usable."""

from __future__ import annotations

from contextlib import closing, contextmanager

import pytest
import torch

from segue.checkpoints.pruning import Pruner
from segue.checkpoints.saving.committer import IncrementalBase, Writer
from segue.checkpoints.saving.save_job import Author, Metric, SaveJob
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import PreparedCommit
from segue.clock import SystemClock
from segue.curves.curve_rows import CurvePart
from segue.errors import FencedError
from segue.records import Environment, Manifest
from segue.runlog import keys
from segue.runlog.entries import ClaimEntry, CommitEntry
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.spec import CheckpointSpec
from segue.stores import LocalStore
from segue.testing.faulty_store import FaultyStore

RUN, ATTEMPT = "tiny", "seg000-a1-e1"
HERE = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
STATE = {"model": {"frozen": torch.zeros(20_000), "trained": torch.zeros(100)}, "progress": {"step": 0}}
FACTS = {"run": RUN, "segment": 0, "attempt": 1, "attempt_id": ATTEMPT, "capacity": "spot"}


def part(number):
    return CurvePart(number, FACTS | {"environment": "cpu", "from_checkpoint": 0}, rows=b"")


class Saver:
    """An attempt's writer without its steps, on a store whose operations are seen, and may fail."""

    def __init__(self, root, **options):
        self.store = LocalStore(root).create()
        self.seen, self.fails = [], lambda name, key: False
        store = FaultyStore(self.store, fails=self._look)
        self.log, self.area = RunLog(store, RUN), StagingArea()
        retention = CheckpointSpec(keep=options.pop("keep", 5))
        self.pruner = Pruner(epoch=1, retention=retention, tiers=[store])
        self.writer = Writer(
            self.log,
            Author(ATTEMPT, 1, parent=None, environment=HERE),
            shards=options.pop("shards", None) or InlineWriter([store]),
            base=IncrementalBase(full_every=options.pop("full_every", 1)),
            pruner=self.pruner,
            release=self.area.release,
            clock=SystemClock(),
        )
        assert not options

    def _look(self, name, key):
        self.seen.append((name, key.rpartition("/")[2] if "/log/" not in key else "log"))
        return self.fails(name, key)

    def submit(self, step, *, metric=None, curve=(), is_torn=False):
        STATE["model"]["trained"].fill_(step)
        staged = self.area.take(STATE)
        staged.is_torn = is_torn
        job = SaveJob(
            staged=staged,
            step=step,
            samples_seen=step,
            epoch=0,
            metric=metric or Metric(),
            curve=curve,
        )
        self.writer.submit(job)

    def save(self, *steps, **fields):
        for step in steps:
            self.submit(step, **fields)
            assert self.writer.wait(60)

    def puts(self):
        """What was written, in order."""
        return [name for operation, name in self.seen if operation in ("put", "put_if_absent")]

    @property
    def history(self):
        """As another process reads it."""
        return read_history(RunLog(self.store, RUN).reload())


@contextmanager
def saver(root, **options):
    made = Saver(root, **options)
    with closing(made.area), closing(made.writer):
        yield made


def until(holds):
    clock = SystemClock()
    while not holds():
        clock.sleep(0.01)


def test_curve_shard_index_prepared_commit_and_record_in_this_order(tmp_path):
    with saver(tmp_path) as it:
        it.save(10, curve=[part(0)])
        stem = [f"{ATTEMPT}-p0000.parquet", "rank-0.safetensors", "rank-0.json", "rank-0.commit.json", "log"]
        assert it.puts() == stem


def test_a_manifest_names_every_part_of_the_curve_since_the_commit_before(tmp_path):
    with saver(tmp_path) as it:
        it.save(10, curve=[part(0)])
        it.save(20, curve=[part(0)], is_torn=True)
        it.save(30, curve=[part(1)], is_torn=True)
        it.save(40, curve=[part(2)])
        it.save(50)
        named = [[digest.part for digest in checkpoint.manifest.curve] for checkpoint in it.history.checkpoints]
        assert named == [[0], [0, 1, 2], []]


def test_an_adopted_save_names_the_parts_of_its_curve(tmp_path):
    with saver(tmp_path) as it:
        it.save(10, curve=[part(0)])
        (committed,) = it.history.checkpoints
        prepared = PreparedCommit.decode(it.store.get(f"{RUN}/{keys.prepared_name(ATTEMPT, 10, 0)}"))
        assert Manifest.model_validate({**prepared.facts, **prepared.written.to_json()}) == committed.manifest
        assert committed.manifest.curve


def test_the_prepared_commit_is_in_the_durable_store_and_after_its_shards(tmp_path):
    durable = LocalStore(tmp_path / "durable").create()
    fast = LocalStore(tmp_path / "fast").create()
    with saver(tmp_path / "log", shards=InlineWriter([fast, durable])) as it:
        it.save(10)
    name = f"{RUN}/{keys.prepared_name(ATTEMPT, 10, 0)}"
    assert name in {item.key for item in durable.list_objects(RUN)}
    assert name not in {item.key for item in fast.list_objects(RUN)}


def test_the_record_waits_for_the_metric_and_the_bytes_do_not(tmp_path):
    with saver(tmp_path) as it:
        metric = Metric(is_pending=True)
        it.submit(10, metric=metric)
        until(lambda: "rank-0.commit.json" in it.puts())
        assert not it.writer.wait(0.2)
        assert it.history.checkpoints == ()
        metric.set(0.5)
        assert it.writer.wait(60)
        assert [c.manifest.metric for c in it.history.checkpoints] == [0.5]


def test_a_commit_whose_answer_failed_is_made_again_with_the_same_bytes(tmp_path):
    failing = iter([True])
    with saver(tmp_path) as it:
        it.fails = lambda name, key: name == "put_if_absent" and next(failing, False)
        it.save(10)
        assert it.puts().count("rank-0.safetensors") == 1
        assert len(it.history.checkpoints) == 1


def test_a_save_whose_pruning_failed_is_committed_once(tmp_path):
    failing = iter([True])
    with saver(tmp_path) as it:
        it.save(10)
        prune, it.pruner.prune = it.pruner.prune, lambda log: _raise() if next(failing, False) else prune(log)
        it.save(20)
        assert [c.manifest.step for c in it.history.checkpoints] == [10, 20]


def _raise():
    from segue.stores.base import StoreReadError

    raise StoreReadError(url="x", key="y", why="injected")


def test_a_save_is_not_written_again_once_a_newer_claim_is_there(tmp_path):
    with saver(tmp_path) as it:
        failed = []

        def fails(name, key):
            if name != "put" or failed:
                return False
            failed.append(key)
            facts = {"attempt_id": "seg000-a2-e2", "segment": 0, "attempt": 2, "capacity": "spot", "host": "h"}
            facts |= {"trainer_pid": 1, "segment_pid": 1, "environment": HERE}
            RunLog(it.store, RUN).append(lambda stamp: ClaimEntry.model_validate(stamp(epoch=2) | facts))
            return True

        it.fails = fails
        it.submit(10)
        with pytest.raises(FencedError):
            it.writer.wait(60)
        assert it.puts() == ["rank-0.safetensors"], "tried once"
        assert it.history.checkpoints == ()


def test_a_full_save_comes_as_often_as_it_is_asked_for(tmp_path):
    with saver(tmp_path, full_every=3) as it:
        it.save(10, 20, 30, 40, 50)
        assert [c.manifest.saves_since_full for c in it.history.checkpoints] == [0, 1, 2, 0, 1]


def test_the_prune_record_is_in_the_log_before_anything_is_deleted(tmp_path):
    with saver(tmp_path, keep=2) as it:
        pruned_at_delete = []

        def look(name, key):
            if name == "delete":
                pruned_at_delete.append([c.manifest.step for c in it.history.checkpoints if c.is_pruned])
            return False

        it.fails = look
        it.save(10, 20, 30, 40, 50)
        assert pruned_at_delete
        assert all(pruned_at_delete), "each delete comes after the record that announces it"
        assert [c.manifest.step for c in it.history.usable] == [40, 50]
        assert not any("step-000000010/" in item.key for item in it.store.list_objects(RUN))


def test_what_a_kept_checkpoint_refers_to_stays(tmp_path):
    with saver(tmp_path, keep=2, full_every=9) as it:
        it.save(10, 20, 30, 40)
        kept = {item.key for item in it.store.list_objects(RUN)}
        for checkpoint in it.history.usable:
            assert {f"{RUN}/{shard.key}" for shard in checkpoint.manifest.shards} <= kept
        assert any("step-000000010/" in key for key in kept), "the frozen tensor lies there"


def test_what_could_not_be_deleted_is_deleted_with_a_later_checkpoint(tmp_path):
    refused = []
    with saver(tmp_path, keep=2) as it:
        it.save(10, 20)

        def refuses_once(name, key):
            is_refused = name == "delete" and "step-000000010/" in key and len(refused) < 1
            refused.extend([key] if is_refused else [])
            return is_refused

        it.fails = refuses_once
        it.save(30, 40, 50)
        assert refused
        assert not any("step-000000010/" in item.key for item in it.store.list_objects(RUN))


@pytest.mark.parametrize("is_damaged", [False, True])
def test_orphans_of_earlier_epochs_go_unless_a_record_cannot_be_read(tmp_path, is_damaged):
    with saver(tmp_path) as it:
        for epoch in (0, 1, 2):
            it.store.put(f"{RUN}/attempts/seg000-a1-e{epoch}/step-000000099/rank-0.safetensors", b"x")
        it.save(10)
        it.writer.close()
        if is_damaged:
            it.store.put(keys.log_key(RUN, 5), b"rot")
        later = Pruner(epoch=1, retention=CheckpointSpec(keep=5), tiers=[it.store])
        it.store.put(f"{RUN}/attempts/seg000-a1-e0/step-000000098/rank-0.safetensors", b"x")
        later.prune(RunLog(it.store, RUN).reload())
        left = {
            int(item.key.partition("-e")[2][0])
            for item in it.store.list_objects(f"{RUN}/attempts/")
            if "step-00000009" in item.key
        }
        assert left == ({0, 1, 2} if is_damaged else {1, 2})
        assert isinstance(it.log.slots[0].entry, CommitEntry)
