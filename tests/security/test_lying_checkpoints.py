"""A checkpoint that lies, with checksums that fit, is named as malformed, and the one before it is taken."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import crc32c
import pytest
import torch

from segue.checkpoints.format.layout import MOST_LEVELS
from segue.checkpoints.format.snapshot import take
from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.checkpoints.loading.select import newest_valid
from segue.checkpoints.loading.snapshot import read_checkpoint
from segue.checkpoints.saving.staging import StagingArea
from segue.checkpoints.saving.writer_client import InlineWriter
from segue.checkpoints.saving.written import PreparedCommit, Save
from segue.errors import CheckpointError, MalformedCheckpointError, UnsupportedStateError
from segue.records import Environment, Manifest
from segue.runlog import keys
from segue.runlog.history import read_history
from segue.spec import RunSpec
from segue.stores import LocalStore
from segue.stores.base import is_key
from tests.checkpoints.test_adoption import Run

ENVIRONMENT = Environment(torch="2", device="cpu", instruction_set="AVX2", threads=1)
STATE = {
    "model": {"w": torch.arange(6.0), "b": torch.zeros(2, 2, dtype=torch.int64)},
    "optimizer": {"state": {0: {"step": torch.tensor(3.0)}}, "groups": [{"lr": 0.1, "betas": (0.9, 0.99)}]},
    "progress": {"step": 3, "names": {"a", "b"}, "last": float("nan"), "key": b"abc"},
}
JUNK = [
    None,
    True,
    -1,
    0,
    1,
    2**70,
    10**400,
    1e308,
    "",
    "x",
    "model.w",
    "$tensor",
    [],
    [[]],
    {},
    {"a": 1},
    [6],
    [2**62],
]
JUNK += [
    {"$tensors": 5},
    {"$pairs": 7},
    {"$counter": [[[], 1]]},
    {"$scalar": ["V8", 10**12]},
    {"$scalar": ["<f8", "x"]},
]
JUNK += [{"$bytes": "é"}, {"$float": []}, {"$set": [[1]]}, {"$tensor": "nope"}, {"$array": "model.w"}, {"$tuple": 3}]
JUNK += ["float32", "float128", "\ud800", "a\x00b", "../x", ["model.w", [6], [0]], ["zzz", [2**62], [0]]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A store with a checkpoint of the state, its manifest, and its index as data."""
    store = LocalStore(tmp_path_factory.mktemp("lies")).create()
    written = InlineWriter([store]).write(StagingArea().take(STATE), Save("run", "seg000-a1-e1", 3))
    facts = {"step": 3, "samples_seen": 3, "epoch": 0, "environment": ENVIRONMENT}
    manifest = Manifest(
        shards=written.shards, tensor_count=written.tensor_count, components=written.components, **facts
    )
    assert set(read_checkpoint(store, run_id="run", manifest=manifest).skeletons) == set(STATE)
    return store, manifest


def with_bytes(store, manifest, suffix, data):
    """The manifest with one of its objects replaced, and checksums that fit."""
    at = next(at for at, shard in enumerate(manifest.shards) if shard.key.endswith(suffix))
    shard = manifest.shards[at]
    key = f"{shard.key.removesuffix(suffix)}-lie{suffix}"
    store.put(f"run/{key}", data, durable=False)
    starts = range(0, len(data), shard.chunk_bytes)
    sums = tuple(crc32c.crc32c(data[start : start + shard.chunk_bytes]) for start in starts)
    lie = replace(shard, key=key, size_bytes=len(data), chunk_crc32c=sums)
    return manifest.model_copy(update={"shards": (*manifest.shards[:at], lie, *manifest.shards[at + 1 :])})


def object_of(store, manifest, suffix):
    return store.get("run/" + next(shard.key for shard in manifest.shards if shard.key.endswith(suffix)))


def lied(data, rolls):
    """The data with junk in one place, an item removed, renamed or doubled."""
    places = []

    def walk(node):
        for key in list(node) if isinstance(node, dict) else range(len(node)):
            places.append((node, key))
            if isinstance(node[key], (dict, list)):
                walk(node[key])

    walk(data)
    node, key = rolls.choice(places)
    match rolls.randrange(5):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[rolls.choice(["x", "$tensor", "$pairs", "model.w", "\ud800", ""])] = node.pop(key)
        case 2 if isinstance(node, list):
            node.append(node[key])
        case _:
            node[key] = json.loads(json.dumps(rolls.choice(JUNK)))
    return data


