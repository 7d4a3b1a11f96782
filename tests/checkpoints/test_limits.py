"""What a manifest from a bucket may claim: nothing is allocated, and nothing read, on the word of an absurd one.

And nothing is written that would be refused like that.
"""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace

import crc32c
import pytest
import torch

from segue.checkpoints.format.layout import MOST_TENSORS
from segue.checkpoints.format.limits import MOST_INDEX_BYTES, MOST_SHARDS
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter, ProcessWriter
from segue.checkpoints.saving.written import Save
from segue.errors import CheckpointError, MalformedCheckpointError, StateTooLargeError, TruncatedShardError
from segue.records import Environment, Manifest
from segue.shard import Shard
from segue.spec import StoreSpec
from segue.stores import LocalStore


@pytest.fixture
def store(tmp_path):
    return LocalStore(tmp_path).create()


@pytest.fixture
def manifest(store):
    staged = StagingArea().take({"model": {"w": torch.arange(6.0)}, "progress": {"step": 3}})
    written = InlineWriter([store]).write(staged, Save("run", "seg000-a1-e1", 3))
    return Manifest(
        step=3,
        samples_seen=3,
        epoch=0,
        shards=written.shards,
        tensor_count=written.tensor_count,
        components=written.components,
        environment=Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1),
    )


def test_the_untouched_one_is_read(store, manifest):
    assert read_checkpoint(store, run_id="run", manifest=manifest).tensors["model.w"].tolist() == [0, 1, 2, 3, 4, 5]


PETABYTE = 2**50


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"size_bytes": PETABYTE}, "number of checksums"),
        ({"chunk_bytes": 1, "chunk_crc32c": (0,) * 4120}, "chunks of 1 bytes"),
        ({"chunk_bytes": 2**40}, "chunks of"),
        ({"chunk_crc32c": ()}, "number of checksums"),
        ({"key": "attempts/../../../etc/passwd"}, "outside the run's folder"),
        ({"key": "/etc/passwd"}, "outside the run's folder"),
        ({"key": "attempts/a\x00b.safetensors"}, "outside the run's folder"),
    ],
)
def test_an_absurd_shard_is_refused_before_anything_is_read(store, manifest, changes, why):
    shards = (replace(manifest.shards[0], **changes), *manifest.shards[1:])
    with pytest.raises(MalformedCheckpointError, match=why):
        read_checkpoint(store, run_id="run", manifest=manifest.model_copy(update={"shards": shards}))


def test_an_absurd_index_is_refused(store, manifest):
    size = MOST_INDEX_BYTES + 1
    update = {"size_bytes": size, "chunk_bytes": 2**30, "chunk_crc32c": (0, 0)}
    shards = (manifest.shards[0], replace(manifest.shards[1], **update))
    with pytest.raises(MalformedCheckpointError, match="more than"):
        read_checkpoint(store, run_id="run", manifest=manifest.model_copy(update={"shards": shards}))


@pytest.mark.parametrize(
    "changes",
    [
        {"tensor_count": MOST_TENSORS + 1},
        {"shards": (Shard(key="a", size_bytes=0, chunk_bytes=1, chunk_crc32c=()),) * (MOST_SHARDS + 1)},
    ],
    ids=["tensors", "shards"],
)
def test_an_absurd_count_is_refused(store, manifest, changes):
    with pytest.raises(MalformedCheckpointError, match="more than"):
        read_checkpoint(store, run_id="run", manifest=manifest.model_copy(update=changes))


def test_a_size_that_the_object_does_not_have_is_refused_before_memory_is_asked_for(store, manifest):
    update = {"size_bytes": PETABYTE, "chunk_bytes": 2**30, "chunk_crc32c": (0,) * 2**20}
    shards = (replace(manifest.shards[0], **update), *manifest.shards[1:])
    with pytest.raises(TruncatedShardError):
        read_checkpoint(store, run_id="run", manifest=manifest.model_copy(update={"shards": shards}))


def spoilt(index):
    skeletons, tensors = index["skeletons"], index["tensors"]
    return {
        "a shard file that is not listed": index | {"images": []},
        "no tensors": {key: value for key, value in index.items() if key != "tensors"},
        "another shape": index | {"tensors": {"model.w": ["float32", [3], "d", 0]}},
        "another type": index | {"tensors": {"model.w": ["float64", [6], "d", 0]}},
        "a tensor too many": index | {"tensors": tensors | {"model.v": ["float32", [6], "d", 0]}},
        "a component too few": index | {"skeletons": {"model": skeletons["model"]}},
        "a tensor that is not there": index | {"skeletons": skeletons | {"model": {"$tensor": "model.v"}}},
        "a number for a skeleton's tag": index | {"skeletons": skeletons | {"model": {"$array": 5}}},
        "a list": [index],
        "depth": index | {"skeletons": {"model": nested(50_000), "progress": {}}},
    }


def nested(depth):
    return "[" * depth + "]" * depth


def test_an_index_that_lies_is_refused_by_a_checkpoint_error_whatever_it_says(store, manifest):
    key = f"run/{manifest.shards[1].key}"
    index = json.loads(store.get(key))
    for changed in spoilt(index).values():
        text = json.dumps(changed).replace(f'"{nested(50_000)}"', nested(50_000)).encode()
        store.put(key, text)
        sound = replace(manifest.shards[1], size_bytes=len(text), chunk_crc32c=(crc32c.crc32c(text),))
        spoilt_manifest = manifest.model_copy(update={"shards": (manifest.shards[0], sound)})
        with pytest.raises(CheckpointError):
            read_checkpoint(store, run_id="run", manifest=spoilt_manifest)


STATES = {
    "no tensors": {"progress": {"step": 1}},
    "many tensors": {"model": {f"layer.{n}": torch.zeros(1) for n in range(300)}},
    "names that JSON writes longer": {'modèle "1"': {f"é\n{n}": torch.zeros(1, 1) for n in range(100)}},
    "many components": {f"extra.{n}": {} for n in range(200)},
    "long lists": {"sampler": {"order": list(range(5000)), "left": ["a\n"] * 500}},
}


@pytest.mark.parametrize("tree", STATES.values(), ids=STATES)
def test_an_index_that_would_be_refused_is_not_even_begun(store, tree, monkeypatch):
    with closing(StagingArea()) as area:
        staged = area.take(tree)
        written = InlineWriter([store]).write(staged, Save("run", "seg000-a1-e1", 3))
        store.delete([f"run/{shard.key}" for shard in written.shards])
        monkeypatch.setattr("segue.checkpoints.format.limits.MOST_INDEX_BYTES", written.shards[1].size_bytes - 1)
        with closing(ProcessWriter([StoreSpec(url=store.url)])) as writer:
            for each in (InlineWriter([store]), writer):
                with pytest.raises(StateTooLargeError, match="outside its tensors"):
                    each.write(staged, Save("run", "seg000-a1-e1", 3))
    assert store.list_objects("") == []
