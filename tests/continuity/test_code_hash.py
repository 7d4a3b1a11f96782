"""Code has one hash in every process, and another when it does something else."""

from __future__ import annotations

import functools
import json
import random
import subprocess
import sys
import textwrap

import numpy as np
import pandas as pd
import pytest
from torch import nn
from torch.utils.data import DataLoader

from segue.continuity.code_hash import code_hashes

CODE_TEXT = '''
"""A module."""
import math
SMOOTHING = 0.1
_calls = 0

def helper(x):
    """Doubles."""
    return 2 * x

class Net:
    def forward(self, x):
        return helper(x) + SMOOTHING

def loss(net, batch):
    global _calls
    _calls += 1
    return net.forward(batch) * math.pi

def build(config):
    return Net(), loss
'''


def hashes_of_code(text, name="made_up_recipe"):
    """Marks of the module's `build`, in this process: what is compared is the code, not where it lies."""
    space = {"__name__": name}
    exec(compile(textwrap.dedent(text), "made-up", "exec"), space)
    return code_hashes([space["build"]], home=name)


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ("return 2 * x", "return 3 * x", {"helper"}),
        ("SMOOTHING = 0.1", "SMOOTHING = 0.2", {"globals of Net.forward.SMOOTHING"}),
        ("helper(x) + SMOOTHING", "helper(x) - SMOOTHING", {"Net.forward"}),
        ("* math.pi", "/ math.pi", {"loss"}),
        ("_calls += 1", "_calls += 2", {"loss"}),
        ('"""Doubles."""', '"""Twice as much."""', set()),
        ("return 2 * x", "return (2\\n            * x)  # a comment", set()),
        ("_calls = 0", "_calls = 7", set()),
        ('"""A module."""', '"""A module."""\\n\\n\\n', set()),
    ],
)
def test_code_is_told_by_what_it_does(old, new, changed):
    before = hashes_of_code(CODE_TEXT)
    now = hashes_of_code(CODE_TEXT.replace(old, new.replace("\\n", "\n")))
    names = {f"made_up_recipe.{name}" for name in ("build", "helper", "Net.forward", "loss")}
    assert set(before) == names | {"globals of made_up_recipe.Net.forward.SMOOTHING"}
    assert {name.replace("made_up_recipe.", "") for name in before if before[name] != now[name]} == changed


def test_code_of_libraries_is_not_looked_at():
    hashes = code_hashes(
        [nn.Linear, functools.partial, np.mean, random.random, DataLoader, pd.DataFrame], home="recipe"
    )
    assert hashes == {}


@pytest.mark.matrix
def test_another_process_gives_code_the_same_hashes(tmp_path):
    (tmp_path / "made_up_recipe.py").write_text(CODE_TEXT)
    ask = (
        "import made_up_recipe, json; from segue.continuity.code_hash import code_hashes; "
        "print(json.dumps(code_hashes([made_up_recipe.build], home='made_up_recipe')))"
    )
    env = {"PYTHONHASHSEED": "1", "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
    answer = subprocess.run([sys.executable, "-c", ask], env=env, capture_output=True, text=True, check=True).stdout
    assert json.loads(answer) == hashes_of_code(CODE_TEXT)


RECIPE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import segue


def layer(number):
    return type(f"Layer{number}", (nn.Linear,), {"forward": lambda self, x: nn.Linear.forward(self, x) + 1})


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = layer(1)(4, 4), layer(2)(4, 1)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


class Wide(nn.Sequential):
    def forward(self, x):
        return super().forward(x) / 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = Wide(Block(), nn.Linear(1, 1))

    def forward(self, x):
        return self.blocks(x)


def build(config):
    model = Net()
    data = DataLoader(TensorDataset(torch.zeros(8, 4)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return segue.Recipe(model=model, optimizer=optimizer, data=data, loss=lambda model, batch: model(batch[0]).mean())
"""

ASK = """
import json, mine
from segue.continuity.recipe_diff import CODE
from segue.data.loader import Feed
from segue.trainer.workloads.recipe_record import setup_components
from segue.trainer.workloads.components import Progress

recipe = mine.build({})
feed = Feed(recipe.data, recipe="mine", seed=0)
components = setup_components(recipe, feed, Progress(), build=mine.build, config={}, state={})
print(json.dumps(components[CODE].capture()))
"""


@pytest.mark.matrix
def test_a_model_of_several_own_classes_has_byte_identical_code_hashes_in_every_process(tmp_path):
    (tmp_path / "mine.py").write_text(RECIPE)

    def asked(seed):
        env = {"PYTHONHASHSEED": seed, "PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"}
        run = [sys.executable, "-c", ASK]
        return subprocess.run(run, env=env, capture_output=True, text=True, check=True).stdout

    answers = [asked(seed) for seed in ("0", "1")]
    assert "mine.Net.forward" in json.loads(answers[0])
    assert answers[0] == answers[1]
