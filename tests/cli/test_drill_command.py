"""`segue drill` as a real process: its exit codes, and where a recipe that raises is to be corrected."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from segue.resume_drill import drill

RECIPE = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import segue


class Scale(nn.Module):
    def forward(self, x):
        return 2 * x


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.scale = nn.Linear(8, 8), Scale()

    def forward(self, x):
        return torch.relu(self.linear(self.scale(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, x):
        return x + self.layers(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.head = Block(), nn.Linear(8, 1)

    def forward(self, x):
        return self.head(self.block(x))


class Torn(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        raise KeyError("no row of that name")


def build(config):
    raises = config.get("raises")
    if raises == "build":
        raise ValueError("no such column")
    if raises == "tuple":
        return Net(), None
    x = torch.randn(128, 8)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def loss(model, batch):
        if raises == "loss":
            raise ArithmeticError("a bad loss")
        found = nn.functional.mse_loss(model(batch[0]), batch[1])
        return found.item() if raises == "item" else found

    data = Torn() if raises == "data" else TensorDataset(x, x.sum(1, keepdim=True))
    return segue.Recipe(model=model, optimizer=optimizer, data=DataLoader(data, batch_size=16, shuffle=True), loss=loss)
"""
QUICK = ("--steps", "90", "--kills", "1")


class Ended(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    (tmp_path / "mine.py").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def without_progress(err: str) -> list[str]:
    """The lines that say more than how far the drill is."""
    return [line for line in err.strip().splitlines() if not re.search(r"step \d+ of \d+( \(.* so far\))?$", line)]


def segue(*arguments: str) -> Ended:
    command = [str(Path(sys.executable).with_name("segue")), *arguments]
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=170)
    return Ended(run.returncode, run.stdout, run.stderr)


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(RECIPE.splitlines(), 1) if text in line)


@pytest.mark.soak
def test_a_model_of_several_own_classes_is_the_same_in_every_process(folder):
    code, out, err = segue("drill", "mine:build", *QUICK)  # Each process has its own seed of hashes.
    assert (code, without_progress(err)) == (0, []), out + err
    assert out.endswith("identical to that of the uninterrupted run; verdict: exact\n")


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("raises", "raised", "function", "line"),
    [
        pytest.param("build", "ValueError", "build", 'raise ValueError("no such column")', marks=pytest.mark.soak),
        ("loss", "ArithmeticError", "loss", 'raise ArithmeticError("a bad loss")'),
        pytest.param(
            "data", "KeyError", "__getitem__", 'raise KeyError("no row of that name")', marks=pytest.mark.soak
        ),
    ],
)
def test_what_a_recipe_raises_comes_with_its_line_and_traceback(folder, raises, raised, function, line):
    (folder / "run.toml").write_text(f"[config]\nraises = '{raises}'\n")
    code, out, err = segue("drill", "mine:build", *QUICK, "--config", "run.toml")
    assert (code, out) == (1, "")
    *traceback, sentence = without_progress(err)
    assert f": {raised} at mine.py, line {line_of(line)} in {function}: " in sentence
    assert sentence.startswith("segue: no drill of mine:build was made, because mine:build fails without a kill too: ")
    assert traceback[0] == "Traceback (most recent call last):"
    assert any(f'mine.py", line {line_of(line)}, in {function}' in text for text in traceback)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("raises", "said", "fix"),
    [
        (
            "item",
            f"Recipe.loss (mine.py, line {line_of('def loss')}) returned a float",
            "return the tensor, not loss.item() or float(loss)",
        ),
        pytest.param(
            "tuple",
            "build returned a tuple, not a segue.Recipe",
            "return segue.Recipe(model=..., optimizer=...",
            marks=pytest.mark.soak,
        ),
    ],
)
def test_what_no_step_can_be_made_of_is_refused_in_one_paragraph_with_the_fix(folder, raises, said, fix):
    (folder / "run.toml").write_text(f"[config]\nraises = '{raises}'\n")
    code, out, err = segue("drill", "mine:build", *QUICK, "--config", "run.toml")
    assert (code, out) == (1, "")
    assert said in err
    assert f"Fix: {fix}" in err
    assert (err.count("Fix:"), len(without_progress(err))) == (1, 1)


def test_the_help_shows_the_name_of_the_table_in_brackets():
    code, out, _ = segue("drill", "--help")
    assert code == 0
    assert "[config]" in " ".join(out.split())


@pytest.mark.soak
def test_from_python_a_drill_is_one_call_with_the_config_of_the_recipe(tmp_path):
    report = drill("segue.testing.recipes:tiny", config={"width": 8}, steps=30, kills=1)
    assert report.passed, report
    assert (report.kills, report.verdict, report.differing) == (1, "exact", ())
    assert json.loads(report.model_dump_json())["recipe"] == "segue.testing.recipes:tiny"
