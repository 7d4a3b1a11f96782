"""Checkpoints of several ranks: complete at any moment, the same for every kind of staging, damage reported by name."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.interop.export import ExportFormat, write_export
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.spec import RunSpec, StoreSpec
from segue.stores import LocalStore
from tests.recipes.ranked import even
from tests.support.single_rank import read_all

RANKS = 3


def truncate(path):
    path.write_bytes(path.read_bytes()[:-7])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


@pytest.fixture(scope="module")
def stopped(ranks_fork_server, tmp_path_factory):
    """A run that was stopped with checkpoints at 10 and 20."""
    spec = RunSpec.parse(
        {
            "run_id": "stopped",
            "recipe": "tests.recipes.ranked:noisy",
            "steps": 30,
            "threads": 1,
            "store": {"url": str(tmp_path_factory.mktemp("stopped") / "store")},
            "checkpoints": {"every_steps": 1000},
        }
    )
    runlog = open_run(spec, clock=SystemClock())
    for step in (10, 20):
        held = spec.model_copy(update={"config": {"at": [1, step, "notice"]}})
        ranks_fork_server.run_attempt(runlog, held, ranks=RANKS)
    return spec


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("damage", "shard"),
    [
        (flip_a_bit, "rank-2.safetensors"),
        pytest.param(truncate, "rank-2.json", marks=pytest.mark.matrix),
        pytest.param(Path.unlink, "rank-1.safetensors", marks=pytest.mark.matrix),
    ],
)
def test_damage_to_one_ranks_shard_is_named_and_all_ranks_use_the_previous_checkpoint(
    ranks_fork_server, stopped, tmp_path, damage, shard
):
    shutil.copytree(stopped.store.url, tmp_path / "store")
    spec = stopped.model_copy(update={"store": StoreSpec(url=str(tmp_path / "store"))})
    (part,) = tmp_path.glob(f"store/stopped/attempts/*/step-000000020/{shard}")
    damage(part)
    runlog = open_run(spec, clock=SystemClock())
    report = ranks_fork_server.run_attempt(runlog, spec, ranks=RANKS)
    assert (report.stop_reason, report.from_step) == (StopReason.FINISHED, 10)
    history = read_history(runlog)
    (quarantined,) = [c for c in history.checkpoints if c.quarantined]
    assert quarantined.manifest.step == 20
    assert shard in quarantined.quarantined
    assert history.attempts[-1].verdict.kind is VerdictKind.EXACT


@pytest.fixture
def committed(ranks_fork_server, make_spec, open_log):
    """Trains on two ranks, saving in some way; the committed checkpoints' manifests and states, by step."""

    def run(run_id, recipe, config, **checkpoints):
        spec = make_spec(
            run_id=run_id,
            recipe=f"tests.recipes.ranked:{recipe}",
            steps=40,
            config={"pause_seconds": 0.01} | config,
            checkpoints={"every_steps": 5, "keep": 20, "staging_buffers": 2} | checkpoints,
        )
        runlog = open_log(spec)
        report = ranks_fork_server.run_attempt(runlog, spec, ranks=2)
        assert report.stop_reason is StopReason.FINISHED, report.failure
        return {c.manifest.step: c.manifest for c in read_history(runlog).checkpoints}, read_all(runlog)

    return run


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("recipe", "config"),
    [pytest.param("noisy", {}, marks=pytest.mark.soak), ("even", {"sharded": True})],
    ids=["replicated", "sharded"],
)
def test_ranks_commit_the_same_state_for_every_kind_of_staging_and_storing(committed, recipe, config):
    manifests, states = committed("plain", recipe, config)
    ways = {"overlapped": {"staging": "overlapped"}, "incremental": {"full_every": 4}}
    for name, way in ways.items():
        others, found = committed(name, recipe, config, **way)
        shared = manifests.keys() & others.keys()
        assert 40 in shared
        assert len(shared) > 2
        for step in shared:
            assert others[step].components == manifests[step].components
            assert all(torch.equal(found[step][key], tensor) for key, tensor in states[step].items())
            assert found[step].keys() == states[step].keys()
    assert max(manifest.saves_since_full for manifest in others.values()) > 0


@pytest.fixture(scope="module")
def sharded_run(ranks_fork_server, tmp_path_factory):
    """A run of three ranks whose model is sharded, in a store and on a fast disk, with checkpoints at 10, 20 and 30."""
    folder = tmp_path_factory.mktemp("sharded")
    spec = RunSpec.parse(
        {
            "run_id": "sharded",
            "recipe": "tests.recipes.ranked:even",
            "steps": 30,
            "config": {"sharded": True},
            "threads": 1,
            "store": {"url": str(folder / "store")},
            "checkpoints": {"every_steps": 1000, "keep": 2, "fast_folder": str(folder / "fast")},
        }
    )
    runlog = open_run(spec, clock=SystemClock())
    for at in ([1, 10, "notice"], [2, 20, "notice"], None):
        held = spec.model_copy(update={"config": spec.config | {"at": at}})
        ranks_fork_server.run_attempt(runlog, held, ranks=RANKS)
    return spec, runlog


@pytest.mark.matrix
@pytest.mark.parametrize("tier", [pytest.param("store", marks=pytest.mark.soak), "fast"])
def test_pruning_deletes_every_ranks_shard(sharded_run, tier):
    spec, runlog = sharded_run
    assert [(c.manifest.step, c.is_pruned) for c in read_history(runlog).checkpoints] == [
        (10, True),
        (20, False),
        (30, False),
    ]
    root = Path(spec.store.url).parent / tier
    kept = {(path.parent.name, path.name) for path in root.rglob("rank-*")}
    endings = ["json", "safetensors", *(["commit.json"] if tier == "store" else [])]
    names = [f"rank-{rank}.{ending}" for rank in range(RANKS) for ending in endings]
    assert kept == {(f"step-{step:09d}", name) for step in (20, 30) for name in names}


@pytest.mark.matrix
def test_with_a_damaged_fast_disk_each_shard_is_read_from_the_store(sharded_run):
    spec, runlog = sharded_run
    newest = read_history(runlog).newest.manifest
    fast = LocalStore(Path(spec.checkpoints.fast_folder)).create()
    whole = read_checkpoint(runlog.store, run_id=spec.run_id, manifest=newest).tensors
    (part,) = Path(spec.checkpoints.fast_folder).rglob("step-000000030/rank-1.safetensors")
    flip_a_bit(part)
    found = read_checkpoint(runlog.store, run_id=spec.run_id, manifest=newest, fast=fast).tensors
    assert all(torch.equal(found[name], tensor) for name, tensor in whole.items())


@pytest.mark.matrix
def test_a_sharded_checkpoint_is_exported_as_whole_tensors(sharded_run, tmp_path):
    _, runlog = sharded_run
    write_export(runlog, read_history(runlog).newest, file_format=ExportFormat.TORCH, folder=tmp_path / "out")
    state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    alone = even({})
    alone.model.load_state_dict(state)
    tensors = read_all(runlog)[30]
    assert all(torch.equal(tensors[f"model.state.{name}"], value) for name, value in state.items())
    assert state.keys() == alone.model.state_dict().keys()
