"""A checkpoint taken elsewhere: every bit of it in files that need no segue."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pytest
import safetensors.torch
import torch
import yaml

import segue
from segue.checkpoints.format.state_tree import decode_tree
from segue.clock import SystemClock
from segue.controller.steps import open_run
from segue.curves.frame import curve
from segue.data.order import SampleOrder
from segue.errors import ExportFolderError
from segue.interop.export import ExportFormat
from segue.recipe import Recipe
from segue.spec import StoreSpec
from segue.testing.recipes import tiny
from segue.trainer.workloads.components import Progress
from segue.trainer.workloads.state import components_of
from tests.support.trained_run import WIDTH, Trained, names_in, read_run

TORCH, SAFETENSORS = ExportFormat.TORCH, ExportFormat.SAFETENSORS
BESIDE = {"README.md", "config.json", "data_position.json", "loss_curve.parquet", "train_state.json"}
COMPONENTS = {"model", "modes", "optimizer", "scheduler", "extra.average", "rng.torch", "rng.python", "rng.numpy"}

GO_ON = """
import json, pathlib, re, sys
sys.modules["segue"] = None  # From here on an import of it fails.
import torch
from torch import nn

torch.set_num_threads(1)
made = torch.Generator().manual_seed(7)
features = torch.randn(256, 8, generator=made)
targets = features @ torch.randn(8, 1, generator=made) + 0.1 * torch.randn(256, 1, generator=made)
model = nn.Sequential(nn.Linear(8, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=500)


class Average:
    def load_state_dict(self, state):
        self.values = state["values"]


extra = {"average": Average()}
exec(re.search("```python\\n(.*?)```", pathlib.Path("README.md").read_text(), re.S)[1])
for ids in json.load(sys.stdin):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(features[ids]), targets[ids]).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
    optimizer.step()
    scheduler.step()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "later.pt")
