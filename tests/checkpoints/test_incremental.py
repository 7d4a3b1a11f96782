"""Incremental saves: fewer bytes, the same state."""

from __future__ import annotations

import pytest
import torch

from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.snapshot import read_checkpoint, snapshot_of
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter, ProcessWriter
from segue.checkpoints.saving.written import Save
from segue.errors import CheckpointError, MissingShardError
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.spec import StoreSpec
from segue.stores import LocalStore
from segue.verification.drill_comparison import differing
from tests.support.manifests import manifest_of


@pytest.fixture
def state():
    """Nine tenths of it are never trained."""
    return {"model": {f"frozen{n}": torch.randn(9, 1000) for n in range(10)} | {"adapter": torch.randn(10, 1000)}}


@pytest.fixture(params=["inline", "process"])
def writer(request, tmp_path):
    made = (
        InlineWriter([LocalStore(tmp_path).create()])
        if request.param == "inline"
        else ProcessWriter([StoreSpec(url=LocalStore(tmp_path).create().url)])
    )
    yield made
    made.close()


def write(writer, area, state, step, base_step=None):
    staged = area.take(state)
    written = writer.write(staged, Save("run", "seg000-a1-e1", step, base_step=base_step))
    area.release(staged)
    return written


def test_what_did_not_change_is_not_stored_again_and_the_state_comes_back_whole(writer, state, tmp_path):
    area, store = StagingArea(), LocalStore(tmp_path).create()
    full = write(writer, area, state, 1)
    state["model"]["adapter"] += 1.0
    thin = write(writer, area, state, 2, base_step=1)
    assert full.new_bytes >= 3.5 * thin.new_bytes
    assert (full.saves_since_full, thin.saves_since_full) == (0, 1)
    found = read_checkpoint(store, run_id="run", manifest=manifest_of(thin, 2))
    for name, tensor in state["model"].items():
        assert torch.equal(found.tensors[f"model.{name}"], tensor), name


def test_a_third_save_refers_to_where_each_tensor_really_lies(writer, state, tmp_path):
    area, store = StagingArea(), LocalStore(tmp_path).create()
    write(writer, area, state, 1)
    state["model"]["frozen3"] += 1.0
    write(writer, area, state, 2, base_step=1)
    state["model"]["adapter"] += 1.0
    third = write(writer, area, state, 3, base_step=2)
    assert [shard.key.split("/")[2] for shard in third.shards] == [
        "step-000000003",
        "step-000000003",
        "step-000000001",
        "step-000000002",
    ]
    found = read_checkpoint(store, run_id="run", manifest=manifest_of(third, 3))
    assert all(torch.equal(found.tensors[f"model.{n}"], tensor) for n, tensor in state["model"].items())


def test_a_base_that_is_not_known_any_more_makes_a_full_save(writer, state, tmp_path):
    area = StagingArea()
    assert write(writer, area, state, 5, base_step=4).saves_since_full == 0


def test_when_nearly_all_changed_all_is_stored(writer, state):
    area = StagingArea()
    write(writer, area, state, 1)
    for tensor in state["model"].values():
        tensor.add_(1.0)
    again = write(writer, area, state, 2, base_step=1)
    assert len(again.shards) == 2
    assert again.saves_since_full == 0


def test_a_lost_earlier_shard_is_named(state, tmp_path):
    writer, area, store = InlineWriter([LocalStore(tmp_path).create()]), StagingArea(), LocalStore(tmp_path).create()
    full = write(writer, area, state, 1)
    state["model"]["adapter"] += 1.0
    thin = write(writer, area, state, 2, base_step=1)
    store.delete([f"run/{full.shards[0].key}"])
    with pytest.raises(MissingShardError) as caught:
        read_checkpoint(store, run_id="run", manifest=manifest_of(thin, 2))
    assert caught.value.key == full.shards[0].key


def test_a_manifest_that_leaves_out_a_shard_it_needs_is_refused(state, tmp_path):
    writer, area, store = InlineWriter([LocalStore(tmp_path).create()]), StagingArea(), LocalStore(tmp_path).create()
    write(writer, area, state, 1)
    state["model"]["adapter"] += 1.0
    thin = write(writer, area, state, 2, base_step=1)
    manifest = manifest_of(thin, 2).model_copy(update={"shards": thin.shards[:2]})
    with pytest.raises(CheckpointError):
        read_checkpoint(store, run_id="run", manifest=manifest)


def test_what_was_restored_serves_as_the_base_of_the_next_attempt(writer, state, tmp_path):
    area, store = StagingArea(), LocalStore(tmp_path).create()
    manifest = manifest_of(write(writer, area, state, 1), 1)
    stored = read_stored([store], run_id="run", manifest=manifest)
    other = InlineWriter([store])
    other.remember(1, stored.base)
    state = {"model": {name.removeprefix("model."): t.clone() for name, t in snapshot_of(stored).tensors.items()}}
    state["model"]["adapter"] += 1.0
    assert write(other, StagingArea(), state, 2, base_step=1).saves_since_full == 1


@pytest.mark.matrix
def test_a_run_with_frozen_weights_stores_a_quarter_and_ends_the_same(fork_server, make_spec, open_log):
    fields = {"recipe": "tests.recipes.frozen:build", "steps": 60, "config": {"pause_seconds": 0.01}}
    whole = make_spec(run_id="whole", **fields)
    fork_server.run_to_the_end(open_log(whole), whole)
    thin = make_spec(run_id="thin", checkpoints={"every_steps": 10, "keep": 2, "full_every": 4}, **fields)
    runlog = open_log(thin)
    stopped = thin.model_copy(update={"config": thin.config | {"raise_at_step": 35}})
    assert fork_server.run_attempt(runlog, stopped).stop_reason is StopReason.FAILED
    fork_server.run_to_the_end(runlog, thin)
    history = read_history(runlog.reload())
    assert history.attempts[-1].verdict.kind is VerdictKind.EXACT
    # Not what is only recorded: values outside the components, such as an iterator that this attempt has moved.
    assert differing(history.newest, read_history(open_log(whole)).newest) == ()
    sizes = [(c.manifest.saves_since_full, c.manifest.new_bytes) for c in history.checkpoints]
    full_bytes = max(new_bytes for since_full, new_bytes in sizes if since_full == 0)
    assert all(full_bytes >= 3.5 * new_bytes for since_full, new_bytes in sizes if since_full)
    assert {since_full for since_full, _ in sizes} == {0, 1, 2, 3}
    # Pruning left what the kept ones need: both read back whole.
    for checkpoint in history.usable:
        read_checkpoint(runlog.store, run_id="thin", manifest=checkpoint.manifest)
