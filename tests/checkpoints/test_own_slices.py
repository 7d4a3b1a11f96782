"""Each of several ranks reads its own slices of a sharded state, and together they read and verify all of it."""

from __future__ import annotations

import shutil

import pytest
import torch

from segue.checkpoints.format.dtensor import OwnSlices, SliceNotReadError, _Place, view_of_slice
from segue.checkpoints.format.layout import TensorSlice
from segue.checkpoints.format.names import slice_name
from segue.checkpoints.format.snapshot import Snapshot
from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.snapshot import committed_as, snapshot_of
from segue.checkpoints.saving.partition import Partition, RankState
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import CorruptShardError, MachineTooSmallError
from segue.stores import LocalStore
from tests.support.manifests import manifest_of

ROWS, WIDTH = 4, 5_000_000  # A row has 20 MB, in chunks of 8 MiB.


def place(rank, width=WIDTH):
    return _Place((ROWS, width), (2 * rank, 0), (2, width))


def own(rank):
    return OwnSlices(frozenset({place(rank)}))


class InTwo(Partition):
    """Stores the matrix as two ranks would, each its rows, and the rest whole."""

    def of(self, live, skeletons):
        whole = live["model.w"]
        slices = {}
        tensors = {name: tensor for name, tensor in live.items() if name != "model.w"}
        for rank in range(2):
            one = TensorSlice("model.w", tuple(whole.shape), (2 * rank, 0))
            slices[slice_name(one)] = one
            tensors[slice_name(one)] = whole[2 * rank : 2 * rank + 2]
        return RankState(tensors, dict(skeletons), slices, "both")


class Counting(LocalStore):
    """Counts the bytes that are read."""

    count = 0

    def read_into(self, key, start, memory):
        self.count += len(memory)
        return super().read_into(key, start, memory)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sliced")
    store = LocalStore(folder).create()
    state = {"model": {"w": torch.arange(float(ROWS * WIDTH)).view(ROWS, WIDTH), "b": torch.arange(7.0)}}
    area = StagingArea(partition=InTwo())
    written = InlineWriter([store]).write(area.take(state), Save("run", "seg000-a1-e1", 3))
    area.close()
    return folder, manifest_of(written, 3), state["model"]


@pytest.mark.parametrize("rank", range(2))
def test_a_rank_reads_its_own_slice_and_what_all_need_and_nothing_else(saved, rank):
    folder, manifest, model = saved
    store = Counting(folder)
    snapshot = snapshot_of(read_stored([store], run_id="run", manifest=manifest, own=own(rank)))
    assert store.count < 0.5 * manifest.size_bytes + 3 * 8 * 2**20
    assert torch.equal(snapshot.tensors["model.b"], model["b"])
    found = snapshot.tensors["model.w"]
    assert (found.is_meta, tuple(found.shape)) == (True, (ROWS, WIDTH))
    mine = TensorSlice("model.w", (ROWS, WIDTH), (2 * rank, 0))
    assert torch.equal(view_of_slice(found, mine, (2, WIDTH)), model["w"][2 * rank : 2 * rank + 2])
    assert view_of_slice(found, mine, (0, WIDTH)).numel() == 0
    for other, shape in (((2 - 2 * rank, 0), (2, WIDTH)), ((2 * rank, 0), (1, WIDTH))):
        with pytest.raises(SliceNotReadError):
            view_of_slice(found, TensorSlice("model.w", (ROWS, WIDTH), other), shape)
    with pytest.raises((NotImplementedError, RuntimeError)):
        found.sum().item()


def test_what_should_have_been_restored_is_known_of_the_own_slice(saved):
    folder, manifest, model = saved
    stored = snapshot_of(read_stored([LocalStore(folder)], run_id="run", manifest=manifest, own=own(1)))
    whole = snapshot_of(read_stored([LocalStore(folder)], run_id="run", manifest=manifest))
    mine = TensorSlice("model.w", (ROWS, WIDTH), (2, 0))
    tensors = {slice_name(mine): model["w"][2:].clone(), "model.b": model["b"]}
    live = Snapshot(stored.skeletons, tensors, {slice_name(mine): mine})
    assert committed_as(live, stored) == committed_as(live, whole)
    without = Snapshot(stored.skeletons, {"model.b": model["b"]})
    assert committed_as(without, stored).tensors["model.w"].digest == "not read"


def test_damage_in_another_ranks_slice_is_that_ranks_to_find(saved, tmp_path):
    folder, manifest, _ = saved
    copy = shutil.copytree(folder, tmp_path / "copy")
    (shard,) = (shard for shard in manifest.shards if shard.key.endswith(".safetensors"))
    file = copy / "run" / shard.key
    data = bytearray(file.read_bytes())
    data[len(data) // 4] ^= 1  # In the first half.
    file.write_bytes(data)
    found = []
    for rank in range(2):
        try:
            read_stored([LocalStore(copy)], run_id="run", manifest=manifest, own=own(rank))
        except CorruptShardError:
            found.append(rank)
    assert len(found) == 1


def test_the_limit_of_memory_is_for_what_is_read(saved):
    folder, manifest, _ = saved
    most = int(0.6 * manifest.size_bytes)
    read_stored([LocalStore(folder)], run_id="run", manifest=manifest, own=own(0), memory_bytes=most)
    with pytest.raises(MachineTooSmallError):
        read_stored([LocalStore(folder)], run_id="run", manifest=manifest, own=own(0), memory_bytes=most // 2)


def test_a_state_that_was_sharded_in_another_way_is_read_whole():
    slices = {name: TensorSlice("w", (4, 9), (start, 0)) for name, start in (("a", 0), ("b", 2))}
    shapes = {"a": (2, 9), "b": (2, 9)}
    assert OwnSlices(frozenset({place(0, 9)})).others(slices, shapes) == {"b"}
    assert OwnSlices(frozenset({_Place((4, 9), (0, 0), (4, 9))})).others(slices, shapes) == frozenset()
    # Of another shape than any parameter: who needs it cannot be told.
    more = slices | {"c": TensorSlice("row", (4,), (0,)), "d": TensorSlice("row", (4,), (2,))}
    assert OwnSlices(frozenset({place(0, 9)})).others(more, shapes | {"c": (2,), "d": (2,)}) == {"b"}


def test_a_model_that_is_not_sharded_needs_everything():
    assert OwnSlices.of(torch.nn.Linear(2, 2).parameters()) is None
