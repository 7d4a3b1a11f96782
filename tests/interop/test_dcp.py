"""Folders of torch.distributed.checkpoint: exports that torch loads, and imports that run nothing."""

from __future__ import annotations

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from segue.errors import WeightsFileError, WeightsMismatchError
from segue.interop.export import ExportFormat
from segue.interop.import_weights import import_weights
from segue.testing.recipes import tiny
from tests.interop.test_import_weights import assert_same_tensors, state_of
from tests.support.trained_run import WIDTH

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled"),
]


@pytest.fixture
def exported(trained, tmp_path) -> Path:
    trained.export(tmp_path / "export", step=40, file_format=ExportFormat.DCP)
    return tmp_path / "export"


def save(folder: Path, state) -> Path:
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder


@pytest.mark.matrix
def test_an_export_is_loaded_by_torch_into_a_model_and_an_optimizer(trained, exported):
    recipe, committed = tiny({"width": WIDTH}), trained.state(40)
    model_state, optimizer_state = get_state_dict(recipe.model, recipe.optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=exported, no_dist=True)
    set_state_dict(recipe.model, recipe.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    assert_same_tensors(recipe.model.state_dict(), committed["model"]["state"])
    moments = recipe.optimizer.state_dict()["state"]
    assert moments.keys() == committed["optimizer"]["state"].keys() != set()
    for number, slots in committed["optimizer"]["state"].items():
        assert_same_tensors(slots, moments[number])
    names = {name.partition(".")[0] for name in FileSystemReader(exported).read_metadata().state_dict_metadata}
    assert {"model", "optimizer", "scheduler", "extra", "rng", "progress", "modes"} <= {n.split(".")[0] for n in names}
    assert "torch.distributed.checkpoint" in (exported / "README.md").read_text()
    assert {"config.json", "loss_curve.parquet", "data_position.json"} <= {path.name for path in exported.iterdir()}


@pytest.mark.matrix
def test_an_export_is_imported_with_the_same_bits(trained, exported, make_spec):
    spec = make_spec(config={"width": WIDTH})
    report = import_weights(spec, exported)
    assert (report.file.name, report.prefix, report.kept_as_built) == ("export", "model.", ())
    assert_same_tensors(state_of(spec)["model"]["state"], trained.state(40)["model"]["state"])


def test_a_tensor_in_parts_is_put_together(make_spec, state, tmp_path):
    folder = save(tmp_path / "plain", state)  # Without "model." before the names.
    index = index_of(folder)
    described = index.state_dict_metadata["0.weight"]
    (chunk,) = described.chunks
    described.chunks.clear()
    for start in range(0, 16, 4):  # As four ranks of FSDP write it.
        part = replace(chunk, offsets=torch.Size([start, 0]), sizes=torch.Size([4, 8]))
        torch.save(state["0.weight"][start : start + 4].clone(), folder / f"part{start}.distcp")
        described.chunks.append(part)
        stored = _StorageInfo(f"part{start}.distcp", 0, (folder / f"part{start}.distcp").stat().st_size)
        index.storage_data[MetadataIndex("0.weight", part.offsets, start // 4)] = stored
    write_index(folder, index)
    spec = make_spec()
    import_weights(spec, folder)
    assert_same_tensors(state_of(spec)["model"]["state"], state)


class Code:
    def __reduce__(self):
        return os.system, ("touch ran",)


def index_of(folder: Path):
    return pickle.loads((folder / ".metadata").read_bytes())


def write_index(folder: Path, index) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(index))


def code_in_the_index(folder):
    index = index_of(folder)
    index.planner_data = Code()
    write_index(folder, index)


def code_in_a_tensor(folder):
    index = index_of(folder)
    key, stored = next((k, s) for k, s in index.storage_data.items() if k.fqn == "0.bias")
    torch.save(Code(), folder / "bad.distcp")
    index.storage_data[key] = type(stored)("bad.distcp", 0, (folder / "bad.distcp").stat().st_size)
    write_index(folder, index)


def a_part_missing(folder):
    index = index_of(folder)
    index.state_dict_metadata["0.weight"].chunks.clear()
    write_index(folder, index)


def another_folder(folder):
    index = index_of(folder)
    key, stored = next(iter(index.storage_data.items()))
    index.storage_data[key] = type(stored)(f"../{stored.relative_path}", stored.offset, stored.length)
    write_index(folder, index)


def half_a_file(folder):
    (file,) = folder.glob("*.distcp")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def no_file(folder):
    for file in folder.glob("*.distcp"):
        file.unlink()


def half_an_index(folder):
    data = (folder / ".metadata").read_bytes()
    (folder / ".metadata").write_bytes(data[: len(data) // 2])


def another_pickle(folder):
    write_index(folder, {"0.weight": 1})


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (code_in_the_index, "names posix.system, which no index needs"),
        (code_in_a_tensor, "is not a complete folder of torch.distributed.checkpoint"),
        (a_part_missing, "parts of 0.weight are missing"),
        (another_folder, "is not in the folder"),
        (half_a_file, "is not a complete folder"),
        (no_file, "cannot be read"),
        (half_an_index, "is not a complete folder"),
        (another_pickle, "its index is a dict"),
    ],
)
def test_a_bad_folder_is_refused_and_nothing_in_it_runs(make_spec, state, tmp_path, monkeypatch, damage, said):
    monkeypatch.chdir(tmp_path)
    spec, folder = make_spec(), save(tmp_path / "plain", state)
    damage(folder)
    with pytest.raises(WeightsFileError, match=said):
        import_weights(spec, folder)
    assert not (tmp_path / "ran").exists()
    assert not Path(spec.store.url).exists()


def test_other_weights_and_other_folders_are_named(make_spec, state, tmp_path):
    folder = save(tmp_path / "other", {"model": {"0.weight": torch.zeros(2, 2)}})
    with pytest.raises(WeightsMismatchError, match=r"0\.weight"):
        import_weights(make_spec(), folder)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(WeightsFileError, match=r"is a folder, but not a folder of torch\.distributed\.checkpoint"):
        import_weights(make_spec(), folder)
