"""A fast folder before the durable store: it is a shortcut, and whatever becomes of it, nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from segue.checkpoints.loading.read import read_stored
from segue.checkpoints.loading.select import newest_valid
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import Save
from segue.errors import MissingShardError, SegueError
from segue.records import StopReason, VerdictKind
from segue.runlog.history import read_history
from segue.runlog.log import RunLog
from segue.stores import LocalStore, StoreWriteError, open_store
from segue.testing.faulty_store import FaultyStore
from tests.support.manifests import manifest_of


class Watched(FaultyStore):
    """A store that works, and a list of the calls to it, in order."""

    def __init__(self, name, inner, calls, *, broken=()):
        def fails(operation, key):
            calls.append((name, operation, key.rpartition("/")[2]))
            return operation in broken

        super().__init__(inner, fails=fails)


@pytest.fixture
def stores(tmp_path):
    return LocalStore(tmp_path / "fast").create(), LocalStore(tmp_path / "durable").create()


def state(fill=1.0):
    return {"model": {"w": torch.full((400_000,), fill)}, "progress": {"step": 1}}


def save(tiers, tree, step=1, base_step=None, writer=None):
    writer = writer or InlineWriter(tiers)
    area = StagingArea()
    staged = area.take(tree)
    written = writer.write(staged, Save("run", "seg000-a1-e1", step, base_step=base_step))
    area.close()
    return manifest_of(written, step)


def assert_reads(durable, manifest, tree, *, fast=None):
    found = read_checkpoint(durable, run_id="run", manifest=manifest, fast=fast)
    assert torch.equal(found.tensors["model.w"], tree["model"]["w"])
    assert found.skeletons["progress"] == tree["progress"]


def test_the_fast_folder_gets_every_object_first_and_the_durable_store_gets_the_same_bytes(stores):
    fast, durable = stores
    calls = []
    save([Watched("fast", fast, calls), Watched("durable", durable, calls)], state())
    assert calls == [
        ("fast", "put", "rank-0.safetensors"),
        ("durable", "put", "rank-0.safetensors"),
        ("fast", "put", "rank-0.json"),
        ("durable", "put", "rank-0.json"),
    ]
    assert fast.list_objects("") == durable.list_objects("")
    assert all(fast.get(item.key) == durable.get(item.key) for item in fast.list_objects(""))


def test_a_restore_reads_nothing_from_the_durable_store_while_the_fast_one_is_whole(stores):
    fast, durable = stores
    manifest, calls = save(stores, state()), []
    stored = read_stored([fast, Watched("durable", durable, calls)], run_id="run", manifest=manifest)
    assert bytes(stored.tensors["model.w"][1]) == state()["model"]["w"].numpy().tobytes()
    assert calls == []


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 0x04
    path.write_bytes(data)


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def grow(path):
    path.write_bytes(path.read_bytes() + b"\0")


def put_an_older_one_there(path):
    other = LocalStore(path.parents[4]).create()
    save([other], state(fill=7.0))


def put_a_folder_there(path):
    path.unlink()
    path.mkdir()


def leave_it(path):
    return


DAMAGES = [flip_a_bit, truncate, grow, Path.unlink, put_an_older_one_there, put_a_folder_there, leave_it]


@pytest.mark.parametrize("name", ["rank-0.safetensors", "rank-0.json"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_missing_or_stale_in_the_fast_folder_comes_from_the_durable_store(stores, damage, name):
    fast, durable = stores
    manifest = save(stores, state())
    damage(fast.root / "run/attempts/seg000-a1-e1/step-000000001" / name)
    assert_reads(durable, manifest, state(), fast=fast)
    assert_reads(durable, manifest, state())


@pytest.mark.parametrize("operation", ["size", "read_into"])
def test_a_fast_folder_that_cannot_be_read_is_passed_over(stores, operation):
    fast, durable = stores
    manifest = save(stores, state())
    assert_reads(durable, manifest, state(), fast=Watched("fast", fast, [], broken=[operation]))


def test_what_only_the_fast_folder_has_is_restored_too(stores):
    fast, durable = stores
    manifest = save(stores, state())
    shutil.rmtree(durable.root / "run")
    assert_reads(durable, manifest, state(), fast=fast)
    with pytest.raises(MissingShardError):
        read_checkpoint(durable, run_id="run", manifest=manifest)


@pytest.mark.parametrize("url", ["/proc/nowhere", "/dev/full/fast"])
def test_a_fast_folder_that_cannot_be_written_does_not_stop_the_save(stores, url):
    _, durable = stores
    assert_reads(durable, save([LocalStore(Path(url)), durable], state()), state())


def test_a_full_fast_folder_does_not_stop_the_save_and_what_it_has_is_still_used(stores):
    fast, durable = stores
    full = FaultyStore(fast, fails=lambda operation, key: operation == "put" and key.endswith(".safetensors"))
    manifest, calls = save([full, durable], state()), []
    assert_reads(Watched("durable", durable, calls), manifest, state(), fast=fast)
    assert {key for _, _, key in calls} == {"rank-0.safetensors"}


def test_a_durable_store_that_fails_stops_the_save_though_the_fast_one_has_it(stores):
    fast, durable = stores
    with pytest.raises(StoreWriteError):
        save([fast, Watched("durable", durable, [], broken=["put"])], state())


@pytest.fixture
def stopped(fork_server, make_spec, open_log, tmp_path):
    """A run with a fast folder that was given notice after two commits, and that has some more to go."""
    checkpoints = {"every_steps": 10, "keep": 2, "fast_folder": str(tmp_path / "fast")}
    spec = make_spec(steps=10**6, config={"pause_seconds": 0.005}, checkpoints=checkpoints)
    runlog = open_log(spec)

    def give_notice(pid, log, plan):
        if len(read_history(log).checkpoints) < 2:
            return False
        os.kill(pid, signal.SIGTERM)
        return True

    assert fork_server.run_attempt(runlog, spec, observer=give_notice).stop_reason is StopReason.NOTICE
    newest = read_history(runlog).newest
    assert newest.rows
    return spec.model_copy(update={"steps": newest.manifest.step + 20})


def shard_folders(root):
    return {str(path.parent.relative_to(root)) for path in Path(root).rglob("rank-0.*")}


def objects(root):
    return {str(p.relative_to(root)): p.read_bytes() for p in Path(root).rglob("rank-0.*")}


def lose_the_fast_folder(spec):
    shutil.rmtree(spec.checkpoints.fast_folder)


def spoil_the_fast_folder(spec):
    for path in Path(spec.checkpoints.fast_folder).rglob("rank-0.*"):
        flip_a_bit(path)


def lose_the_durable_bytes(spec):
    shutil.rmtree(Path(spec.store.url) / "tiny" / "attempts")


@pytest.mark.matrix
@pytest.mark.parametrize("loss", [lose_the_fast_folder, spoil_the_fast_folder, lose_the_durable_bytes])
def test_a_resume_is_exact_from_whichever_tier_is_left_and_pruning_tidies_both(fork_server, stopped, loss):
    loss(stopped)
    runlog = RunLog(open_store(stopped.store), "tiny").reload()
    fork_server.run_to_the_end(runlog, stopped)
    history = read_history(runlog.reload())
    assert history.attempts[-1].verdict.kind is VerdictKind.EXACT
    assert all(checkpoint.quarantined is None for checkpoint in history.checkpoints)
    fast, durable = stopped.checkpoints.fast_folder, stopped.store.url
    kept = {str(Path("tiny", shard.key).parent) for c in history.usable for shard in c.manifest.shards}
    assert shard_folders(durable) <= kept
    assert shard_folders(fast) <= kept
    newest = {f"tiny/{shard.key}" for shard in history.newest.manifest.shards}
    assert newest <= objects(fast).keys() & objects(durable).keys()
    assert all(objects(fast)[key] == objects(durable)[key] for key in newest)


@pytest.mark.matrix
def test_a_save_does_not_build_on_durable_bytes_that_only_the_fast_folder_still_has(fork_server, make_spec, open_log):
    """Incremental saves refer to earlier shards; after a resume from the fast folder those were not read."""
    folder = Path(make_spec().store.url).with_name("fast")
    checkpoints = {"every_steps": 10, "keep": 2, "full_every": 8, "fast_folder": str(folder)}
    fields = {"recipe": "tests.recipes.frozen:build", "steps": 40, "checkpoints": checkpoints}
    spec = make_spec(config={"pause_seconds": 0.01}, **fields)
    runlog = open_log(spec)
    failing = spec.model_copy(update={"config": spec.config | {"raise_at_step": 25}})
    assert fork_server.run_attempt(runlog, failing).stop_reason is StopReason.FAILED
    for path in Path(spec.store.url).rglob("rank-0.safetensors"):
        flip_a_bit(path)
    fork_server.run_to_the_end(runlog, spec)
    shutil.rmtree(folder)  # The machine is gone, and its fast folder with it.
    history = read_history(RunLog(open_store(spec.store), "tiny").reload())
    read_checkpoint(open_store(spec.store), run_id="tiny", manifest=history.newest.manifest)


@pytest.mark.matrix
def test_a_machine_that_is_too_small_for_a_checkpoint_does_not_quarantine_it(stopped, monkeypatch):
    """It is as whole as it was; the next machine may be larger, and must not find that the run has lost everything."""
    runlog, sysconf = RunLog(open_store(stopped.store), "tiny").reload(), os.sysconf
    monkeypatch.setattr(os, "sysconf", lambda name: 1 if name == "SC_PHYS_PAGES" else sysconf(name))
    with suppress(SegueError):
        newest_valid(runlog, epoch=2)
    monkeypatch.undo()
    history = read_history(runlog.reload())
    assert [c.quarantined for c in history.checkpoints if c.quarantined] == []
    assert newest_valid(runlog, epoch=2).checkpoint.ref == history.newest.ref
