"""A copy of a checkpoint outlives the original, and is read as it was."""

from __future__ import annotations

import resource

import pytest
import torch

from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.snapshot import snapshot_of
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import CorruptShardError, MissingShardError
from segue.stores import LocalStore, StoreReadError, StoreWriteError
from segue.testing.faulty_store import FaultyStore
from segue.trainer.rehearsal_main import copied
from tests.support.manifests import manifest_of

TREE = {"model": {"w": torch.arange(700_000.0)}, "progress": {"step": 1}}


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path / "store").create()


@pytest.fixture
def manifest(store):
    area = StagingArea()
    written = InlineWriter([store]).write(area.take(TREE), Save("run", "seg000-a1-e1", 1))
    area.close()
    return manifest_of(written, 1)


def keys_of(manifest):
    return [f"run/{shard.key}" for shard in manifest.shards]


def test_a_copy_is_read_after_the_original_was_pruned_and_is_gone_after_its_use(store, manifest):
    with copied(store, run_id="run", manifest=manifest) as copy:
        store.delete(keys_of(manifest))
        found = snapshot_of(read_stored([copy, store], run_id="run", manifest=manifest))
        assert torch.equal(found.tensors["model.w"], TREE["model"]["w"])
    assert not copy.root.exists()
    with pytest.raises(MissingShardError), copied(store, run_id="run", manifest=manifest):
        pass


def test_a_copy_of_damaged_bytes_is_refused_where_it_is_read(store, manifest):
    path = store.root / keys_of(manifest)[-1]
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with copied(store, run_id="run", manifest=manifest) as copy, pytest.raises(CorruptShardError):
        read_stored([copy, store], run_id="run", manifest=manifest)


def test_an_outage_while_copying_is_an_outage_and_no_missing_checkpoint(store, manifest):
    broken = FaultyStore(store, fails=lambda operation, key: operation == "get_range")
    with pytest.raises(StoreReadError), copied(broken, run_id="run", manifest=manifest):
        pass


def test_a_folder_without_room_is_named(store, manifest, files_of_one_megabyte):
    with pytest.raises(StoreWriteError, match="File too large"), copied(store, run_id="run", manifest=manifest):
        pass


@pytest.fixture
def files_of_one_megabyte():
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