def is_read_or_refused(store, manifest):
    """Whether it is read; a checkpoint that is refused is named. Anything else that is raised fails the test."""
    try:
        snapshot = read_checkpoint(store, run_id="run", manifest=manifest)
    except CheckpointError:
        return False
    for skeleton in snapshot.skeletons.values():
        below_many_calls(150, lambda skeleton=skeleton: decode_tree(skeleton, snapshot.tensors))
    return True


def below_many_calls(count, act):
    """A restore is deeper in the stack than the check of what is restored."""
    return act() if count == 0 else below_many_calls(count - 1, act)


def test_an_index_with_any_lie_is_read_or_refused(saved):
    store, manifest = saved
    good, rolls = object_of(store, manifest, ".json"), random.Random(7)
    outcomes = []
    for _ in range(400):
        data = json.loads(good)
        for _ in range(rolls.choice([1, 1, 1, 2, 4])):
            data = lied(data, rolls)
        outcomes.append(is_read_or_refused(store, with_bytes(store, manifest, ".json", json.dumps(data).encode())))
    assert 0.5 < outcomes.count(False) / len(outcomes) < 1, "some lies are about nothing that is read"


@pytest.mark.parametrize("suffix", [".json", ".safetensors"])
def test_whatever_bytes_are_changed_it_is_read_or_refused(saved, suffix):
    store, manifest = saved
    good, rolls = object_of(store, manifest, suffix), random.Random(8)
    header = int.from_bytes(good[:8], "little") + 8 if suffix == ".safetensors" else len(good)
    for _ in range(200):
        data = bytearray(good)
        for _ in range(rolls.randint(1, 4)):
            data[rolls.randrange(min(header, 600))] = rolls.randrange(256)
        is_read_or_refused(store, with_bytes(store, manifest, suffix, bytes(data)))


def test_a_header_of_a_shard_with_any_lie_is_read_or_refused(saved):
    store, manifest = saved
    good, rolls = object_of(store, manifest, ".safetensors"), random.Random(9)
    length = int.from_bytes(good[:8], "little")
    refused = 0
    for _ in range(200):
        text = json.dumps(lied(json.loads(good[8 : 8 + length]), rolls)).encode()
        data = len(text).to_bytes(8, "little") + text + good[8 + length :]
        refused += not is_read_or_refused(store, with_bytes(store, manifest, ".safetensors", data))
    assert refused > 100


def test_a_manifest_with_any_lie_is_read_or_refused(saved):
    store, manifest = saved
    rolls, refused = random.Random(10), 0
    for _ in range(200):
        data = lied(json.loads(manifest.model_dump_json()), rolls)
        try:
            lie = Manifest.model_validate(data)
        except ValueError:
            refused += 1
            continue
        refused += not is_read_or_refused(store, lie)
    assert refused > 100


def nested(count, *, pair=("[", "]")):
    return pair[0] * count + "1" + pair[1] * count


@pytest.mark.parametrize("pair", [("[", "]"), ('{"a":', "}"), ('{"$tuple":[', "]}"), ('{"$pairs":[[1,', "]]}")])
@pytest.mark.parametrize("count", [300, 480, 900, 5000])
def test_a_deep_tree_is_refused_before_it_ends_the_recursion_of_a_restore(saved, pair, count):
    store, manifest = saved
    data = json.loads(object_of(store, manifest, ".json"))
    data["skeletons"]["progress"] = "@@"
    text = json.dumps(data).replace('"@@"', nested(count, pair=pair))
    is_read_or_refused(store, with_bytes(store, manifest, ".json", text.encode()))


def test_the_levels_are_counted_where_the_index_is_read(saved):
    """Between what a save permits and what ends the recursion here, a tree would be read, and end that of a restore."""
    store, manifest = saved
    data = json.loads(object_of(store, manifest, ".json"))
    data["skeletons"]["progress"] = json.loads(nested(3 * MOST_LEVELS + 2))
    with pytest.raises(MalformedCheckpointError, match="more than 300 levels"):
        read_checkpoint(store, run_id="run", manifest=with_bytes(store, manifest, ".json", json.dumps(data).encode()))


def deep(count, make):
    tree = 1
    for _ in range(count):
        tree = make(tree)
    return tree


