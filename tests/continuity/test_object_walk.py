"""What a recipe's objects are made of, found without calling or loading anything of theirs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from segue.checkpoints.format.state_tree import encode_tree
from segue.continuity.data_hash import data_hashes
from segue.continuity.object_walk import Inspection, is_telling, settings_of
from segue.continuity.untracked.reach import Reach


def test_an_object_that_holds_itself_is_taken_apart_once():
    loop = SimpleNamespace(value=3)
    loop.loop = loop
    found = Inspection()
    found.add("x", loop)
    assert found.plain == {"x.value": 3}


class Mode(StrEnum):
    FAST = "fast"


class Lazy(Mapping):
    """Loads what it is asked for; so do many readers of files."""

    def __getitem__(self, key):
        raise AssertionError("was loaded")

    def __iter__(self):
        raise AssertionError("was loaded")

    def __len__(self):
        raise AssertionError("was loaded")


class Samples(Sequence):
    def __getitem__(self, index):
        raise AssertionError("was fetched")

    def __len__(self):
        return 100_000


def plain_of(value):
    found = Inspection()
    found.add("x", value)
    return {path: item for path, item in found.plain.items() if is_telling(path, item)}


@pytest.mark.parametrize(
    "value",
    [
        {"start_time": int(time.time())},
        {"last": time.time_ns()},
        {id(Mode): "a"},
        {"/tmp/run-1/a.jpg": 1},
        threading.Thread(),
        {"fd": 5, "native_id": 77, "_opid": 3},
        {"name": "20261121_152905"},
        {"device": "cuda:0"},
        os.environ,
        {Lazy},
    ],
    ids=["time", "nanoseconds", "address", "path", "thread", "numbers", "stamp", "device", "environ", "objects"],
)
def test_what_belongs_to_one_process_or_machine_is_no_setting(value):
    assert plain_of(value) == {}


@pytest.mark.parametrize(
    "value", [Lazy(), Samples(), SimpleNamespace(rows=Samples(), table=Lazy())], ids=["mapping", "sequence", "held"]
)
def test_nothing_is_loaded_or_fetched_by_looking(value):
    found = Inspection()
    found.add("x", value)
    data_hashes(found.arrays)
    reached = Reach("tests")
    reached.add("x", lambda: value)
    assert all(leaf.get() is not None for leaf in reached.leaves.values())


def test_a_string_of_an_enumeration_is_the_string_it_is():
    tree = encode_tree({"mode": Mode.FAST, "name": np.str_("a")}, path="x", tensors={})
    assert {key: type(value) for key, value in tree.items()} == {"mode": str, "name": str}
    assert json.loads(json.dumps(tree)) == tree


def test_long_tables_are_data_and_not_thousands_of_settings():
    found = Inspection()
    found.add("x", {"vocabulary": {f"word{n}": n for n in range(1000)}, "names": {f"n{n}" for n in range(1000)}})
    assert found.plain == {}
    hashes = data_hashes(found.arrays)
    found.arrays[0].value["word7"] = -1
    assert {path for path, now in data_hashes(found.arrays).items() if now != hashes[path]} == {"x.vocabulary"}


SHARDED = """
import json, os, sys
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from segue.continuity.object_walk import Inspection
from segue.continuity.untracked.reach import Reach

distributed.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
fully_shard(model[0], mesh=init_device_mesh("cpu", (1,)))
inspection, reach = Inspection(), Reach("__main__")
inspection.add("model", model)
reach.add("model", lambda: model, expression="model")
print(json.dumps(sorted([*inspection.plain, *(leaf.path for leaf in inspection.code), *reach.leaves])))
distributed.destroy_process_group()
"""


@pytest.mark.matrix
def test_a_sharded_model_has_the_same_paths_in_each_process(tmp_path):
    found = [
        json.loads(subprocess.check_output([sys.executable, "-c", SHARDED, tmp_path / str(number)], text=True))
        for number in range(2)
    ]
    assert found[0] == found[1]
    assert "model.1.out_features" in found[0]


def test_what_an_object_keeps_under_a_name_that_each_process_makes_up_is_left_out():
    model = torch.nn.Linear(2, 2)
    setattr(model, f"_state_{uuid.uuid4()}", [1])
    model.depth = 3
    assert [name for name, _ in settings_of(model)] == ["in_features", "out_features", "depth"]
    found, held = Inspection(), SimpleNamespace(**{f"key_{uuid.uuid4()}": 1, "depth": 3})
    found.add("held", held)
    assert found.plain == {"held.depth": 3}
    reach = Reach("tests")
    reach.add("held", lambda: held, expression="held")
    assert [*reach.leaves] == ["held.depth"]
