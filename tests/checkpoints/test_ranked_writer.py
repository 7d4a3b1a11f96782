"""One checkpoint of what several ranks write: rank 0 knows of every shard before anything is committed."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.partition import Partition
from segue.checkpoints.saving.ranked_writer import RankedWriter
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import RankMismatchError
from segue.stores import LocalStore, StoreWriteError
from segue.testing.faulty_store import FaultyStore
from tests.support.manifests import manifest_of


def save(step):
    return Save("run", "seg000-a1-e1", step)


class Notes(dict):
    """Notes of ranks that live in one process."""

    def put(self, key, text):
        self[key] = text


@pytest.fixture
def group(tmp_path):
    """Two ranks' writers, and what both have to store."""
    notes, store = Notes(), LocalStore(tmp_path).create()
    writers = [RankedWriter(InlineWriter([store], rank=rank), rank=rank, count=2, notes=notes) for rank in range(2)]

    def stage(rank, **tensors):
        partition = Partition(rank, 2, is_same_everywhere=lambda name: True)
        return StagingArea(partition=partition).take({"model": tensors or {"a": torch.ones(3), "b": torch.zeros(2)}})

    return writers, stage, store


def test_the_leader_merges_all_shards_and_together_they_are_the_state(group):
    (leader, other), stage, store = group
    other.write(stage(1), save(7))
    written = leader.write(stage(0), save(7))
    tensors = read_checkpoint(store, run_id="run", manifest=manifest_of(written, 7)).tensors
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {"model.a": [1, 1, 1], "model.b": [0, 0]}


def test_the_shard_of_another_step_is_not_taken_for_this_one(group):
    (leader, other), stage, _ = group
    other.write(stage(1), save(7))
    found = []
    waiting = threading.Thread(target=lambda: found.append(leader.write(stage(0), save(8))))
    waiting.start()
    waiting.join(0.3)
    assert waiting.is_alive()
    other.write(stage(1), save(8))
    waiting.join(30)
    assert {shard.key.split("/")[2] for shard in found[0].shards} == {"step-000000008"}


def test_a_part_that_was_given_up_leaves_no_checkpoint(group):
    (leader, other), stage, _ = group
    other.give_up(7)
    assert leader.write(stage(0), save(7)) is None


def test_a_rank_that_holds_another_state_is_found_out(group):
    (leader, other), stage, _ = group
    other.write(stage(1, a=torch.ones(3)), save(7))
    with pytest.raises(RankMismatchError) as raised:
        leader.write(stage(0), save(7))
    assert (raised.value.rank, raised.value.step) == (1, 7)


def test_a_leader_that_is_closed_no_longer_waits(group):
    (leader, other), stage, _ = group
    other.write(stage(1), save(6))
    found = []
    waiting = threading.Thread(target=lambda: found.append(leader.write(stage(0), save(7))))
    waiting.start()
    leader.stop_waiting()
    waiting.join(30)
    assert found == [None]
    assert leader.write(stage(0), save(6)) is not None, "all its parts are stored"


def test_a_whole_state_needs_no_other_rank_and_does_not_replace_bytes_of_an_earlier_save_of_its_step(group):
    (leader, _), stage, store = group
    leader.stop_waiting()
    assert leader.write(stage(0), save(7)) is None
    earlier = {item.key: store.get(item.key) for item in store.list_objects("run/")}
    partition = Partition(0, 2, is_same_everywhere=lambda name: True)
    whole = StagingArea(partition=partition).take({"model": {"a": torch.ones(3), "b": torch.zeros(2)}}, is_whole=True)
    written = leader.write(whole, replace(save(7), first_try=2))
    assert read_checkpoint(store, run_id="run", manifest=manifest_of(written, 7)).tensors.keys() == {
        "model.a",
        "model.b",
    }
    assert {key: store.get(key) for key in earlier} == earlier


def test_a_rank_that_cannot_store_its_part_is_named_where_the_leader_waits_and_forgotten_once_it_can(tmp_path):
    notes, store, faults = Notes(), LocalStore(tmp_path).create(), iter([True])
    failing = FaultyStore(store, fails=lambda operation, key: next(faults, False))
    leader = RankedWriter(InlineWriter([store]), rank=0, count=2, notes=notes)
    other = RankedWriter(InlineWriter([failing], rank=1), rank=1, count=2, notes=notes)

    def staged(rank):
        partition = Partition(rank, 2, is_same_everywhere=lambda name: True)
        return StagingArea(partition=partition).take({"model": {"a": torch.ones(3), "b": torch.zeros(2)}})

    own = staged(1)
    with pytest.raises(StoreWriteError):
        other.write(own, save(7))
    with pytest.raises(StoreWriteError, match="rank 1") as raised:
        leader.write(staged(0), save(7))
    assert "injected" in raised.value.why
    other.write(own, save(7))
    assert leader.write(staged(0), save(7)).tensor_count == 2
