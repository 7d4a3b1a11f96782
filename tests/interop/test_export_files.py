"""State of every kind as plain files: tied weights, views, types that other tools do not load, odd names."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import date
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from segue.checkpoints.format import state_tree
from segue.checkpoints.format.collections import COLLECTION_TAGS
from segue.checkpoints.format.constants import CONSTANT_TAG
from segue.checkpoints.format.snapshot import Snapshot, take
from segue.checkpoints.format.state_tree import decode_tree, encode_tree
from segue.errors import MalformedCheckpointError
from segue.interop.export_files import file_stems, loadable, write_state
from segue.trainer.workloads.components import ModelState

RICH = {
    "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
    "scalars": [np.float32(0.1), np.int8(-3), np.bool_(True)],
    "odd floats": (float("inf"), float("-inf"), -0.0),
    "bytes": [b"", b"\x00\xff"],
    "sets": [set(), {1, 2}],
    "counter": Counter({3: 2}),
    "tensors alone": {"a": torch.ones(1), "b.c": torch.zeros(2, 0)},
    "pairs": {1: torch.arange(3), "$tensor": "no tag"},
    "types": [torch.ones(2, dtype=torch.bfloat16), torch.zeros(0), torch.tensor(True)],
    "nothing": None,
}


def plain(tree: object) -> object:
    """With numbers and lists where `==` would not do."""
    if isinstance(tree, (torch.Tensor, np.ndarray)):
        return (str(tree.dtype).removeprefix("torch."), tree.tolist())
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(item) for item in tree] if isinstance(tree, (list, tuple)) else tree


def write(folder: Path, *, file_format: str, model: object = None, **components: object) -> dict[str, object]:
    """The objects that the README's own code loaded an export of these components into, by name."""
    model = {"state": {"w": torch.ones(1)}, "metadata": {}} if model is None else model
    write_state(folder, take({"model": model} | components), file_format=file_format, progress=lambda doing: None)
    loaded: dict[str, object] = {}

    def target(name: str) -> SimpleNamespace:
        return SimpleNamespace(load_state_dict=lambda state: loaded.__setitem__(name, state))

    class Extra(dict):
        def __missing__(self, key: str) -> SimpleNamespace:
            return target(f"extra.{key}")

    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    exec(code, {"model": target("model"), "scaler": target("scaler"), "extra": Extra()})
    return loaded


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)  # The README's code reads the files beside it.
    return tmp_path


def test_safetensors_give_back_state_of_every_kind_as_it_was(folder):
    found = write(folder, file_format="safetensors", **{"extra.rich": RICH, "scaler": {"scale": 65536.0}})
    assert plain(found["extra.rich"]) == plain(RICH)
    assert [type(value) for value in found["extra.rich"]["scalars"]] == [np.float32, np.int8, np.bool_]
    assert type(found["extra.rich"]["counter"]) is Counter
    assert found["scaler"] == {"scale": 65536.0}


def test_torch_files_give_back_state_of_every_kind_with_weights_only(folder):
    found = write(folder, file_format="torch", **{"extra.rich": RICH})["extra.rich"]
    assert plain(found) == plain(RICH)
    assert isinstance(found["array"], torch.Tensor)
    assert [type(value) for value in found["scalars"]] == [float, int, bool]
    assert found["scalars"][0] == float(np.float32(0.1))
    assert type(found["counter"]) is Counter


MOMENTS = {
    "day": date(2026, 2, 28),
    "share": Fraction(1, 3),
    "hour": np.datetime64("2026-02-28T01"),
    "hours": np.array(["2026-02-28T01", "NaT"], dtype="datetime64[h]"),
}


def test_safetensors_give_back_times_and_the_text_of_constants(folder):
    found = write(folder, file_format="safetensors", **{"extra.moments": MOMENTS})["extra.moments"]
    assert (found["day"], found["share"], found["hour"]) == ("2026-02-28", [1, 3], MOMENTS["hour"])
    assert np.array_equal(found["hours"], MOMENTS["hours"], equal_nan=True)