@pytest.mark.parametrize("make", [lambda t: [t], lambda t: {"a": t}, lambda t: (t,), lambda t: {1: t}])
def test_a_state_as_deep_as_a_save_permits_is_read_back_and_a_deeper_one_is_refused_at_the_save(saved, make):
    store, manifest = saved
    tree = deep(MOST_LEVELS, make)
    data = json.loads(object_of(store, manifest, ".json"))
    data["skeletons"]["progress"] = encode_tree(tree, path="progress", tensors={})
    lie = with_bytes(store, manifest, ".json", json.dumps(data).encode())
    snapshot = read_checkpoint(store, run_id="run", manifest=lie)
    assert decode_tree(snapshot.skeletons["progress"], {}) == tree
    with pytest.raises(UnsupportedStateError, match="progress"):
        take({"progress": make(tree)})


def test_memory_and_the_store_are_no_damage(saved, monkeypatch):
    store, manifest = saved

    def too_much(*_, **__):
        raise MemoryError

    monkeypatch.setattr("segue.checkpoints.loading.read.digests_of", too_much)
    with pytest.raises(MemoryError):
        read_checkpoint(store, run_id="run", manifest=manifest)


@pytest.mark.parametrize("key", ["a" * 256, "/".join(["a" * 200] * 6), "a\x00b", "a\ud800"])
def test_a_key_that_no_store_can_have_is_malformed_and_not_unreadable(saved, key):
    store, manifest = saved
    assert not is_key(key)
    lie = manifest.model_copy(update={"shards": (replace(manifest.shards[0], key=f"{key}.json"), *manifest.shards[1:])})
    with pytest.raises(MalformedCheckpointError):
        read_checkpoint(store, run_id="run", manifest=lie)


@pytest.mark.parametrize(
    "change",
    [
        lambda index: index["skeletons"].update(model={"$tensors": 5}),
        lambda index: index["skeletons"].update(model={"$pairs": 7}),
        lambda index: index["skeletons"].update(model={"$scalar": ["V8", 10**12]}),
        lambda index: index["skeletons"].update(nodel=index["skeletons"].pop("model")),
        lambda index: index["skeletons"].update(model=json.loads(nested(900, pair=('{"a":', "}")))),
    ],
)
def test_the_sound_checkpoint_before_a_lying_one_is_taken(tmp_path, change):
    spec = {"run_id": "r", "recipe": "segue.testing.recipes:tiny", "steps": 1000, "store": {"url": str(tmp_path)}}
    run = Run(RunSpec.parse(spec))
    plan, claim = run.begin()
    run.save(claim, 100)
    run.commit(claim, 100)
    run.save(claim, 200)
    store = run.log.store
    key = f"r/{keys.prepared_name(claim.attempt_id, 200, 0)}"
    prepared = PreparedCommit.decode(store.get(key))
    at = next(at for at, shard in enumerate(prepared.written.shards) if shard.key.endswith(".json"))
    shard = prepared.written.shards[at]
    index = json.loads(store.get(f"r/{shard.key}"))
    change(index)
    data = json.dumps(index).encode()
    store.put(f"r/{shard.key}", data)
    shards = list(prepared.written.shards)
    shards[at] = replace(shard, size_bytes=len(data), chunk_crc32c=(crc32c.crc32c(data),))
    lie = replace(prepared, written=replace(prepared.written, shards=tuple(shards)))
    store.put(key, lie.encode())
    run.dies(plan)
    _, second = run.begin()
    assert newest_valid(run.log, epoch=second.epoch).checkpoint.manifest.step == 100
    reasons = [checkpoint.quarantined for checkpoint in read_history(run.log).checkpoints]
    assert reasons[0] is None
    assert "malformed" in reasons[1] or "cannot be" in reasons[1] or "differ" in reasons[1]


@pytest.mark.parametrize(
    ("name", "junk"),
    [
        (n, j)
        for n in ("shards", "components", "tensor_count", "new_bytes", "saves_since_full")
        for j in ("x", 5.5, [5], {"a": 5}, None)
    ],
)
def test_a_prepared_commit_with_another_type_is_none(saved, name, junk):
    _, manifest = saved
    written = {"shards": [s.to_json() for s in manifest.shards], "components": dict(manifest.components)}
    written |= {"tensor_count": 1, "new_bytes": 1, "saves_since_full": 0}
    body = json.dumps({"facts": {}, "written": written | {name: junk}, "partition_hash": "x"}).encode()
    assert PreparedCommit.decode(b"%08x " % crc32c.crc32c(body) + body) is None