"""


@pytest.fixture
def copied(trained, tmp_path) -> Trained:
    """The same run in a store that the test may damage."""
    return read_run(Path(shutil.copytree(trained.store, tmp_path / "store")))


def fresh() -> Recipe:
    torch.manual_seed(99)
    return tiny({"width": WIDTH})


def same(one: object, other: object) -> bool:
    """Equal to the last bit; an array is the tensor of its values."""
    one, other = (torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in (one, other))
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)) and type(one) is type(other):
        return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))
    return type(one) is type(other) and one == other


def test_torch_files_load_into_a_fresh_recipe_bit_for_bit(trained, tmp_path):
    report = trained.export(tmp_path / "out", step=40)
    assert names_in(tmp_path / "out") == {file.name for file in report.files}
    assert {file.name for file in report.files} == BESIDE | {f"{name}.pt" for name in COMPONENTS}
    assert all(file.size_bytes == (tmp_path / "out" / file.name).stat().st_size for file in report.files)
    committed, recipe = trained.state(40), fresh()
    state = torch.load(tmp_path / "out" / "model.pt", weights_only=True)
    assert state._metadata == committed["model"]["metadata"] == recipe.model.state_dict()._metadata
    recipe.model.load_state_dict(state)
    recipe.optimizer.load_state_dict(torch.load(tmp_path / "out" / "optimizer.pt", weights_only=True))
    assert same(dict(recipe.model.state_dict()), committed["model"]["state"])
    assert same(recipe.optimizer.state_dict(), committed["optimizer"])


def test_every_torch_file_loads_with_weights_only_and_holds_what_was_committed(trained, tmp_path):
    trained.export(tmp_path / "out", step=20)
    committed = trained.state(20)
    for name in COMPONENTS - {"model"}:
        assert same(torch.load(tmp_path / "out" / f"{name}.pt", weights_only=True), committed[name]), name


def test_an_epoch_folder_has_the_torch_files_with_a_config_in_yaml_and_metrics_in_csv(trained, tmp_path):
    report = trained.export(tmp_path, step=40, file_format=ExportFormat.EPOCH)
    folder = tmp_path / "epoch-5"
    renamed = BESIDE - {"config.json", "loss_curve.parquet"} | {"config.yaml", "metrics.csv"}
    assert {file.name for file in report.files} == names_in(folder) == renamed | {f"{name}.pt" for name in COMPONENTS}
    assert report.folder == str(folder)
    trained.export(tmp_path / "out", step=40)
    assert yaml.safe_load((folder / "config.yaml").read_text()) == json.loads(
        (tmp_path / "out" / "config.json").read_text()
    )
    of_csv = pa.csv.read_csv(folder / "metrics.csv").to_pandas()
    of_parquet = pd.read_parquet(tmp_path / "out" / "loss_curve.parquet")
    numbers = ["step", "epoch", "samples_seen", "loss", "lr", "grad_norm", "param_norm"]
    pd.testing.assert_frame_equal(of_csv[numbers], of_parquet[numbers], check_exact=True)
    told = (folder / "README.md").read_text()
    assert all(name in told for name in renamed - {"README.md"})
    assert not any(name in told for name in ("config.json", "loss_curve.parquet"))


def test_a_folder_holds_several_epochs_and_no_epoch_twice(trained, tmp_path):
    for step in (20, 40):
        trained.export(tmp_path, step=step, file_format=ExportFormat.EPOCH)
    assert names_in(tmp_path) == {"epoch-2", "epoch-5"}
    with pytest.raises(ExportFolderError, match="epoch-5 is not empty"):
        trained.export(tmp_path, step=40, file_format=ExportFormat.EPOCH)


def test_safetensors_files_load_into_a_fresh_recipe_bit_for_bit(trained, tmp_path):
    folder = tmp_path / "out"
    report = trained.export(folder, step=40, file_format=SAFETENSORS)
    with_tensors = COMPONENTS - {"modes", "scheduler"}
    expected = BESIDE | {f"{name}.json" for name in COMPONENTS} | {f"{name}.safetensors" for name in with_tensors}
    assert {file.name for file in report.files} == names_in(folder) == expected
    committed, recipe = trained.state(40), fresh()
    recipe.model.load_state_dict(safetensors.torch.load_file(folder / "model.safetensors"))
    assert same(dict(recipe.model.state_dict()), committed["model"]["state"])
    for name in COMPONENTS:
        file = folder / f"{name}.safetensors"
        tensors = safetensors.torch.load_file(file) if file.exists() else {}
        assert same(decode_tree(json.loads((folder / f"{name}.json").read_text()), tensors), committed[name]), name


@pytest.mark.matrix
@pytest.mark.parametrize("file_format", [pytest.param(TORCH, marks=pytest.mark.matrix), SAFETENSORS])
def test_a_script_without_segue_goes_on_by_the_readme_to_the_very_bits_of_the_run(trained, tmp_path, file_format):
    folder = tmp_path / "out"
    trained.export(folder, step=20, file_format=file_format)
    told = json.loads((folder / "data_position.json").read_text())
    order = SampleOrder(count=256, batch_size=32, seed=told["seed"], shuffle=True, drop_last=False)
    batches = [order.batch(told["samples_seen"] + 32 * n).tolist() for n in range(20)]
    command = [sys.executable, "-W", "error", "-c", GO_ON]
    subprocess.run(command, input=json.dumps(batches), text=True, cwd=folder, check=True)
    later, committed = torch.load(folder / "later.pt", weights_only=True), trained.state(40)
    assert same(dict(later["model"]), committed["model"]["state"])
    assert same(later["optimizer"], committed["optimizer"])


def test_the_json_files_say_where_the_run_was(trained, tmp_path):
    trained.export(tmp_path / "out", step=40)
    told = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
    checkpoint, spec = trained.checkpoint(40), trained.history.spec
    position = told["data_position"]
    assert (position["step"], position["samples_seen"], position["epoch"], position["seed"]) == (40, 1280, 5, 0)
    assert "segue.data.order" in position["order"]
    assert told["config"] == {"recipe": spec.recipe, "config": spec.config, "seed": 0, "steps": 40}
    state = told["train_state"]
    assert (state["run_id"], state["step"], state["epoch"], state["segue_version"]) == (
        "tiny",
        40,
        5,
        segue.__version__,
    )
    assert state["metric"] == checkpoint.manifest.metric
    assert state["environment"] == checkpoint.manifest.environment.model_dump()
    assert state["parent"]["step"] == 20
    assert state["attempt"] == checkpoint.ref.attempt_id
    verdict = trained.history.attempts[-1].verdict
    assert state["verdict"] == verdict.model_dump(mode="json")
    assert (state["quarantined"], state["curve_gaps"], state["curve_damage"]) == (None, [], [])


def test_a_spec_that_came_later_is_not_the_one_of_the_checkpoint(copied, tmp_path):
    place = StoreSpec(url=str(copied.store))
    other = copied.history.spec.model_copy(update={"store": place, "seed": 5, "config": {"width": 9}})
    open_run(other, clock=SystemClock(), accept_drift=True)
    run = read_run(copied.store)
    assert run.history.spec.seed == 5
    run.export(tmp_path / "out", step=20)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["config"]["width"] == WIDTH
    assert json.loads((tmp_path / "out" / "data_position.json").read_text())["seed"] == 0


@pytest.mark.parametrize("step", [10, 20, 40])
def test_the_curve_is_that_of_the_run_cut_at_the_step(trained, tmp_path, step):
    trained.export(tmp_path / "out", step=step)
    found = pd.read_parquet(tmp_path / "out" / "loss_curve.parquet")
    whole = curve(trained.log).drop(columns="verdict")
    assert list(found["step"]) == list(range(1, step + 1))
    pd.testing.assert_frame_equal(found, whole[whole["step"] <= step].reset_index(drop=True))


def test_the_curve_of_a_checkpoint_the_run_did_not_go_on_from_is_the_one_that_led_to_it(trained, tmp_path):
    trained.export(tmp_path / "out", step=30)
    found = pd.read_parquet(tmp_path / "out" / "loss_curve.parquet")
    assert list(found["step"]) == list(range(1, 31))
    assert list(found["attempt_id"].unique()) == [trained.checkpoint(step).ref.attempt_id for step in (10, 20, 30)]
    state = json.loads((tmp_path / "out" / "train_state.json").read_text())
    assert state["quarantined"] == "a person doubted it"


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"PAR1 and no more")])
def test_a_lost_curve_keeps_nobody_from_their_weights_and_is_named(copied, tmp_path, damage):
    first = copied.history.attempts[0].claim.attempt_id
    for path in (copied.store / "tiny" / "metrics").glob(f"{first}*.parquet"):
        damage(path)
    copied.export(tmp_path / "out", step=40)
    assert list(pd.read_parquet(tmp_path / "out" / "loss_curve.parquet")["step"]) == list(range(11, 41))
    state = json.loads((tmp_path / "out" / "train_state.json").read_text())
    assert state["curve_gaps"] == [first]
    assert [text.partition(" ")[0] for text in state["curve_damage"]] == [f"tiny/metrics/{first}-p0000.parquet"]


def test_every_component_of_the_recipe_is_exported(trained):
    assert set(components_of(fresh(), Progress(), name="tiny")) - {"progress", "rng.cuda"} == COMPONENTS