def test_torch_files_give_back_times_and_constants_as_text(folder):
    found = write(folder, file_format="torch", **{"extra.moments": MOMENTS})["extra.moments"]
    assert (found["day"], found["share"], found["hour"]) == ("2026-02-28", "1/3", "2026-02-28T01")
    assert found["hours"] == ["2026-02-28T01", "NaT"]


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight
        self.note = "kept"

    def get_extra_state(self) -> dict[str, object]:
        return {"note": self.note, "table": torch.arange(2)}

    def set_extra_state(self, state: dict[str, object]) -> None:
        self.note = str(state["note"])


@pytest.mark.parametrize("file_format", ["torch", "safetensors"])
def test_tied_weights_are_written_under_both_names(folder, file_format):
    model = Tied()
    state = write(folder, file_format=file_format, model=ModelState(model).capture())["model"]
    assert torch.equal(state["embed.weight"], model.embed.weight)
    assert torch.equal(state["head.weight"], model.embed.weight)
    again = Tied()
    again.load_state_dict(state, strict=file_format == "torch")  # What is no tensor is in model.json alone.
    assert torch.equal(again.head.weight, model.head.weight)


def test_what_a_model_keeps_that_is_no_tensor_is_in_its_json(folder):
    model = Tied()
    model.note = "other"
    write(folder, file_format="safetensors", model=ModelState(model).capture())
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tree = decode_tree(json.loads((folder / "model.json").read_text()), tensors)
    again = Tied()
    ModelState(again).restore(tree)
    assert again.note == "other"
    assert set(tensors) == {"embed.weight", "head.weight", "_extra_state.table"}


@pytest.mark.parametrize("file_format", ["torch", "safetensors"])
def test_views_of_one_piece_of_memory_become_tensors_of_their_own(folder, file_format):
    memory = torch.arange(100_000, dtype=torch.float32)
    state = {"a": memory[:4], "b": memory[4:8], "c": memory[:4]}
    tensors: dict[str, torch.Tensor] = {}
    skeleton = encode_tree({"state": state, "metadata": {}}, path="model", tensors=tensors)
    write_state(folder, Snapshot({"model": skeleton}, tensors), file_format=file_format, progress=lambda doing: None)
    file = folder / ("model.pt" if file_format == "torch" else "model.safetensors")
    assert file.stat().st_size < 10_000
    found = torch.load(file, weights_only=True) if file_format == "torch" else safetensors.torch.load_file(file)
    assert {name: value.tolist() for name, value in found.items()} == {n: v.tolist() for n, v in state.items()}


def test_names_that_are_no_file_names_stay_in_the_folder(folder):
    names = ["extra./etc/passwd", "extra.../../up", "extra.EMA", "extra.ema", "README", "config", "rng.torch", "ü"]
    stems = file_stems(names)
    assert list(stems) == names
    assert stems["rng.torch"] == "rng.torch"
    assert len({stem.casefold() for stem in stems.values()} - {"readme", "config"}) == len(names)
    assert not [stem for stem in stems.values() if "/" in stem]
    found = write(
        folder, file_format="torch", **{"extra.../../up": {"x": 1}, "extra.EMA": {"x": 2}, "extra.ema": {"x": 3}}
    )
    assert [found[f"extra.{key}"]["x"] for key in ("../../up", "EMA", "ema")] == [1, 2, 3]


def test_a_model_that_is_none_is_called_malformed(folder):
    with pytest.raises(MalformedCheckpointError, match="no 'state' and 'metadata'"):
        write(folder, file_format="torch", model={"weights": {}})


def test_plain_types_are_left_as_they_are():
    tree = {"a": [1, 2.5, "x", None, True, (1,)], "b": b"x"}
    assert loadable(tree) == tree


def test_the_readme_knows_every_tag_that_the_codec_knows(folder):
    write(folder, file_format="safetensors")
    source = Path(state_tree.__file__).read_text()
    tags = set(re.findall(r'case "(\w+)"', source)) | COLLECTION_TAGS | {CONSTANT_TAG}
    assert len(tags) >= 19
    assert tags == set(re.findall(r'"\$(\w+)": lambda', (folder / "README.md").read_text()))
